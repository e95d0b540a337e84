//! Slots in page-locked memory, which a CUDA device reads by itself: copies of experts then aren't staged by the driver.
//!
//! Page-locked memory can't be given back while it is, so a budget that is lowered takes nothing from these slots: they are
//! for machines that have memory to spare and a bus that is worth it.

#![allow(unsafe_code, reason = "the driver is told of memory by address")]

use std::ffi::c_void;

use candle_core::Device;
use candle_core::cuda_backend::cudarc::driver::sys::{cuMemHostRegister_v2, cuMemHostUnregister};
use forerun_arena::Arena;

/// The slots of an arena, locked until this is dropped.
pub(crate) struct Pinned {
    regions: Vec<*mut c_void>,
    device: Device,
    /// Keeps the memory: regions are unlocked before it goes.
    _arena: Arena,
}

// SAFETY: the addresses are only handed to the driver, which takes them on any thread; what lies there is never reached through
// them.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Locks all slots of `arena` for `device`.
    ///
    /// # Errors
    /// What the driver says, in words; then nothing stays locked.
    pub(crate) fn new(arena: &Arena, device: &Device) -> Result<Self, String> {
        let mut pinned = Self { regions: Vec::new(), device: device.clone(), _arena: arena.clone() };
        pinned.bind()?;
        for region in arena.regions(usize::MAX) {
            let start = region.cast::<c_void>();
            // SAFETY: the region is memory of `arena`, of which `_arena` keeps a clone until it was unlocked in `drop`. Locking
            // neither reads nor writes it; copies from it are made through leases, which the stack keeps until they are done.
            let locked = unsafe { cuMemHostRegister_v2(start, region.len(), 0) }.result();
            locked.map_err(|error| format!("its slots can't be page-locked: {error}"))?;
            pinned.regions.push(start);
        }
        Ok(pinned)
    }

    /// Makes the device's context that of this thread: the driver locks and unlocks for the one that is.
    fn bind(&self) -> Result<(), String> {
        let device = self.device.as_cuda_device().map_err(|error| error.to_string())?;
        device.cuda_stream().context().bind_to_thread().map_err(|error| error.to_string())
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.bind();
        for &start in &self.regions {
            // SAFETY: it was locked in `new` and is still there; no copy from it is under way, for each is waited for before its
            // lease goes. A failure leaves it locked until the process ends.
            let _ = unsafe { cuMemHostUnregister(start) };
        }
    }
}
