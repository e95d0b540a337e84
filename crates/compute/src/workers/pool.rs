//! Fork and join in about a microsecond: workers spin for a while between calls, then park.

#![expect(
    unsafe_code,
    reason = "lends a closure to threads that outlive it; a call ends when all are done with it"
)]

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::{fmt, io, mem};

use super::Share;
use super::sync::{
    Arc, AtomicBool, AtomicUsize, JoinHandle, Ordering, SPINS_UNTIL_PARKED, UnsafeCell, fence, is_crowded,
    park, spawn, spin,
};

/// Threads that wait for work. The caller of [`Self::run`] is one of them, and there is only one caller at a time.
pub(super) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// Keeps what one thread writes out of the cache lines that another spins on.
#[repr(align(128))]
struct Lone<T>(T);

pub(super) struct Shared {
    n_threads: usize,
    is_crowded: bool,
    /// Counts calls; a worker that sees a new number finds the work in `work`.
    call: Lone<AtomicUsize>,
    work: UnsafeCell<Option<Work>>,
    /// Workers that are done with the call.
    done: Lone<AtomicUsize>,
    /// Threads that came to the barriers of this call, over all of its barriers.
    arrived: Lone<AtomicUsize>,
    /// Whether each worker sleeps, or is about to.
    parked: Box<[Lone<AtomicBool>]>,
    /// A thread panicked, so nobody waits at a barrier any more.
    broken: AtomicBool,
    /// What the first one panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
}

