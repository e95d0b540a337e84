//! Whether the system wants memory back, so that it needn't kill anybody.

use std::time::{Duration, Instant};

use forerun_decode::{Engine, bytes_text, system_memory};

use crate::say::say;

/// The system is looked at no more often than this: it takes some microseconds, and a step may take no more.
const EVERY: Duration = Duration::from_secs(1);
/// Less than this share of its memory, or than so many bytes, and the system is short of it.
const SHORT_SHARE: u64 = 64;
const SHORT_BYTES: u64 = 128 << 20;

/// Has `engine` give slots up when the system runs short of memory, and says so.
pub(crate) fn watch(engine: &mut Engine, quiet: bool) {
    let mut looked = Instant::now();
    engine.watch_memory(Some(Box::new(move || {
        if looked.elapsed() < EVERY {
            return 0;
        }
        looked = Instant::now();
        let Some((available, total)) = system_memory() else { return 0 };
        let wanted = wanted(available, total);
        if wanted > 0 && !quiet {
            let (left, wanted) = (bytes_text(available), bytes_text(wanted));
            say!("the system has {left} of memory left: giving up {wanted}, as far as slots have it");
        }
        wanted
    })));
}

/// Bytes that bring the system back to twice what is little.
fn wanted(available: u64, total: u64) -> u64 {
    let little = (total / SHORT_SHARE).max(SHORT_BYTES).min(total / 4);
    if available < little { 2 * little - available } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn only_a_system_that_is_short_wants_memory_back() {
        assert_eq!(wanted(GIB, 16 * GIB), 0);
        assert_eq!(wanted(GIB / 4, 16 * GIB), 0, "as much as is little");
        assert_eq!(wanted(GIB / 5, 16 * GIB), GIB / 2 - GIB / 5);
        // A small machine has less than the least to spare all the time.
        assert_eq!(wanted(100 << 20, 256 << 20), 0);
        assert_eq!(wanted(20 << 20, 256 << 20), 108 << 20);
    }
}
