//! Sizes in bytes, to print and as people write them.

/// Bytes for people, in binary units, rounded up so that a printed budget is never too small.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [(&str, u32); 3] = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match UNITS.iter().find(|(_, shift)| bytes >= 1 << shift) {
        None => format!("{bytes} B"),
        Some((unit, shift)) => {
            let hundredths = (u128::from(bytes) * 100).div_ceil(1 << shift);
            format!("{}.{:02}{unit}", hundredths / 100, hundredths % 100)
        }
    }
}

/// Reads a size such as `3GiB`, `1.5G`, `512MB` or `1000000`.
///
/// # Errors
/// What would be right, in words.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 13] = [
        ("tib", 1 << 40),
        ("gib", 1 << 30),
        ("mib", 1 << 20),
        ("kib", 1 << 10),
        ("tb", 1_000_000_000_000),
        ("gb", 1_000_000_000),
        ("mb", 1_000_000),
        ("kb", 1_000),
        ("t", 1 << 40),
        ("g", 1 << 30),
        ("m", 1 << 20),
        ("k", 1 << 10),
        ("b", 1),
    ];
    let wrong = || format!("`{text}` is not a size; write for example 3GiB, 1.5GiB or 800MB");
    let lower = text.trim().to_ascii_lowercase();
    let (number, unit) = UNITS
        .iter()
        .find_map(|(suffix, unit)| lower.strip_suffix(suffix).map(|number| (number.trim(), *unit)))
        .unwrap_or((&lower, 1));
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || part.len() > 6 || !digits(whole) || !digits(part) {
        return Err(wrong());
    }
    let micros: u128 = format!("{whole}{part:0<6}").parse().map_err(|_| wrong())?;
    micros
        .checked_mul(u128::from(unit))
        .and_then(|bytes| u64::try_from(bytes / 1_000_000).ok())
        .filter(|&bytes| bytes > 0)
        .ok_or_else(wrong)
}
