//! An arena's slots as a GPU sees them, without a copy.
//!
//! Two things must outlive a kernel that reads a slot: the memory, and what it holds.
//!
//! *The memory.* Each Metal buffer carries a block that owns a clone of the arena. Metal keeps a buffer for as long as a command
//! buffer that uses it is under way, and frees the block with the buffer; so pages are given back after the last kernel that could
//! touch them, in whatever order [`SlotBuffer`], arena and command buffers are dropped.
//!
//! *What it holds.* A slot is filled by whoever has its write lease, and none exists while a read lease lives. So the leases of what
//! was encoded are kept by [`InFlight`] until the command buffer has ended. The GPU only ever reads slots.

#![expect(unsafe_code, reason = "a Metal buffer over memory that others own")]

use std::ffi::c_void;
use std::ptr::NonNull;

use block2::RcBlock;
use candle_metal_kernels::metal::{Buffer, CommandBuffer, Device};
use candle_metal_kernels::{MetalKernelError, RESOURCE_OPTIONS};
use forerun_arena::{Arena, ReadLease};
use objc2_metal::{MTLCommandBufferStatus, MTLDevice};

use super::{Bound, MetalError};

/// Metal takes memory in whole pages of this size; slots are aligned to smaller ones.
const PAGE_BYTES: usize = 16 << 10;

/// Buffers over all slots of an arena.
#[derive(Debug)]
pub struct SlotBuffer {
    regions: Vec<Region>,
}

/// One buffer over some of the slots.
#[derive(Debug)]
struct Region {
    buffer: Buffer,
    /// Address of its first byte.
    start: usize,
    bytes: usize,
}

impl SlotBuffer {
    /// Shows `device` the slots of `arena`, in as few buffers as it takes.
    ///
    /// # Errors
    /// [`MetalError::SlotTooLarge`], and [`MetalError::Metal`] when the system refuses a buffer.
    pub fn new(device: &Device, arena: &Arena) -> Result<Self, MetalError> {
        if !cfg!(target_arch = "aarch64") {
            let source = MetalKernelError::FailedToCreateResource(
                "pages of 16 KiB, which only Apple silicon has".into(),
            );
            return Err(MetalError::Metal { doing: "show slots to the GPU", source });
        }
        let buffer_bytes = device.as_ref().maxBufferLength();
        // A region may grow by less than a page at both of its ends.
        let regions: Vec<_> = arena.regions(buffer_bytes.saturating_sub(2 * PAGE_BYTES)).collect();
        if regions.is_empty() {
            return Err(MetalError::SlotTooLarge { slot_bytes: arena.slot_bytes(), buffer_bytes });
        }
        let regions = regions.into_iter().map(|region| Region::new(device, arena, region));
        Ok(Self { regions: regions.collect::<Result<_, _>>()? })
    }

    /// The buffers, for a residency set.
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.regions.iter().map(|region| &region.buffer)
    }

    /// Whether a lease's bytes lie in a slot of this arena.
    pub fn has(&self, lease: &ReadLease) -> bool {
        self.find(lease).is_some()
    }

    /// Where a lease's bytes lie; `None` when they aren't in a slot of this arena, but in a mapped file, say.
    fn find(&self, lease: &ReadLease) -> Option<Bound<'_>> {
        let bytes = lease.bytes();
        let (start, len) = (bytes.as_ptr() as usize, bytes.len());
        let holds =
            |region: &&Region| start.checked_sub(region.start).is_some_and(|at| at + len <= region.bytes);
        let region = self.regions.iter().find(holds)?;
        Some(Bound { buffer: &region.buffer, offset_bytes: start - region.start })
    }
}

impl Region {
    fn new(device: &Device, arena: &Arena, region: *mut [u8]) -> Result<Self, MetalError> {
        let first = region.cast::<u8>();
        // An arena begins at a page, and the system maps whole ones, of 16 KiB as was seen to, so these bytes are the arena's as well: of slots beside the
        // region, or of the last page.
        let before = first as usize % PAGE_BYTES;
        let start = first.wrapping_sub(before);
        let bytes = (before + region.len()).next_multiple_of(PAGE_BYTES);
        let owner = arena.clone();
        let keep = RcBlock::new(move |_: NonNull<c_void>, _: usize| {
            // The clone goes with the block, not with this call.
            let _ = &owner;
        });
        let refused = || MetalError::Metal {
            doing: "show slots to the GPU",
            source: MetalKernelError::FailedToCreateResource("a buffer over slots".to_owned()),
        };
        let pointer = NonNull::new(start.cast::<c_void>()).ok_or_else(refused)?;
        // SAFETY: the bytes are whole pages of the arena's mapping, which lives as long as the arena's last clone, and the block has
        // one; an `Arena` may be sent to the thread on which Metal frees the block. Rust code reaches the bytes through leases alone,
        // and kernels read only slots whose read leases `InFlight` keeps.
        let raw = unsafe {
            device.as_ref().newBufferWithBytesNoCopy_length_options_deallocator(
                pointer,
                bytes,
                RESOURCE_OPTIONS,
                Some(&keep),
            )
        };
        Ok(Self { buffer: Buffer::new(raw.ok_or_else(refused)?), start: start as usize, bytes })
    }
}

/// Leases of the slots that a command buffer reads.
#[derive(Debug, Default)]
pub struct InFlight {
    leases: Vec<ReadLease>,
}

impl InFlight {
    /// Takes over a lease and says where its bytes lie in `slots`; gives the lease back when they lie elsewhere.
    ///
    /// # Errors
    /// The lease, whose bytes must be copied to the GPU.
    pub fn bind<'a>(&mut self, slots: &'a SlotBuffer, lease: ReadLease) -> Result<Bound<'a>, ReadLease> {
        let Some(bound) = slots.find(&lease) else { return Err(lease) };
        self.leases.push(lease);
        Ok(bound)
    }

    /// Leases that are kept.
    #[expect(clippy::len_without_is_empty, reason = "it is compared with a bound")]
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Waits until `commands`, which all calls on the leases' slots were encoded into and which was committed, has ended; then gives
    /// the leases back. They are kept when this value is dropped instead: a slot is lost rather than overwritten.
    ///
    /// # Errors
    /// [`MetalError::Failed`]; the leases are given back all the same, since a command buffer that failed reads no more.
    pub fn wait(&mut self, commands: &CommandBuffer) -> Result<(), MetalError> {
        commands.wait_until_completed();
        self.release();
        match commands.status() {
            MTLCommandBufferStatus::Completed => Ok(()),
            status => {
                let said = commands.error().map(std::borrow::Cow::into_owned);
                Err(MetalError::Failed(said.unwrap_or_else(|| format!("status {}", status.0))))
            }
        }
    }

    /// Gives the leases back, once the caller has waited for the whole device (candle's `wait_until_completed`, or a read-back that
    /// depends on all that was encoded).
    pub fn release(&mut self) {
        self.leases.clear();
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // Nobody has waited: the GPU may still read.
        self.leases.drain(..).for_each(std::mem::forget);
    }
}
