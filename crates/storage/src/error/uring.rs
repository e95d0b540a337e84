//! Why `io_uring` can't be had, or not in full.

use std::io;

/// The kernel, or somebody's policy, refuses `io_uring` or a part of it. The text is the whole reason, for who falls
/// back and says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UringError {
    /// No ring at all.
    #[error("{} ({reason})", why_no_ring(reason))]
    Ring {
        /// The system's reason.
        reason: io::Error,
    },
    /// A ring that can't do what is needed.
    #[error("the kernel's io_uring has no {operation}")]
    Operation {
        /// The name of what is missing.
        operation: &'static str,
    },
    /// The kernel doesn't take the files.
    #[error("the kernel refuses to register {n_files} files ({reason})")]
    Files {
        /// Files of the set.
        n_files: usize,
        /// The system's reason.
        reason: io::Error,
    },
    /// The kernel doesn't take the slots. Reads work, with more work for the kernel.
    #[error("the kernel refuses to pin {bytes} bytes of slots{} ({reason})", what_helps(reason))]
    Buffers {
        /// Bytes of all slots.
        bytes: usize,
        /// The system's reason.
        reason: io::Error,
    },
    /// No thread to wait for the ring, or nothing to wake it by.
    #[error("the system refuses the ring's thread ({reason})")]
    Thread {
        /// The system's reason.
        reason: io::Error,
    },
}

fn why_no_ring(reason: &io::Error) -> &'static str {
    match reason.kind() {
        io::ErrorKind::Unsupported => "the kernel has no io_uring",
        io::ErrorKind::PermissionDenied => {
            "io_uring is forbidden here, by the sysctl kernel.io_uring_disabled or by a sandbox"
        }
        io::ErrorKind::OutOfMemory => {
            "the kernel has no memory for a ring; raise the limit of locked memory (ulimit -l)"
        }
        _ => "the kernel refuses a ring",
    }
}

fn what_helps(reason: &io::Error) -> &'static str {
    match reason.kind() {
        io::ErrorKind::OutOfMemory => "; raise the limit of locked memory (ulimit -l)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(error: UringError, expect: &str) {
        assert_eq!(error.to_string(), expect);
    }

    fn reason(code: i32) -> io::Error {
        io::Error::from_raw_os_error(code)
    }

    #[test]
    fn a_refusal_names_its_likely_cause() {
        check(
            UringError::Ring { reason: reason(libc::ENOSYS) },
            "the kernel has no io_uring (Function not implemented (os error 38))",
        );
        check(
            UringError::Ring { reason: reason(libc::EPERM) },
            "io_uring is forbidden here, by the sysctl kernel.io_uring_disabled or by a sandbox (Operation not \
             permitted (os error 1))",
        );
        check(
            UringError::Buffers { bytes: 8192, reason: reason(libc::ENOMEM) },
            "the kernel refuses to pin 8192 bytes of slots; raise the limit of locked memory (ulimit -l) (Cannot \
             allocate memory (os error 12))",
        );
    }
}
