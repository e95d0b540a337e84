//! What the pool is made of: the standard library's parts, or loom's, whose model checker drives the tests.

#[cfg(not(loom))]
pub(super) use std::sync::Arc;
#[cfg(not(loom))]
pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub(super) use std::thread::{JoinHandle, park};

#[cfg(loom)]
pub(super) use loom::cell::UnsafeCell;
#[cfg(loom)]
pub(super) use loom::sync::Arc;
#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub(super) use loom::thread::{JoinHandle, park};

/// The stack of a worker; kernels keep their scratch in the tens of KiB.
#[cfg(not(loom))]
const STACK_BYTES: usize = 512 * 1024;

/// How often a worker looks for the next call before it parks, some hundred microseconds: longer than any pause of a
/// step whose weights are in place, too short to keep a core busy while a disk is waited for.
#[cfg(not(loom))]
pub(super) const SPINS_UNTIL_PARKED: usize = 1 << 12;
#[cfg(loom)]
pub(super) const SPINS_UNTIL_PARKED: usize = 0;
/// How often a thread looks for another that is at work before it lets others run: longer than shares of one length
/// differ when each thread has a core.
#[cfg(not(loom))]
const SPINS_UNTIL_YIELD: usize = 1 << 14;
/// The same where there are more threads than cores, so that the other may be waiting for this one's.
#[cfg(not(loom))]
const SPINS_WHEN_CROWDED: usize = 1 << 6;

/// Whether there are more threads than cores.
#[cfg(not(loom))]
pub(super) fn is_crowded(n_threads: usize) -> bool {
    std::thread::available_parallelism().is_ok_and(|cores| n_threads > cores.get())
}

/// Whether there are more threads than cores.
#[cfg(loom)]
pub(super) fn is_crowded(_: usize) -> bool {
    false
}

/// A new thread.
#[cfg(not(loom))]
pub(super) fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(|| {
        forerun_arena::threads::somebody_waits();
        run();
    })
}

/// A new thread.
#[cfg(loom)]
pub(super) fn spawn(_: String, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    Ok(loom::thread::spawn(run))
}

/// One turn of waiting for another thread; `turns` counts them.
#[cfg(not(loom))]
pub(super) fn spin(turns: usize, is_crowded: bool) {
    if turns < if is_crowded { SPINS_WHEN_CROWDED } else { SPINS_UNTIL_YIELD } {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// One turn of waiting for another thread.
#[cfg(loom)]
pub(super) fn spin(_: usize, _: bool) {
    loom::thread::yield_now();
}

/// A cell with loom's way of access.
#[cfg(not(loom))]
#[derive(Debug)]
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(super) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    pub(super) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    pub(super) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
