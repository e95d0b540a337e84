//! What a process may still commit.
//!
//! Windows promises every allocation a place in memory or in its page file, and refuses the ones that it can't promise, though
//! memory may be free. So there a plan must fit that limit too; other systems promise nothing.

#![cfg_attr(windows, expect(unsafe_code, reason = "a call of the system"))]

/// Bytes that this process may commit now; `None` where there is no such limit, or the system doesn't say.
#[cfg(windows)]
pub(crate) fn left_bytes() -> Option<u64> {
    use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};
    let mut status = MEMORYSTATUSEX {
        dwLength: u32::try_from(size_of::<MEMORYSTATUSEX>()).ok()?,
        ..MEMORYSTATUSEX::default()
    };
    // SAFETY: the structure lives through the call, and `dwLength` is its size, so the system writes nothing behind it.
    let is_told = unsafe { GlobalMemoryStatusEx(&raw mut status) } != 0;
    // Despite its name the page file's room is what may be committed, memory included.
    is_told.then_some(status.ullAvailPageFile)
}

/// Bytes that this process may commit now: there is no such limit on this system.
#[cfg(not(windows))]
pub(crate) fn left_bytes() -> Option<u64> {
    None
}

#[cfg(all(test, windows))]
mod tests {
    #[test]
    fn the_system_says_what_may_be_committed() {
        assert!(super::left_bytes().unwrap() > 1 << 20);
    }
}
