//! GPT-2's byte alphabet: each byte as one printable character, so that BPE rules are plain text.
//!
//! Bytes 33-126, 161-172 and 174-255 stand for themselves; the other 68 follow from U+0100 in increasing order.

/// How many bytes have no printable character of their own.
const N_SHIFTED: usize = 68;

/// The shifted bytes, in order: byte `SHIFTED[i]` is character U+0100 + i.
const SHIFTED: [u8; N_SHIFTED] = shifted();

const fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, 33..=126 | 161..=172 | 174..=255)
}

const fn shifted() -> [u8; N_SHIFTED] {
    let mut list = [0; N_SHIFTED];
    let (mut byte, mut n) = (0u8, 0);
    loop {
        if !stands_for_itself(byte) {
            list[n] = byte;
            n += 1;
        }
        if byte == u8::MAX {
            return list;
        }
        byte += 1;
    }
}

#[expect(clippy::cast_possible_truncation, reason = "indices below 256")]
const fn symbols() -> [char; 256] {
    let mut table = ['\0'; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = byte as u8 as char;
        byte += 1;
    }
    let mut n = 0;
    while n < N_SHIFTED {
        // U+0100 to U+0143: all valid, so the fallback is never taken.
        table[SHIFTED[n] as usize] = match char::from_u32(0x100 + n as u32) {
            Some(symbol) => symbol,
            None => '\0',
        };
        n += 1;
    }
    table
}

static SYMBOLS: [char; 256] = symbols();

/// The character that stands for `byte`.
pub(super) fn symbol(byte: u8) -> char {
    SYMBOLS[usize::from(byte)]
}

/// The byte that `symbol` stands for, or `None` when it is outside the alphabet.
pub(super) fn byte(symbol: char) -> Option<u8> {
    match u8::try_from(symbol) {
        Ok(byte) => stands_for_itself(byte).then_some(byte),
        Err(_) => SHIFTED.get((symbol as usize).checked_sub(0x100)?).copied(),
    }
}

/// Appends the symbols of `text`'s bytes to `out`.
pub(super) fn push_symbols(text: &str, out: &mut String) {
    out.extend(text.bytes().map(symbol));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_symbol() {
        let mut seen = std::collections::BTreeSet::new();
        for b in 0..=u8::MAX {
            assert_eq!(byte(symbol(b)), Some(b));
            assert!(seen.insert(symbol(b)));
        }
        assert_eq!((symbol(b' '), symbol(b'\n'), symbol(0)), ('Ġ', 'Ċ', 'Ā'));
        assert_eq!((byte(' '), byte('ń'), byte('€')), (None, None, None));
    }
}
