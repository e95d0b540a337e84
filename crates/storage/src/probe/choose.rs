//! From measurements to settings, each with its reason. Pure.

use super::report::{
    Access, Choice, DEPTH_MAX, GAP_BYTES_MAX, MERGED_BYTES_MAX, Method, Missing, Rate, Reason,
};
use crate::MergeLimits;

/// How much faster reads through the page cache must be, in percent, to be worth five times the CPU and the memory of
/// others.
const CACHED_GAIN_PERCENT: u64 = 50;

/// How much slower than threads io_uring may be, in percent, since it costs less CPU.
const TIE_PERCENT: u64 = 3;

/// Share of the best rate, in percent, that a depth must reach. Two measurements of a shared disk differ by as much
/// as the rest, and a deeper queue makes each demand wait for more guesses: 2 ms with two reads at the disk, 10 with eight.
const ENOUGH_PERCENT: u64 = 90;

/// Depth for reads through the page cache when nothing could be measured: one thread alone gets half of a disk.
const CACHED_DEPTH: usize = 4;

/// A way to read, and what it gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) method: Method,
    pub(super) access: Access,
    pub(super) depth: usize,
    pub(super) bytes_per_second: Option<u64>,
    pub(super) reasons: Vec<Reason>,
}

/// Settles what reads, past or through the page cache, and how much at once.
pub(super) fn choose(rates: &[Rate], missing: &[Missing]) -> Chosen {
    let facts = Facts { rates, missing };
    let (method, method_reason) = facts.method();
    let (access, access_reason) = facts.access(method);
    // Through the page cache, threads are the only way.
    let direct_only = "reads through the page cache are made on threads".to_owned();
    let (method, method_reason) = match access {
        Access::Direct => (method, method_reason),
        Access::Cached => (Method::Pread, direct_only),
    };
    let (depth, depth_reason) = facts.depth(method, access);
    let reasons = vec![
        reason("io", method, method_reason),
        reason("page cache", access, access_reason),
        reason("depth", depth, depth_reason),
    ];
    let bytes_per_second = facts.best(method, access).map(|rate| rate.bytes_per_second);
    Chosen { method, access, depth, bytes_per_second, reasons }
}

/// Settles what is read together, from the rates of records and of short reads at the same depth.
pub(super) fn merge(chosen: Chosen, record: Option<&Rate>, small: Option<&Rate>) -> Choice {
    let Chosen { method, access, depth, bytes_per_second, mut reasons } = chosen;
    let fallback = MergeLimits::default();
    let (gap_bytes_max, full_speed_bytes, why) = match overhead_bytes(record, small) {
        Some(bytes) => {
            let gap = u32::try_from(bytes).unwrap_or(u32::MAX).min(GAP_BYTES_MAX);
            // With an overhead of `o` bytes, `n` of `n + o` is useful: 95 % from n = 19 o on.
            let full = u32::try_from(bytes.saturating_mul(19)).unwrap_or(u32::MAX).min(MERGED_BYTES_MAX);
            let why = format!("a request costs as much time as {} bytes", grouped(bytes));
            (gap, full, why)
        }
        None => {
            let why = "what a request costs could not be told, so it is a guess".to_owned();
            (fallback.gap_bytes_max, fallback.merged_bytes_max, why)
        }
    };
    let full_speed = format!("{why}, so reads of this length have 95 % of full speed");
    reasons.push(reason("gap", grouped(gap_bytes_max.into()), why));
    reasons.push(reason("merged read", grouped(full_speed_bytes.into()), full_speed));
    Choice { method, access, depth, bytes_per_second, gap_bytes_max, full_speed_bytes, reasons }
}

/// Bytes that could be read in the time that a request takes beyond its bytes: from two lengths of reads, whose times
/// lie on a line.
#[expect(clippy::cast_possible_truncation, reason = "a rounded number of bytes, which saturates")]
fn overhead_bytes(record: Option<&Rate>, small: Option<&Rate>) -> Option<u64> {
    let (record, small) = (record?, small?);
    let span = |rate: &Rate| rate.read_bytes as f64 / rate.bytes_per_second as f64;
    let more_bytes = record.read_bytes.checked_sub(small.read_bytes).filter(|&bytes| bytes > 0)? as f64;
    let more_span = span(record) - span(small);
    if more_span <= 0.0 {
        return None;
    }
    let bytes = span(small) * more_bytes / more_span - small.read_bytes as f64;
    // Below nothing is noise.
    Some(bytes.max(0.0).round() as u64)
}

