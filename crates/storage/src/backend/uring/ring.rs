//! The ring, and all that the kernel may write to: a read's slots belong to it from [`Ring::begin`] until [`Ring::next`]
//! brings the read back, whatever becomes of the threads.

#![expect(unsafe_code, reason = "the kernel reads and writes memory by the addresses that it is given")]

use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::thread;

use forerun_arena::{Arena, Window};
use io_uring::{IoUring, Probe, opcode, squeue, types};

use super::super::{Completed, DirectFiles, Read};
use crate::UringError;

/// The kernel's limit of a registered buffer.
pub(super) const BUFFER_BYTES_MAX: usize = 1 << 30;

/// The kernel's limit of one read, which leaves the rest of a longer one to the next.
const READ_BYTES_MAX: usize = 0x7fff_f000;

/// The kernel's limit of the parts of one read, as above.
const PARTS_MAX: usize = libc::UIO_MAXIOV as usize;

/// Names the bell among the reads, which are named by their places.
const BELL: u64 = u64::MAX;

/// What the kernel must be able to do.
const OPERATIONS: [(&str, u8); 4] = [
    ("READ", opcode::Read::CODE),
    ("READV", opcode::Readv::CODE),
    ("READ_FIXED", opcode::ReadFixed::CODE),
    ("POLL_ADD", opcode::PollAdd::CODE),
];

/// A ring of a few places, each for a read that the kernel has.
pub(super) struct Ring {
    uring: IoUring,
    files: DirectFiles,
    /// Address ranges of the registered buffers, in the order of their indices.
    pinned: Vec<Range<usize>>,
    /// Keeps the memory of `pinned` where it is.
    _arena: Option<Arena>,
    places: Box<[Place]>,
    /// Indices of places without a read.
    free: Vec<usize>,
}

/// Of a read that the kernel has, or of none.
#[derive(Default)]
struct Place {
    read: Option<Read>,
    /// Where the windows of `read` lie.
    parts: Vec<libc::iovec>,
}

// SAFETY: the addresses in `parts` are those of the windows in `read`, which may go to another thread themselves; nobody
// but the kernel follows them.
unsafe impl Send for Place {}

/// Something that is over.
pub(super) enum Event {
    Read(Completed),
    /// The bell that was listened to rang.
    Bell,
}

impl Ring {
    /// A ring for at most `n_places` reads of `files` at once.
    pub(super) fn new(files: DirectFiles, n_places: usize) -> Result<Self, UringError> {
        // One more for the bell. A number that the kernel doesn't take is its to refuse.
        let n_entries = u32::try_from(n_places).unwrap_or(u32::MAX).saturating_add(1);
        let uring = IoUring::new(n_entries).map_err(|reason| UringError::Ring { reason })?;
        let mut probe = Probe::new();
        // Kernels too old to be asked lack READ too.
        let known = uring.submitter().register_probe(&mut probe).is_ok();
        let missing = OPERATIONS.into_iter().find(|&(_, code)| !known || !probe.is_supported(code));
        if let Some((operation, _)) = missing {
            return Err(UringError::Operation { operation });
        }
        let fds: Vec<_> = (0..=u16::MAX).map_while(|file| files.file(file)).map(AsRawFd::as_raw_fd).collect();
        if !fds.is_empty() {
            let n_files = fds.len();
            let registered = uring.submitter().register_files(&fds);
            registered.map_err(|reason| UringError::Files { n_files, reason })?;
        }
        let places = (0..n_places).map(|_| Place::default()).collect();
        let free = (0..n_places).rev().collect();
        Ok(Self { uring, files, pinned: Vec::new(), _arena: None, places, free })
    }

    /// Registers the slots of `arena`, all or none, in buffers of at most `buffer_bytes_max`.
    pub(super) fn pin(&mut self, arena: &Arena, buffer_bytes_max: usize) -> Result<(), UringError> {
        let bytes = arena.n_slots() * arena.slot_bytes();
        let buffers: Vec<_> = arena
            .regions(buffer_bytes_max)
            .map(|region| libc::iovec { iov_base: region.cast(), iov_len: region.len() })
            .collect();
        // SAFETY: the buffers are memory of `arena`, of which `_arena` keeps a clone for as long as the ring lives. The
        // kernel writes into them only for the reads of `begin`.
        let registered = unsafe { self.uring.submitter().register_buffers(&buffers) };
        registered.map_err(|reason| UringError::Buffers { bytes, reason })?;
        self.pinned = buffers.iter().map(address_range).collect();
        self._arena = Some(arena.clone());
        Ok(())
    }

    pub(super) fn files(&self) -> &DirectFiles {
        &self.files
    }

