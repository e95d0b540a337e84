//! Threads that share rows of work, split statically.
//!
//! Which thread computes a row never changes its bits: rows don't share sums. Work is never handed from thread to
//! thread through a counter, since a cache line takes longer from core to core than a small product does.

#![expect(unsafe_code, reason = "hands each thread its own part of a slice")]

mod pool;
mod slices;
mod sync;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::ComputeError;
use pool::{Pool, Shared};
pub use slices::SharedSlice;

/// Below this many bytes of weights (or states, or activations) a hand-over to another thread costs more than it saves.
pub const SHARED_WORK_BYTES_MIN: usize = 48 * 1024;

/// A fixed number of threads, the caller's among them; one means the caller's own. A clone uses the same threads: a call
/// that finds them at work is the caller's alone.
#[derive(Clone, Debug)]
pub struct Workers {
    pool: Option<Arc<Pool>>,
    /// Whether a call is under way: the pool takes one at a time.
    is_busy: Arc<AtomicBool>,
}

impl Workers {
    /// The caller's thread alone.
    pub fn single() -> Self {
        Self { pool: None, is_busy: Arc::default() }
    }

    /// `n_threads` threads; zero counts as one.
    ///
    /// # Errors
    /// [`ComputeError::Threads`] when they can't be started.
    pub fn new(n_threads: usize) -> Result<Self, ComputeError> {
        if n_threads <= 1 {
            return Ok(Self::single());
        }
        let pool = Pool::new(n_threads);
        let pool = pool.map_err(|source| ComputeError::Threads { n_threads, source })?;
        Ok(Self { pool: Some(Arc::new(pool)), is_busy: Arc::default() })
    }

    /// Threads.
    pub fn n_threads(&self) -> usize {
        self.pool.as_ref().map_or(1, |pool| pool.n_threads())
    }

    /// Calls `work` once on every thread, each with its share, and returns when all are done; on the caller's thread
    /// alone when the work reads fewer than [`SHARED_WORK_BYTES_MIN`] bytes, or is part of such a call. Allocates nothing.
    ///
    /// # Panics
    /// When `work` does, on any thread.
    pub fn share(&self, work_bytes: usize, work: impl Fn(Share<'_>) + Sync) {
        match &self.pool {
            Some(pool)
                if work_bytes >= SHARED_WORK_BYTES_MIN && !self.is_busy.swap(true, Ordering::Acquire) =>
            {
                // Also when the work panics.
                let _busy = Busy(&self.is_busy);
                pool.run(&work);
            }
            _ => work(Share { index: 0, count: 1, others: None }),
        }
    }

    /// Calls `work(i, row)` for every row of `row_len` values of `out`; `work_bytes` is what all rows read. Neighbours go
    /// to different threads, so that rows that cost more the later they come are shared evenly too.
    pub fn rows(
        &self,
        out: &mut [f32],
        row_len: usize,
        work_bytes: usize,
        work: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let n_rows = out.len() / row_len.max(1);
        let out = SharedSlice::new(out);
        self.share(work_bytes, |share| {
            for i in share.every(n_rows) {
                // SAFETY: each row is one thread's, and rows don't overlap.
                work(i, unsafe { out.part(i * row_len..(i + 1) * row_len) });
            }
        });
    }
}

/// Ends a call when it is dropped.
struct Busy<'a>(&'a AtomicBool);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// One thread's part of a call of [`Workers::share`].
#[derive(Clone, Copy)]
pub struct Share<'a> {
    index: usize,
    count: usize,
    /// What the threads of the call share; `None` for a call on one thread.
    others: Option<&'a Shared>,
}

impl fmt::Debug for Share<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Share({} of {})", self.index, self.count)
    }
}

impl Share<'_> {
    /// This thread's part of `n` things that are cut only at multiples of `unit`: contiguous, in the order of the
    /// threads, disjoint, and together all of them.
    pub fn range(&self, n: usize, unit: usize) -> Range<usize> {
        let units = n.div_ceil(unit);
        let cut = |index: usize| (units * index / self.count * unit).min(n);
        cut(self.index)..cut(self.index + 1)
    }

    /// This thread's of `n` things that are dealt out in turn.
    pub fn every(&self, n: usize) -> impl Iterator<Item = usize> + use<> {
        (self.index..n).step_by(self.count)
    }

    /// Waits until every thread of the call has come here: what they wrote before can then be read.
    ///
    /// # Panics
    /// When another thread has.
    pub fn wait(&self) {
        if let Some(others) = self.others {
            others.wait();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn shares_are_all_of_it() {
        for (n, unit, count) in [(0, 1, 3), (1, 16, 2), (100, 16, 3), (512, 16, 4), (7, 1, 8)] {
            let share = |index| Share { index, count, others: None };
            let mut next = 0;
            for index in 0..count {
                let range = share(index).range(n, unit);
                assert_eq!(range.start, next, "{n} {unit} {count}");
                assert!(range.end == n || range.end.is_multiple_of(unit));
                next = range.end;
            }
            assert_eq!(next, n);
        }
    }

    #[test]
    fn a_call_within_a_call_is_the_callers_alone() {
        thread_local!(static WORKERS: Workers = Workers::new(2).unwrap());
        let caller = std::thread::current().id();
        let (outer, inner) = (AtomicUsize::new(0), AtomicUsize::new(0));
        WORKERS.with(|workers| {
            workers.share(usize::MAX, |_| {
                outer.fetch_add(1, Ordering::Relaxed);
                if std::thread::current().id() == caller {
                    WORKERS.with(|again| {
                        again.share(usize::MAX, |share| {
                            assert_eq!(share.count, 1);
                            inner.fetch_add(1, Ordering::Relaxed);
                        });
                    });
                }
            });
        });
        assert_eq!((outer.into_inner(), inner.into_inner()), (2, 1));
    }

    #[test]
    fn every_row_is_worked_on_once() {
        for n_threads in 1..=4 {
            let workers = Workers::new(n_threads).unwrap();
            assert_eq!(workers.n_threads(), n_threads);
            for n in [1, 2, 3, 64] {
                let mut out = vec![0.0; n * 3];
                workers.rows(&mut out, 3, usize::MAX, |i, row| {
                    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                    row.iter_mut().for_each(|v| *v += i as f32 + 1.0);
                });
                #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                let want: Vec<f32> = (0..n * 3).map(|i| (i / 3) as f32 + 1.0).collect();
                assert_eq!(out, want, "{n_threads} threads, {n} rows");
            }
        }
    }
}