struct Facts<'a> {
    rates: &'a [Rate],
    missing: &'a [Missing],
}

impl Facts<'_> {
    fn of(&self, method: Method, access: Access) -> impl Iterator<Item = &Rate> {
        self.rates.iter().filter(move |rate| rate.method == method && rate.access == access)
    }

    /// The fastest depth, the shallowest of equals.
    fn best(&self, method: Method, access: Access) -> Option<&Rate> {
        self.of(method, access).min_by_key(|rate| (std::cmp::Reverse(rate.bytes_per_second), rate.depth))
    }

    /// Why a way wasn't measured.
    fn lacks(&self, method: Method, access: Access) -> &str {
        let missing =
            self.missing.iter().find(|missing| missing.method == method && missing.access == access);
        missing.map_or("it was not measured", |missing| &missing.reason)
    }

    /// The faster one for direct reads.
    fn method(&self) -> (Method, String) {
        let lacks = |method| self.lacks(method, Access::Direct);
        match (self.best(Method::Uring, Access::Direct), self.best(Method::Pread, Access::Direct)) {
            (None, _) => (Method::Pread, format!("io_uring is no choice: {}", lacks(Method::Uring))),
            (Some(_), None) => (Method::Uring, format!("threads are no choice: {}", lacks(Method::Pread))),
            (Some(uring), Some(pread)) => {
                let (u, p) = (uring.bytes_per_second, pread.bytes_per_second);
                let pair = format!("io_uring gave {}, threads {}", speed(u), speed(p));
                if u > p {
                    (Method::Uring, pair)
                } else if u.saturating_mul(100) >= p.saturating_mul(100 - TIE_PERCENT) {
                    (Method::Uring, format!("{pair}: a tie, and io_uring costs less CPU"))
                } else {
                    (Method::Pread, pair)
                }
            }
        }
    }

    fn access(&self, method: Method) -> (Access, String) {
        let cached = self.best(Method::Pread, Access::Cached);
        let Some(direct) = self.best(method, Access::Direct) else {
            return (
                Access::Cached,
                format!("direct reads are no choice: {}", self.lacks(method, Access::Direct)),
            );
        };
        let Some(cached) = cached else {
            let why = self.lacks(Method::Pread, Access::Cached);
            return (Access::Direct, format!("cold reads through the page cache were not measured: {why}"));
        };
        let (d, c) = (direct.bytes_per_second, cached.bytes_per_second);
        let pair = format!("direct reads gave {}, cold ones through the page cache {}", speed(d), speed(c));
        if c.saturating_mul(100) > d.saturating_mul(100 + CACHED_GAIN_PERCENT) {
            (Access::Cached, format!("{pair}: over 1.5 times as much"))
        } else {
            (Access::Direct, format!("{pair}; direct ones cost a fifth of the CPU"))
        }
    }

    fn depth(&self, method: Method, access: Access) -> (usize, String) {
        let Some(best) = self.best(method, access) else {
            return (CACHED_DEPTH, format!("nothing was measured: {}", self.lacks(method, access)));
        };
        let enough = |rate: &&Rate| {
            rate.bytes_per_second.saturating_mul(100) >= best.bytes_per_second.saturating_mul(ENOUGH_PERCENT)
        };
        let least = self.of(method, access).filter(enough).min_by_key(|rate| rate.depth).unwrap_or(best);
        let why = if least.depth == best.depth {
            format!("the most, {}", speed(best.bytes_per_second))
        } else {
            let (least, most) = (speed(least.bytes_per_second), speed(best.bytes_per_second));
            format!("{least}; depth {} gave {most}, hardly more", best.depth)
        };
        (least.depth.min(DEPTH_MAX), why)
    }
}

fn reason(what: &str, choice: impl ToString, reason: String) -> Reason {
    Reason { what: what.into(), choice: choice.to_string(), reason }
}

/// A rate for people, in decimal units as disks are sold.
pub(super) fn speed(bytes_per_second: u64) -> String {
    let megabytes = bytes_per_second / 1_000_000;
    if megabytes >= 1000 {
        format!("{:.2} GB/s", megabytes as f64 / 1e3)
    } else {
        format!("{megabytes} MB/s")
    }
}

/// A number with its thousands apart.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests;
