//! What backends with threads of their own share: the half that their owner sees, and the queue before the threads.

use std::io::{self, IoSliceMut};
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use forerun_model::{Clock, Nanos};

use super::queue::Waiting;
use super::{Completed, Limits, Read, Tag};

/// A worker calls the system and copies nothing: it needs next to no stack.
const STACK_BYTES: usize = 64 << 10;

/// Workers that take reads from one queue and hand them back through one channel. They end with it: dropping it frees
/// what no worker has begun, and waits for the rest.
pub(crate) struct Pool {
    limits: Limits,
    clock: Arc<dyn Clock>,
    queue: Arc<Queue>,
    done: Receiver<Completed>,
    workers: Vec<JoinHandle<()>>,
    n_in_flight: usize,
}

impl Pool {
    /// Starts a thread for each named worker. `clock` is what `until` of [`Self::wait`] is compared with; its time must
    /// pass as the machine's does.
    ///
    /// A worker returns when the queue is closed, and until then gives back every read that it took.
    pub(crate) fn start<W>(
        limits: Limits,
        clock: Arc<dyn Clock>,
        workers: impl IntoIterator<Item = (String, W)>,
    ) -> io::Result<Self>
    where
        W: FnOnce(&Queue, &SyncSender<Completed>) + Send + 'static,
    {
        // As deep as the queue, so that a worker never waits to hand over what it read.
        let (sender, done) = mpsc::sync_channel(limits.depth);
        let queue = Arc::new(Queue::default());
        let mut pool = Self { limits, clock, queue, done, workers: Vec::new(), n_in_flight: 0 };
        for (name, work) in workers {
            let (queue, sender) = (Arc::clone(&pool.queue), sender.clone());
            let thread = thread::Builder::new().name(name).stack_size(STACK_BYTES);
            pool.workers.push(thread.spawn(move || {
                forerun_arena::threads::somebody_waits();
                work(&queue, &sender);
            })?);
        }
        Ok(pool)
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn submit(&mut self, read: Read) -> Result<(), Read> {
        if self.n_in_flight == self.limits.depth {
            return Err(read);
        }
        read.assert_aligned(self.limits.align_bytes);
        self.queue.push(read);
        self.n_in_flight += 1;
        Ok(())
    }

    pub(crate) fn withdraw(&mut self, tag: Tag) -> Option<Read> {
        let read = self.queue.withdraw(tag);
        self.n_in_flight -= usize::from(read.is_some());
        read
    }

    /// Panics when the workers are gone though reads are in flight: they never come back.
    pub(crate) fn wait(&mut self, until: Nanos, done: &mut Vec<Completed>) {
        let before = done.len();
        done.extend(self.done.try_iter());
        if done.len() == before && self.n_in_flight > 0 {
            let first = match until {
                Nanos::MAX => self.done.recv().map_err(RecvTimeoutError::from),
                _ => self.done.recv_timeout(Duration::from_nanos((until - self.clock.now()).0)),
            };
            match first {
                Ok(first) => done.push(first),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("the reader threads ended, and {} reads with them", self.n_in_flight)
                }
            }
            done.extend(self.done.try_iter());
        }
        self.n_in_flight -= done.len() - before;
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue.close();
        for worker in self.workers.drain(..) {
            // A worker that panicked has said so on stderr; there is nobody left to tell.
            let _ = worker.join();
        }
    }
}

/// Reads that no worker has begun.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    reads: Waiting,
    closed: bool,
    /// A worker that sleeps elsewhere than on `changed`.
    sleeper: Option<Waker>,
}

impl Queue {
    pub(crate) fn push(&self, read: Read) {
        let mut state = self.lock();
        state.reads.push(read);
        self.wake(state);
    }

    /// The next read, as soon as there is one; `None` once closed.
    pub(crate) fn pop(&self) -> Option<Read> {
        let mut state = self.lock();
        state.sleeper = None;
        let state = self.changed.wait_while(state, |state| state.reads.is_empty() && !state.closed);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.closed { None } else { state.reads.pop() }
    }