    /// Reads that the kernel has, or gets with the next [`Self::enter`].
    pub(super) fn n_in_flight(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Takes a read, for the kernel to get with the next [`Self::enter`]. Says whether it goes into pinned slots.
    ///
    /// # Errors
    /// One that is over already: it asks for nothing, or for an unknown file.
    ///
    /// # Panics
    /// When the ring is full.
    pub(super) fn begin(&mut self, mut read: Read) -> Result<bool, Completed> {
        let place_idx = *self.free.last().expect("the caller looked for a free place");
        let place = &mut self.places[place_idx];
        place.parts.clear();
        place
            .parts
            .extend(read.windows.iter_mut().filter(|window| !window.is_empty()).take(PARTS_MAX).map(part));
        if place.parts.is_empty() {
            return Err(Completed { read, result: Ok(0) });
        }
        if self.files.file(read.file).is_none() {
            return Err(Completed { read, result: Err(io::ErrorKind::NotFound.into()) });
        }
        let (entry, is_fixed) = entry(&read, &place.parts, &self.pinned);
        // SAFETY: `entry` leads to the windows of `read` and to `parts`, both of which stay in their place, untouched,
        // until `next` hears from the kernel that it is done; `drop` waits for that too, or leaks them. Windows are the
        // exclusive right to their bytes.
        let pushed = unsafe { self.uring.submission().push(&entry.user_data(place_idx as u64)) };
        pushed.expect("the ring has an entry for each place and the bell");
        place.read = Some(read);
        self.free.pop();
        Ok(is_fixed)
    }

    /// Has [`Event::Bell`] come once when `bell` can be read.
    ///
    /// # Panics
    /// When it is listened to already.
    pub(super) fn listen(&mut self, bell: BorrowedFd<'_>) {
        let entry = opcode::PollAdd::new(types::Fd(bell.as_raw_fd()), libc::POLLIN as u32).build();
        // SAFETY: the entry names no memory.
        let pushed = unsafe { self.uring.submission().push(&entry.user_data(BELL)) };
        pushed.expect("the ring has an entry for each place and the bell");
    }

    /// Hands what was begun to the kernel, all at once, and sleeps until something is over; now and then it wakes early.
    ///
    /// # Errors
    /// The ring is of no use any more. What was begun and not handed over never will be.
    pub(super) fn enter(&mut self) -> io::Result<()> {
        match self.uring.submit_and_wait(1) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => Ok(()),
                // The kernel is short of memory for what was begun; the caller comes again.
                Some(libc::EAGAIN | libc::EBUSY) => {
                    thread::yield_now();
                    Ok(())
                }
                _ => Err(error),
            },
        }
    }

    /// The next of what is over.
    pub(super) fn next(&mut self) -> Option<Event> {
        let entry = self.uring.completion().next()?;
        if entry.user_data() == BELL {
            return Some(Event::Bell);
        }
        let place_idx = usize::try_from(entry.user_data()).expect("the index of a place");
        let read = self.places[place_idx].read.take().expect("the kernel answers each read once");
        self.free.push(place_idx);
        let failed = |_| io::Error::from_raw_os_error(entry.result().saturating_neg());
        Some(Event::Read(Completed { read, result: u64::try_from(entry.result()).map_err(failed) }))
    }
}

impl Drop for Ring {
    /// Waits for the kernel to be done with the memory of all reads.
    fn drop(&mut self) {
        while self.n_in_flight() > 0 {
            if self.enter().is_err() {
                // Nobody will ever say when the kernel is done, so it keeps the memory.
                mem::forget(mem::take(&mut self.places));
                return;
            }
            while self.next().is_some() {}
        }
    }
}

/// What the kernel is told of a read; whether it goes into a buffer of `pinned`.
fn entry(read: &Read, parts: &[libc::iovec], pinned: &[Range<usize>]) -> (squeue::Entry, bool) {
    let (file, offset_bytes) = (types::Fixed(read.file.into()), read.offset_bytes);
    let [part] = parts else {
        let n_parts = u32::try_from(parts.len()).expect("at most PARTS_MAX");
        return (opcode::Readv::new(file, parts.as_ptr(), n_parts).offset(offset_bytes).build(), false);
    };
    let len = u32::try_from(part.iov_len.min(READ_BYTES_MAX)).expect("READ_BYTES_MAX fits");
    let Range { start, end } = address_range(part);
    let buffer_idx = pinned.iter().position(|buffer| buffer.start <= start && end <= buffer.end);
    match buffer_idx.map(u16::try_from) {
        Some(Ok(idx)) => {
            let read = opcode::ReadFixed::new(file, part.iov_base.cast(), len, idx);
            (read.offset(offset_bytes).build(), true)
        }
        _ => (opcode::Read::new(file, part.iov_base.cast(), len).offset(offset_bytes).build(), false),
    }
}

fn part(window: &mut Window) -> libc::iovec {
    let bytes = window.bytes_mut();
    libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }
}

fn address_range(part: &libc::iovec) -> Range<usize> {
    let start = part.iov_base.addr();
    start..start + part.iov_len
}
