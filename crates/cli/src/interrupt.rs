//! Ctrl-C, and the system's request to end: asked for between two pieces of an answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Whether the user wants to stop. A second request, or one while nothing is made, ends the program at once.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<Flags>);

#[derive(Default)]
struct Flags {
    asked: AtomicBool,
    idle: AtomicBool,
    told: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Flags {
    /// Tells the one who waits for the request, once.
    fn tell(&self) {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(tell) = told {
            tell();
        }
    }
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
            flags.tell();
        })?;
        Ok(interrupt)
    }

    /// Whether the user asked since the last [`Self::clear`].
    pub(crate) fn is_set(&self) -> bool {
        self.0.asked.load(Ordering::Relaxed)
    }

    /// Calls `tell` at the first request, at once if it was made already.
    pub(crate) fn on_ask(&self, tell: impl FnOnce() + Send + 'static) {
        *self.0.told.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(tell));
        if self.is_set() {
            self.0.tell();
        }
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
