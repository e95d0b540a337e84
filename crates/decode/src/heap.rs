//! Gives freed memory back to the system.
//!
//! Reading a vocabulary makes and drops hundreds of thousands of small strings. An allocator keeps their pages for
//! later, which never comes: everything large that follows is a mapping of its own. So they would count as ours for
//! good, outside the memory plan.

#![cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "a call of the C library")
)]

/// Returns the pages that the allocator keeps without need, where it can be told to.
pub(crate) fn release() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call touches only the allocator's own free lists, under its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
