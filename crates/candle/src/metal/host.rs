//! Buffers of a call in the host's memory: what tests give a kernel, on a GPU and off it.

use super::launch::{Access, Launch};

/// One buffer of a call.
#[derive(Debug)]
pub enum HostBuffer<'a> {
    /// Bytes that are read.
    Bytes(&'a [u8]),
    /// Numbers that are read.
    Floats(&'a [f32]),
    /// Whole numbers that are read.
    Words(&'a [u32]),
    /// Numbers that are written.
    Out(&'a mut [f32]),
}

/// Why a call's buffers aren't what it needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// There are more, or fewer.
    #[error("`{kernel}` takes {need} buffers, not {found}")]
    Count {
        /// The kernel.
        kernel: &'static str,
        /// How many it takes.
        need: usize,
        /// How many it was given.
        found: usize,
    },
    /// One is too small.
    #[error("buffer {index} of `{kernel}` has {found} bytes, not {need}")]
    Size {
        /// The kernel.
        kernel: &'static str,
        /// Which buffer.
        index: usize,
        /// How many bytes it should have at least.
        need: usize,
        /// How many it has.
        found: usize,
    },
    /// One is read that should be written, or the other way round.
    #[error("buffer {index} of `{kernel}` is for {access:?}")]
    Access {
        /// The kernel.
        kernel: &'static str,
        /// Which buffer.
        index: usize,
        /// What the kernel does with it.
        access: Access,
    },
}

impl HostBuffer<'_> {
    /// Bytes.
    #[expect(clippy::len_without_is_empty, reason = "a kernel's buffers are compared with what it needs")]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Floats(values) => 4 * values.len(),
            Self::Words(words) => 4 * words.len(),
            Self::Out(values) => 4 * values.len(),
        }
    }

    /// A copy of its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        match self {
            Self::Bytes(bytes) => bytes.to_vec(),
            Self::Floats(values) => floats(values),
            Self::Words(words) => words.iter().flat_map(|word| word.to_ne_bytes()).collect(),
            Self::Out(values) => floats(values),
        }
    }

    /// Takes over what a kernel has written; nothing when it only reads the buffer.
    pub fn fill(&mut self, bytes: impl Iterator<Item = u8>) {
        if let Self::Out(values) = self {
            let bytes: Vec<u8> = bytes.take(4 * values.len()).collect();
            for (value, bytes) in values.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_ne_bytes(*bytes);
            }
        }
    }
}

/// Compares buffers with what the call needs.
///
/// # Errors
/// [`Mismatch`] names the first that is wrong.
pub fn check(launch: &Launch, buffers: &[HostBuffer<'_>]) -> Result<(), Mismatch> {
    let (kernel, need, found) = (launch.kernel, launch.buffers.len(), buffers.len());
    if need != found {
        return Err(Mismatch::Count { kernel, need, found });
    }
    for (index, (need, buffer)) in launch.buffers.iter().zip(buffers).enumerate() {
        let (need, access, found) = (need.bytes, need.access, buffer.len());
        if found < need {
            return Err(Mismatch::Size { kernel, index, need, found });
        }
        if (access == Access::Write) != matches!(buffer, HostBuffer::Out(_)) {
            return Err(Mismatch::Access { kernel, index, access });
        }
    }
    Ok(())
}
