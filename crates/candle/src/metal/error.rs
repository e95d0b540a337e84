//! What may go wrong between the kernels and a GPU.

use candle_metal_kernels::MetalKernelError;

/// Why a kernel can't be used, or didn't end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetalError {
    /// Metal, or candle's layer above it, says no.
    #[error("Metal can't {doing}")]
    Metal {
        /// What was tried.
        doing: &'static str,
        /// Why not.
        source: MetalKernelError,
    },
    /// A GPU whose simdgroups the kernels aren't made for.
    #[error("this GPU's simdgroups have {found} threads; the kernels are for {need}")]
    Simdgroups {
        /// Threads of its simdgroups.
        found: usize,
        /// What the kernels count on.
        need: usize,
    },
    /// A kernel that takes more registers than so many threads have.
    #[error("`{kernel}` may have {max} threads in a threadgroup here, and this call wants {found}")]
    Threads {
        /// The kernel.
        kernel: &'static str,
        /// Most threads.
        max: usize,
        /// Threads of the call.
        found: usize,
    },
    /// A buffer isn't what the call needs.
    #[error("buffer {index} of `{kernel}` {rule}")]
    Buffer {
        /// The kernel.
        kernel: &'static str,
        /// Which buffer.
        index: usize,
        /// What it should be.
        rule: String,
    },
    /// The GPU gave up.
    #[error("the GPU gave up: {0}")]
    Failed(String),
    /// There is no Metal device.
    #[error("this machine has no Metal device")]
    NoDevice,
    /// Slots that no buffer can hold.
    #[error("a slot of {slot_bytes} bytes is larger than this GPU's largest buffer, {buffer_bytes} bytes")]
    SlotTooLarge {
        /// Bytes of a slot.
        slot_bytes: usize,
        /// Bytes of the largest buffer.
        buffer_bytes: usize,
    },
}

impl MetalError {
    /// Says what was tried.
    pub(super) fn while_(doing: &'static str) -> impl Fn(MetalKernelError) -> Self {
        move |source| Self::Metal { doing, source }
    }
}