    /// [`Self::pop`] for the only worker of a queue, which sleeps elsewhere: `sleeper` is woken once, as soon as asking
    /// again would help.
    #[cfg_attr(
        not(any(test, target_os = "linux")),
        expect(dead_code, reason = "only Linux has a worker that sleeps elsewhere")
    )]
    pub(crate) fn poll_pop(&self, sleeper: &Waker) -> Poll<Option<Read>> {
        let mut state = self.lock();
        state.sleeper = None;
        if state.closed {
            return Poll::Ready(None);
        }
        match state.reads.pop() {
            Some(read) => Poll::Ready(Some(read)),
            None => {
                state.sleeper = Some(sleeper.clone());
                Poll::Pending
            }
        }
    }

    pub(crate) fn withdraw(&self, tag: Tag) -> Option<Read> {
        self.lock().reads.withdraw(tag)
    }

    /// Drops what no worker has begun, which frees its slots, and ends the workers.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.reads.clear();
        self.changed.notify_all();
        self.wake(state);
    }

    /// Wakes a worker; outside of the lock, which it takes first.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let sleeper = state.sleeper.take();
        drop(state);
        self.changed.notify_one();
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock can panic halfway through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Like [`Read::perform`], but a panic is a failed read: whoever waits must hear of it, and the slot must come back.
pub(crate) fn perform(
    mut read: Read,
    read_at: impl FnOnce(u16, &mut [IoSliceMut<'_>], u64) -> io::Result<usize>,
) -> Completed {
    // Unwind safe: after a panic the slot's bytes mean nothing, which is what an error says.
    let result = panic::catch_unwind(AssertUnwindSafe(|| read.perform(read_at)));
    let result = result.unwrap_or_else(|_| Err(io::Error::other("a reader thread panicked")));
    Completed { read, result }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::testing;

    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn read(tag: u64) -> Read {
        testing::read(Tag(tag), 0, testing::window(1))
    }

    #[test]
    fn a_panic_is_a_failed_read_and_gives_the_slot_back() {
        let completed = perform(read(9), |_, _, _| panic!("a bug in reading"));
        assert_eq!((completed.read.tag, completed.read.windows.len()), (Tag(9), 1));
        assert_eq!(completed.result.unwrap_err().kind(), io::ErrorKind::Other);
    }

    #[test]
    fn who_sleeps_elsewhere_is_woken_once_and_only_if_it_asked() {
        let (queue, woken) = (Queue::default(), Arc::new(Woken(AtomicUsize::new(0))));
        let (waker, n_woken) = (Waker::from(Arc::clone(&woken)), || woken.0.load(Ordering::Relaxed));
        queue.push(read(1));
        assert!(matches!(queue.poll_pop(&waker), Poll::Ready(Some(_))));
        queue.push(read(2));
        assert_eq!(n_woken(), 0);
        assert!(queue.poll_pop(&waker).is_ready());
        assert!(queue.poll_pop(&waker).is_pending());
        queue.push(read(3));
        queue.push(read(4));
        assert_eq!(n_woken(), 1);
        assert!(queue.pop().is_some() && queue.pop().is_some());
        assert!(queue.poll_pop(&waker).is_pending());
        queue.close();
        assert_eq!(n_woken(), 2);
        assert!(matches!(queue.poll_pop(&waker), Poll::Ready(None)));
    }

    #[test]
    #[should_panic(expected = "the reader threads ended, and 1 reads with them")]
    fn waiting_for_workers_that_are_gone_is_no_endless_wait() {
        let workers = [("lost".to_owned(), |queue: &Queue, _: &SyncSender<Completed>| drop(queue.pop()))];
        let clock = Arc::new(forerun_model::SystemClock::new());
        let mut pool = Pool::start(Limits { depth: 1, align_bytes: 1 }, clock, workers).unwrap();
        pool.submit(read(1)).unwrap();
        pool.wait(Nanos::MAX, &mut Vec::new());
    }
}
