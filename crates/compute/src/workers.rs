//! Threads that share rows of work, split statically.
//!
//! Which thread computes a row never changes its bits: rows don't share sums.

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::ComputeError;

/// Below this many bytes of weights (or states) a hand-over to another thread costs more than it saves: a dispatch
/// takes some 5 to 10 microseconds, in which one core reads about 200 KB.
const SHARED_WORK_BYTES_MIN: usize = 256 * 1024;
/// The stack of a worker; kernels keep their scratch in the tens of KiB.
const STACK_BYTES: usize = 512 * 1024;

/// A fixed number of threads; one means the caller's own.
#[derive(Debug)]
pub struct Workers {
    pool: Option<ThreadPool>,
    n_threads: usize,
}

impl Workers {
    /// The caller's thread alone.
    pub fn single() -> Self {
        Self { pool: None, n_threads: 1 }
    }

    /// `n_threads` threads; zero counts as one.
    ///
    /// # Errors
    /// [`ComputeError::Threads`] when they can't be started.
    pub fn new(n_threads: usize) -> Result<Self, ComputeError> {
        if n_threads <= 1 {
            return Ok(Self::single());
        }
        let builder = ThreadPoolBuilder::new().num_threads(n_threads).stack_size(STACK_BYTES);
        let pool = builder.thread_name(|i| format!("compute-{i}")).build();
        let pool = pool.map_err(|e| ComputeError::Threads { n_threads, reason: e.to_string() })?;
        Ok(Self { pool: Some(pool), n_threads })
    }

    /// Threads.
    pub fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// Calls `work(i, row)` for every row of `row_len` values of `out`; `work_bytes` is what all rows read.
    pub fn rows(
        &self,
        out: &mut [f32],
        row_len: usize,
        work_bytes: usize,
        work: impl Fn(usize, &mut [f32]) + Sync,
    ) {
        let n_rows = out.len() / row_len;
        match &self.pool {
            Some(pool) if work_bytes >= SHARED_WORK_BYTES_MIN && n_rows > 1 => pool.install(|| {
                let share = n_rows.div_ceil(self.n_threads);
                out.par_chunks_mut(share * row_len).enumerate().for_each(|(i, rows)| {
                    for (j, row) in rows.chunks_mut(row_len).enumerate() {
                        work(i * share + j, row);
                    }
                });
            }),
            _ => out.chunks_mut(row_len).enumerate().for_each(|(i, row)| work(i, row)),
        }
    }

    /// Like [`Self::rows`] over the rows of two slices at once.
    pub fn row_pairs(
        &self,
        (a, a_len): (&mut [f32], usize),
        (b, b_len): (&mut [f32], usize),
        work_bytes: usize,
        work: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
    ) {
        match &self.pool {
            Some(pool) if work_bytes >= SHARED_WORK_BYTES_MIN => pool.install(|| {
                let pairs = a.par_chunks_mut(a_len).zip(b.par_chunks_mut(b_len)).enumerate();
                pairs.for_each(|(i, (a, b))| work(i, a, b));
            }),
            _ => {
                let pairs = a.chunks_mut(a_len).zip(b.chunks_mut(b_len)).enumerate();
                pairs.for_each(|(i, (a, b))| work(i, a, b));
            }
        }
    }
}
