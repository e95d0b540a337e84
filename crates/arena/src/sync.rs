//! The standard library's atomics, or loom's when its model checker drives the tests.

#[cfg(not(loom))]
pub(crate) use std::sync::Arc;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::Arc;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};

/// A stand-in for a slot's bytes. Loom reports accesses that aren't ordered; without loom it is nothing.
#[cfg(not(loom))]
pub(crate) struct Access;

#[cfg(not(loom))]
impl Access {
    pub(crate) fn new() -> Self {
        Self
    }

    pub(crate) fn read(&self) {}

    pub(crate) fn write(&self) {}
}

#[cfg(loom)]
pub(crate) struct Access(loom::cell::UnsafeCell<()>);

#[cfg(loom)]
impl Access {
    pub(crate) fn new() -> Self {
        Self(loom::cell::UnsafeCell::new(()))
    }

    pub(crate) fn read(&self) {
        self.0.with(|_| ());
    }

    pub(crate) fn write(&self) {
        self.0.with_mut(|_| ());
    }
}
