//! What went wrong last on a thread, and the wall that no panic passes.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::CapiError;
use crate::abi::{self, Status};

thread_local! {
    static WORDS: RefCell<CString> = RefCell::new(CString::default());
}

/// The words of the last failure on this thread.
pub(crate) fn words() -> *const c_char {
    // A thread that ends has none.
    WORDS.try_with(|words| words.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Runs `call` and makes a status of how it ends, a panic included; keeps the words of a failure.
///
/// A panic may leave what it touched half done: an engine's lock is poisoned by it, and the engine refuses to go on.
pub(crate) fn guarded(call: impl FnOnce() -> Result<(), CapiError>) -> Status {
    let ended = catch_unwind(AssertUnwindSafe(call));
    match ended.unwrap_or_else(|panic| Err(CapiError::Panicked { words: said(&*panic) })) {
        Ok(()) => abi::OK,
        Err(error) => {
            keep(&error);
            error.status()
        }
    }
}

fn keep(error: &CapiError) {
    // Names of a file may hold anything.
    let words = CString::new(error.words().replace('\0', "\u{fffd}")).unwrap_or_default();
    let _ = WORDS.try_with(|kept| *kept.borrow_mut() = words);
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("it says nothing")
        .to_owned()
}
