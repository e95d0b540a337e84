//! Why a kernel couldn't be run.

use std::path::PathBuf;

use crate::host::Mismatch;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MslError {
    /// The library can't be loaded.
    #[error("can't load {}", path.display())]
    Load {
        /// The library.
        path: PathBuf,
        /// Why.
        source: libloading::Error,
    },
    /// The library has no such function.
    #[error("the library has no `{name}`")]
    Function {
        /// Its name.
        name: String,
        /// Why.
        source: libloading::Error,
    },
    /// A stack for a thread was refused.
    #[error("no memory for the stack of a thread")]
    Stack(#[source] std::io::Error),
    /// A call has other buffers than the kernel.
    #[error(transparent)]
    Mismatch(Mismatch),
    /// No kernel takes so many.
    #[error("`{kernel}` takes {found} buffers, which nobody here can call")]
    Arity {
        /// The kernel.
        kernel: &'static str,
        /// Buffers, shape included.
        found: usize,
    },
    /// A kernel wrote where it must not.
    #[error("`{kernel}` wrote beside its buffer {index}")]
    Beside {
        /// The kernel.
        kernel: &'static str,
        /// Which buffer; the shape has the last index.
        index: usize,
    },
    /// Threads wait for others that have ended, or that wait elsewhere.
    #[error("threads of `{kernel}` wait in vain: {how}")]
    Divergence {
        /// The kernel.
        kernel: &'static str,
        /// Who waits for what.
        how: String,
    },
}
