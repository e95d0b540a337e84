//! What a thread that fills or reads slots tells the system about itself.

/// Says that somebody waits for what this thread does. On Apple's systems it then runs on the fast cores, which threads without
/// such a class may have to leave to others; elsewhere there is nothing to say. A system that doesn't listen changes speed alone.
#[cfg(target_vendor = "apple")]
#[expect(unsafe_code, reason = "the call has no safe wrapper")]
pub fn somebody_waits() {
    // SAFETY: changes nothing but the calling thread's own scheduling class; the class is one of the system's, and the relative
    // priority 0 is always allowed.
    let _ = unsafe { libc::pthread_set_qos_class_self_np(libc::qos_class_t::QOS_CLASS_USER_INITIATED, 0) };
}

/// Says that somebody waits for what this thread does: nothing on this system, whose threads are all alike.
#[cfg(not(target_vendor = "apple"))]
pub fn somebody_waits() {}
