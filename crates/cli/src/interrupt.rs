//! Ctrl-C, and the system's request to end: asked for between two pieces of an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the user wants to stop. A second request, or one while nothing is made, ends the program at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    asked: AtomicBool,
    idle: AtomicBool,
}

impl Interrupt {
    /// Takes over Ctrl-C and the system's request to end.
    pub(crate) fn install() -> Result<Self, ctrlc::Error> {
        let interrupt = Self::default();
        let flags = Arc::clone(&interrupt.0);
        ctrlc::set_handler(move || {
            if flags.idle.load(Ordering::Relaxed) || flags.asked.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        })?;
        Ok(interrupt)
    }

    /// Whether the user asked since the last [`Self::clear`].
    pub(crate) fn is_set(&self) -> bool {
        self.0.asked.load(Ordering::Relaxed)
    }

    /// Forgets the request.
    pub(crate) fn clear(&self) {
        self.0.asked.store(false, Ordering::Relaxed);
    }

    /// Runs `wait`, during which a request ends the program: nothing is lost by it.
    pub(crate) fn while_idle<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.0.idle.store(true, Ordering::Relaxed);
        let result = wait();
        self.0.idle.store(false, Ordering::Relaxed);
        result
    }
}