/// The caller's closure, which lives until `run` returns.
#[derive(Clone, Copy)]
struct Work(*const (dyn Fn(Share<'_>) + Sync + 'static));

// SAFETY: the closure behind the pointer is `Sync`, and `run` keeps it alive until every worker is done with it.
unsafe impl Send for Work {}
// SAFETY: `work` is written before `call` is raised, which the workers wait for, and not again before all are done.
unsafe impl Sync for Shared {}

impl Pool {
    /// `n_threads` threads, the caller's among them.
    pub(super) fn new(n_threads: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            n_threads,
            is_crowded: is_crowded(n_threads),
            call: Lone(AtomicUsize::new(0)),
            work: UnsafeCell::new(None),
            done: Lone(AtomicUsize::new(0)),
            arrived: Lone(AtomicUsize::new(0)),
            parked: (0..n_threads).map(|_| Lone(AtomicBool::new(false))).collect(),
            broken: AtomicBool::new(false),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        let mut pool = Self { shared, workers: Vec::new() };
        for index in 1..n_threads {
            let shared = Arc::clone(&pool.shared);
            // If this fails, dropping the pool ends those that are there.
            pool.workers.push(spawn(format!("compute-{index}"), move || shared.serve(index))?);
        }
        Ok(pool)
    }

    /// Threads.
    pub(super) fn n_threads(&self) -> usize {
        self.shared.n_threads
    }

    /// Calls `work` on every thread and returns when all are done.
    pub(super) fn run(&self, work: &(dyn Fn(Share<'_>) + Sync)) {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; `work` outlives this function, which returns when nobody uses it any more.
        let work: *const (dyn Fn(Share<'_>) + Sync + 'static) = unsafe { mem::transmute(work) };
        // SAFETY: no call is under way, so no worker reads it.
        shared.work.with_mut(|slot| unsafe { *slot = Some(Work(work)) });
        shared.done.0.store(0, Ordering::Relaxed);
        shared.arrived.0.store(0, Ordering::Relaxed);
        self.wake();
        shared.work_on(0, Work(work));
        let mut turns = 0;
        while shared.done.0.load(Ordering::Acquire) != self.workers.len() {
            spin(turns, shared.is_crowded);
            turns += 1;
        }
        if shared.broken.load(Ordering::Relaxed) {
            shared.broken.store(false, Ordering::Relaxed);
            let payload = shared.panic.lock().ok().and_then(|mut panic| panic.take());
            panic::resume_unwind(payload.unwrap_or_else(|| Box::new("a compute thread panicked")));
        }
    }

    /// Raises the call and unparks who sleeps.
    fn wake(&self) {
        self.shared.call.0.fetch_add(1, Ordering::Release);
        // With its twin where a worker parks: either it sees the new call, or this sees it parked.
        fence(Ordering::SeqCst);
        for (worker, parked) in self.workers.iter().zip(&self.shared.parked[1..]) {
            if parked.0.load(Ordering::Relaxed) {
                worker.thread().unpark();
            }
        }
    }
}

impl Shared {
    /// The life of a worker.
    fn serve(&self, index: usize) {
        let mut seen = 0;
        loop {
            self.await_call(index, seen);
            seen += 1;
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            // SAFETY: written before the call was raised, and not again before `done` says that this worker is through.
            let work = self.work.with(|slot| unsafe { *slot });
            if let Some(work) = work {
                self.work_on(index, work);
            }
            self.done.0.fetch_add(1, Ordering::Release);
        }
    }

    /// Spins, then parks, until there was another call than `seen`.
    fn await_call(&self, index: usize, seen: usize) {
        let mut turns = 0;
        while self.call.0.load(Ordering::Acquire) == seen {
            if turns < SPINS_UNTIL_PARKED {
                spin(turns, self.is_crowded);
                turns += 1;
                continue;
            }
            let parked = &self.parked[index].0;
            parked.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            while self.call.0.load(Ordering::Acquire) == seen {
                park();
            }
            parked.store(false, Ordering::Relaxed);
        }
    }

    /// Runs one thread's share and keeps the first panic.
    fn work_on(&self, index: usize, work: Work) {
        let share = Share { index, count: self.n_threads, others: Some(self) };
        // SAFETY: `run` returns, and its closure dies, only after this thread is done.
        let result = panic::catch_unwind(AssertUnwindSafe(|| unsafe { (*work.0)(share) }));
        if let Err(payload) = result {
            let is_first = !self.broken.swap(true, Ordering::Relaxed);
            match self.panic.lock() {
                Ok(mut panic) if is_first => *panic = Some(payload),
                // Others mostly met the broken barrier. Dropping what they have to tell could panic once more, past here.
                _ => mem::forget(payload),
            }
        }
    }

    /// The barrier of [`Share::wait`].
    pub(super) fn wait(&self) {
        let Self { n_threads, is_crowded, arrived, broken, .. } = self;
        // AcqRel: what each thread wrote before the barrier happens before what any reads after it.
        let before = arrived.0.fetch_add(1, Ordering::AcqRel);
        let target = (before / n_threads + 1) * n_threads;
        let mut turns = 0;
        while arrived.0.load(Ordering::Acquire) < target {
            assert!(!broken.load(Ordering::Relaxed), "another compute thread panicked");
            spin(turns, *is_crowded);
            turns += 1;
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.wake();
        for worker in self.workers.drain(..) {
            // A worker's panics were caught; there is nothing to learn here.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("n_threads", &self.n_threads()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn every_thread_works_once_a_call_and_meets_the_others_at_barriers() {
        for n_threads in 2..=4 {
            let pool = Pool::new(n_threads).unwrap();
            for _ in 0..200 {
                let (first, second) = (AtomicUsize::new(0), AtomicUsize::new(0));
                pool.run(&|share| {
                    first.fetch_add(1, Ordering::Relaxed);
                    share.wait();
                    assert_eq!(first.load(Ordering::Relaxed), n_threads);
                    second.fetch_add(1, Ordering::Relaxed);
                    share.wait();
                    assert_eq!(second.load(Ordering::Relaxed), n_threads);
                });
            }
        }
    }

    #[test]
    fn a_parked_worker_wakes() {
        let pool = Pool::new(2).unwrap();
        for _ in 0..3 {
            while !pool.shared.parked[1].0.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            let count = AtomicUsize::new(0);
            pool.run(&|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 2);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3).unwrap();
        for bad in 0..3 {
            let run = || {
                pool.run(&|share| {
                    assert!(share.index != bad, "share {bad}");
                    share.wait();
                });
            };
            let payload = panic::catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            assert_eq!(payload.downcast_ref::<String>(), Some(&format!("share {bad}")));
            pool.run(&|share| share.wait());
        }
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;

    /// What a share writes before a barrier is read by the other after it, over two calls, parked or not.
    #[test]
    fn calls_and_barriers_order_what_is_written() {
        // Threads that wait for each other branch without end; two preemptions find what more would.
        let mut model = loom::model::Builder::new();
        (model.max_branches, model.preemption_bound) = (100_000, Some(2));
        model.check(|| {
            let pool = Pool::new(2).unwrap();
            for _ in 0..2 {
                let cells: [UnsafeCell<usize>; 2] = [UnsafeCell::new(0), UnsafeCell::new(0)];
                let cells = Cells(&cells);
                pool.run(&|share| {
                    // SAFETY: loom reports it if these accesses weren't ordered.
                    cells.get(share.index).with_mut(|v| unsafe { *v = share.index + 1 });
                    share.wait();
                    // SAFETY: as above.
                    cells.get(1 - share.index).with(|v| assert_eq!(unsafe { *v }, 2 - share.index));
                });
            }
        });
    }

    #[derive(Clone, Copy)]
    struct Cells<'a>(&'a [UnsafeCell<usize>; 2]);

    impl Cells<'_> {
        fn get(&self, i: usize) -> &UnsafeCell<usize> {
            &self.0[i]
        }
    }

    // SAFETY: loom's cells report accesses that aren't ordered.
    unsafe impl Sync for Cells<'_> {}
}
