//! Measurements as text, settings as text.

use super::*;

/// Ways apart by `;`: `pread direct 1:900 2:1300` in MB/s by depth, or `uring direct - why not`.
fn parse(text: &str) -> (Vec<Rate>, Vec<Missing>) {
    let (mut rates, mut missing) = (Vec::new(), Vec::new());
    for way in text.split(';') {
        let (names, why) = way.split_once(" - ").unwrap_or((way, ""));
        let mut words = names.split_whitespace();
        let method = if words.next().unwrap() == "uring" { Method::Uring } else { Method::Pread };
        let access = if words.next().unwrap() == "direct" { Access::Direct } else { Access::Cached };
        if !why.is_empty() {
            missing.push(Missing { method, access, reason: why.to_owned() });
        }
        for word in words {
            let (depth, rate) = word.split_once(':').unwrap();
            let bytes_per_second = rate.parse::<u64>().unwrap() * 1_000_000;
            let (depth, read_bytes) = (depth.parse().unwrap(), 1 << 20);
            rates.push(Rate { method, access, depth, read_bytes, n_reads: 9, bytes_per_second });
        }
    }
    (rates, missing)
}

#[track_caller]
fn check(measured: &str, expect: &str) -> Chosen {
    let (rates, missing) = parse(measured);
    let chosen = choose(&rates, &missing);
    let speed = chosen.bytes_per_second.map_or("unknown".to_owned(), speed);
    let text = format!("{} {} {} {speed}", chosen.method, chosen.access, chosen.depth);
    assert_eq!(text, expect);
    chosen
}

#[track_caller]
fn check_why(measured: &str, what: &str, expect: &str) {
    let (rates, missing) = parse(measured);
    let reasons = choose(&rates, &missing).reasons;
    let reason = reasons.iter().find(|reason| reason.what == what).unwrap();
    assert_eq!(format!("{}: {}", reason.choice, reason.reason), expect);
}

#[test]
fn the_shallowest_queue_that_nearly_fills_the_disk_is_taken() {
    check("pread direct 1:1370 2:1380 4:1300 8:1230", "pread direct 1 1.38 GB/s");
    check("pread direct 1:1200 2:1300 4:1400 8:1230", "pread direct 2 1.40 GB/s");
    check("pread direct 1:1260 2:1300 4:1400", "pread direct 1 1.40 GB/s");
    check("pread direct 1:100 2:200 4:400 8:780", "pread direct 8 780 MB/s");
    check_why("pread direct 1:1370 2:1380", "depth", "1: 1.37 GB/s; depth 2 gave 1.38 GB/s, hardly more");
    check_why("pread direct 1:100 2:200", "depth", "2: the most, 200 MB/s");
}

#[test]
fn the_page_cache_must_be_half_as_fast_again() {
    check("pread direct 1:1000; pread cached 4:1500", "pread direct 1 1.00 GB/s");
    check("pread direct 1:1000; pread cached 4:1501", "pread cached 4 1.50 GB/s");
    check_why(
        "pread direct 1:1000; pread cached 4:1501",
        "page cache",
        "cached: direct reads gave 1.00 GB/s, cold ones through the page cache 1.50 GB/s: over 1.5 times as much",
    );
    check_why(
        "pread direct 1:1000; pread cached - its pages stay in memory",
        "page cache",
        "direct: cold reads through the page cache were not measured: its pages stay in memory",
    );
}

#[test]
fn io_uring_wins_a_tie() {
    check("pread direct 1:1000; uring direct 1:970", "uring direct 1 970 MB/s");
    check("pread direct 1:1000; uring direct 1:969", "pread direct 1 1.00 GB/s");
    check("pread direct 1:1000; uring direct 1:800 4:1200", "uring direct 4 1.20 GB/s");
    check_why(
        "pread direct 1:1000; uring direct 1:980",
        "io",
        "uring: io_uring gave 980 MB/s, threads 1.00 GB/s: a tie, and io_uring costs less CPU",
    );
}

#[test]
fn what_is_refused_is_no_choice_and_says_why() {
    check("pread direct 1:900; uring direct - the kernel forbids it", "pread direct 1 900 MB/s");
    check_why(
        "pread direct 1:900; uring direct - the kernel forbids it",
        "io",
        "pread: io_uring is no choice: the kernel forbids it",
    );
    let refused = "uring direct - no; pread direct - tmpfs takes none; pread cached 4:700";
    check(refused, "pread cached 4 700 MB/s");
    check_why(refused, "page cache", "cached: direct reads are no choice: tmpfs takes none");
}

#[test]
fn without_any_measurement_threads_read_through_the_page_cache() {
    let nothing =
        "uring direct - no; pread direct - tmpfs takes none; pread cached - its pages stay in memory";
    check(nothing, "pread cached 4 unknown");
    check_why(nothing, "depth", "4: nothing was measured: its pages stay in memory");
}

/// Times of reads of 1 MiB and 64 KiB in nanoseconds.
#[track_caller]
fn check_merge(record_ns: u64, small_ns: u64, gap: u32, full_speed: u32) {
    let rate = |read_bytes: u64, ns: u64| Rate {
        method: Method::Pread,
        access: Access::Direct,
        depth: 1,
        read_bytes,
        n_reads: 9,
        bytes_per_second: read_bytes * 1_000_000_000 / ns,
    };
    let (record, small) = (rate(1 << 20, record_ns), rate(64 << 10, small_ns));
    let chosen = choose(&[], &[]);
    let choice = merge(chosen, Some(&record), Some(&small));
    // The rates are rounded to bytes.
    assert!(choice.gap_bytes_max.abs_diff(gap) <= 2, "a gap of {}", choice.gap_bytes_max);
    assert!(choice.full_speed_bytes.abs_diff(full_speed) <= 40, "full speed at {}", choice.full_speed_bytes);
}

#[test]
fn a_gap_may_take_as_long_as_a_request() {
    const RECORD: u64 = 1 << 20;
    const SMALL: u64 = 64 << 10;
    // A byte a nanosecond.
    check_merge(100_000 + RECORD, 100_000 + SMALL, 100_000, 19 * 100_000);
    check_merge(RECORD, SMALL, 0, 0);
    check_merge(RECORD, SMALL - 5_000, 0, 0);
    check_merge(10_000_000 + RECORD, 10_000_000 + SMALL, GAP_BYTES_MAX, MERGED_BYTES_MAX);
}

#[test]
fn nonsense_leaves_the_defaults() {
    let default = MergeLimits::default();
    check_merge(100, 200, default.gap_bytes_max, default.merged_bytes_max);
    let choice = merge(choose(&[], &[]), None, None);
    assert_eq!(choice.gap_bytes_max, default.gap_bytes_max);
}

#[test]
fn a_merged_read_has_two_records_at_least() {
    let choice = merge(choose(&[], &[]), None, None);
    assert_eq!(choice.merge(100).merged_bytes_max, MergeLimits::default().merged_bytes_max);
    assert_eq!(choice.merge(3 << 20).merged_bytes_max, 6 << 20);
    assert_eq!(choice.merge(u64::MAX).merged_bytes_max, u32::MAX);
}
