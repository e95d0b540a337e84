//! Keeps a backend busy for a while, and counts what came.

use forerun_arena::{Window, WriteLease};
use forerun_model::{Clock, Nanos};

use super::places::Place;
use crate::{Priority, Read, ReadBackend, Tag};

/// What came in how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) n_reads: u64,
    pub(super) n_bytes: u64,
    pub(super) span: Nanos,
}

impl Sample {
    /// `None` when nothing came.
    pub(super) fn bytes_per_second(self) -> Option<u64> {
        let bytes = u128::from(self.n_bytes) * 1_000_000_000;
        let rate = bytes.checked_div(u128::from(self.span.0))?;
        u64::try_from(rate).ok().filter(|&rate| rate > 0)
    }
}

/// How to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Reads at once.
    pub(super) depth: usize,
    /// Bytes of each.
    pub(super) read_bytes: usize,
    /// When the last may begin.
    pub(super) until: Nanos,
}

/// Reads at `places` into `slots` as long as `load` says, and until all reads are back. All of the time counts: what a
/// queue that runs dry costs at the end, it saved at the start.
///
/// # Errors
/// What the first failing read says.
pub(super) fn measure(
    backend: &mut dyn ReadBackend,
    clock: &dyn Clock,
    load: Load,
    slots: &mut Vec<WriteLease>,
    places: &mut dyn Iterator<Item = Place>,
) -> Result<Sample, String> {
    let n = load.depth.min(backend.limits().depth).min(slots.len());
    let mut free: Vec<Vec<Window>> =
        slots.drain(..n).map(|slot| vec![slot.window(0..load.read_bytes)]).collect();
    let (mut n_in_flight, mut next_tag, mut problem, mut done) = (0, 0, None, Vec::new());
    let start = clock.now();
    let (mut sample, mut end) = (Sample { n_reads: 0, n_bytes: 0, span: Nanos(0) }, start);
    loop {
        while problem.is_none() && end < load.until && !free.is_empty() {
            let Some(place) = places.next() else { break };
            let windows = free.pop().expect("one is free");
            let (tag, priority) = (Tag(next_tag), Priority::Demand);
            let Place { file, offset_bytes } = place;
            let read = Read { tag, priority, file, offset_bytes, windows };
            backend.submit(read).expect("fewer reads than the depth are in flight");
            (n_in_flight, next_tag) = (n_in_flight + 1, next_tag + 1);
        }
        if n_in_flight == 0 {
            break;
        }
        backend.wait(Nanos::MAX, &mut done);
        end = clock.now();
        n_in_flight -= done.len();
        for completed in done.drain(..) {
            match completed.result {
                Ok(n_bytes) => {
                    sample.n_bytes += n_bytes;
                    sample.n_reads += 1;
                }
                Err(error) => problem = problem.or(Some(error)),
            }
            free.push(completed.read.windows);
        }
    }
    slots.extend(free.into_iter().flatten().filter_map(Window::join));
    sample.span = end - start;
    match problem {
        Some(error) => Err(format!("a read failed ({error})")),
        None => Ok(sample),
    }
}
