//! The thread that owns the ring.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::task::{Poll, Wake, Waker};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::super::pool::{Queue, perform};
use super::super::{Completed, Read};
use super::Shared;
use super::ring::{Event, Ring};
use crate::UringError;

/// How often, and how long apart, a kernel that refuses to be asked is looked at for what it had begun.
const LOOKS_MAX: u32 = 10_000;
const LOOK: Duration = Duration::from_millis(1);

/// Takes from the queue what the ring has places for, demands first; sleeps on the queue while the kernel has nothing,
/// and in the ring while it has. There it hears of new reads by a bell, if it has places for them.
pub(super) struct Reader {
    ring: Ring,
    bell: Arc<Bell>,
    waker: Waker,
    /// Whether the ring listens to the bell.
    is_listening: bool,
    shared: Arc<Shared>,
}

impl Reader {
    pub(super) fn new(ring: Ring, shared: Arc<Shared>) -> Result<Self, UringError> {
        let bell = Arc::new(Bell::new().map_err(|reason| UringError::Thread { reason })?);
        let waker = Waker::from(Arc::clone(&bell));
        Ok(Self { ring, bell, waker, is_listening: false, shared })
    }

    /// Reads until the queue is closed and the kernel has nothing any more.
    pub(super) fn run(mut self, queue: &Queue, done: &SyncSender<Completed>) {
        if let Err(error) = self.serve(queue, done) {
            // Set once, since this is the only place.
            let why = format!("the kernel stopped to serve the ring ({error})");
            self.ring.files().note(&why);
            let _ = self.shared.broken.set(why);
            self.serve_without(queue, done);
        }
    }

    fn serve(&mut self, queue: &Queue, done: &SyncSender<Completed>) -> io::Result<()> {
        loop {
            if self.ring.n_in_flight() == 0 {
                let Some(read) = queue.pop() else { return Ok(()) };
                self.begin(read, done);
            }
            self.turn(queue, done)?;
        }
    }

    /// Begins what can begin, waits until something is over, and gives that back.
    pub(super) fn turn(&mut self, queue: &Queue, done: &SyncSender<Completed>) -> io::Result<()> {
        self.fill(queue, done);
        if self.ring.n_in_flight() > 0 {
            self.ring.enter()?;
            self.reap(done);
        }
        Ok(())
    }

    /// Begins all that can begin, and listens for more if more could.
    pub(super) fn fill(&mut self, queue: &Queue, done: &SyncSender<Completed>) {
        while !self.ring.is_full() {
            match queue.poll_pop(&self.waker) {
                Poll::Ready(Some(read)) => self.begin(read, done),
                Poll::Ready(None) => return,
                Poll::Pending => {
                    if !self.is_listening {
                        self.ring.listen(self.bell.0.as_fd());
                        self.is_listening = true;
                    }
                    return;
                }
            }
        }
    }

    fn begin(&mut self, read: Read, done: &SyncSender<Completed>) {
        match self.ring.begin(read) {
            Ok(is_fixed) => {
                self.shared.n_fixed.fetch_add(u64::from(is_fixed), Ordering::Relaxed);
            }
            Err(completed) => give_back(completed, done),
        }
    }

    /// Gives back what is over.
    fn reap(&mut self, done: &SyncSender<Completed>) {
        while let Some(event) = self.ring.next() {
            match event {
                Event::Bell => {
                    self.bell.quiet();
                    self.is_listening = false;
                }
                Event::Read(completed) => give_back(self.again_if_refused(completed), done),
            }
        }
    }

    /// A direct read that the file system refuses is one for the page cache.
    fn again_if_refused(&self, completed: Completed) -> Completed {
        match &completed.result {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => self.read(completed.read),
            _ => completed,
        }
    }

    /// Reads without the ring.
    fn read(&self, read: Read) -> Completed {
        perform(read, |file, buffers, offset_bytes| self.ring.files().read_at(file, buffers, offset_bytes))
    }

    /// Waits for what the kernel has, and serves the rest without the ring. What the kernel never gives back ends the
    /// thread, and leaks.
    fn serve_without(&mut self, queue: &Queue, done: &SyncSender<Completed>) {
        // The kernel may go on with what it has, and only refuse to be asked.
        for _ in 0..LOOKS_MAX {
            if self.ring.n_in_flight() == 0 {
                break;
            }
            if self.ring.enter().is_err() {
                pause(LOOK);
            }
            self.reap(done);
        }
        if self.ring.n_in_flight() > 0 {
            return;
        }
        while let Some(read) = queue.pop() {
            give_back(self.read(read), done);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the thread waits for a kernel that answers no calls")]
fn pause(span: Duration) {
    std::thread::sleep(span);
}

/// Nobody is there to take it while the backend is dropped, which frees the slots.
fn give_back(completed: Completed, done: &SyncSender<Completed>) {
    let _ = done.send(completed);
}

/// Wakes a thread that sleeps in a ring.
struct Bell(OwnedFd);

impl Bell {
    fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Forgets that it rang.
    fn quiet(&self) {
        // Fails only if it never rang.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        // Fails only after 2^64 rings that nobody heard.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use forerun_arena::Arena;

    use super::super::tests::{SLOT_BYTES, check_bytes, contents, direct, read, reader, window};

    #[test]
    fn a_read_that_comes_while_the_ring_sleeps_wakes_it_each_time() {
        let Some(files) = direct(&[contents()]) else { return };
        let arena = Arena::new(2, SLOT_BYTES).unwrap();
        let (mut reader, queue, sender, _done) = reader(files, 2);
        for slot in 0..2 {
            reader.fill(&queue, &sender);
            let read = read(slot.into(), 1, window(&arena, slot, 0..16));
            thread::scope(|scope| {
                let push = || queue.push(read);
                thread::Builder::new().spawn_scoped(scope, push).unwrap();
                // The kernel has no read: only the bell can end this.
                reader.ring.enter().unwrap();
            });
            assert_eq!(reader.ring.n_in_flight(), 0);
            assert!(reader.is_listening);
            reader.reap(&sender);
            assert!(!reader.is_listening);
            assert!(queue.withdraw(crate::Tag(slot.into())).is_some());
        }
    }
    #[test]
    fn without_the_ring_nothing_is_lost() {
        let Some(files) = direct(&[contents()]) else { return };
        let arena = Arena::new(3, SLOT_BYTES).unwrap();
        let (mut reader, queue, sender, done) = reader(files, 2);
        for slot in 0..3 {
            queue.push(read(slot.into(), 1, window(&arena, slot, 0..16)));
        }
        reader.fill(&queue, &sender);
        assert_eq!(reader.ring.n_in_flight(), 2);
        thread::scope(|scope| {
            let serve = || reader.serve_without(&queue, &sender);
            thread::Builder::new().spawn_scoped(scope, serve).unwrap();
            let mut over: Vec<_> = done.iter().take(3).collect();
            queue.close();
            over.iter_mut().for_each(check_bytes);
            over.sort_by_key(|completed| completed.read.tag);
            assert_eq!(over.iter().map(|completed| completed.read.tag.0).collect::<Vec<_>>(), [0, 1, 2]);
        });
    }
}
