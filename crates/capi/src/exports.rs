//! The functions of `forerun.h`. Each looks at its arguments, calls the [`Engine`], and lets no panic pass.

#![expect(
    unsafe_code,
    reason = "functions that C calls by name, with pointers that only their contract vouches for"
)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::ptr;
use std::sync::Arc;

use forerun_decode::FinishReason;

use crate::abi::{self, Answer, Callback, Options, Request, Status};
use crate::answer::{Answered, Event, Read};
use crate::engine::Opening;
use crate::last_error::{self, guarded};
use crate::request::Ask;
use crate::{CapiError, Engine, borrow};

/// What must be given as an engine.
const ENGINE: &str = "an engine of forerun_open()";

/// Opens a model.
///
/// # Safety
/// `options` is NULL or as `forerun.h` says; `engine` is NULL, or a pointer may be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_open(options: *const Options, engine: *mut *const Engine) -> Status {
    guarded(|| {
        if engine.is_null() {
            let right = "where the engine is to be stored";
            return Err(CapiError::Null { name: "engine".to_owned(), right });
        }
        // SAFETY: not NULL, so it may be written, by the contract.
        unsafe { engine.write(ptr::null()) };
        // SAFETY: the contract is that of `structure`.
        let options = unsafe { borrow::structure("options", options) }?;
        // SAFETY: the contract has texts end with a NUL and stay as they are during the call.
        let (model, cache) = unsafe {
            let model = borrow::text("options.model", options.model, "the path of a GGUF file")?;
            (model, borrow::optional_text("options.cache_folder", options.cache_folder)?)
        };
        let opening = Opening {
            model: PathBuf::from(model),
            memory_bytes: options.memory_bytes,
            context: options.context,
            threads: options.threads,
            cache_folder: cache.map(PathBuf::from),
        };
        let mut loading = |done, total| match options.loading {
            Some(loading) => flow(loading(options.user, done, total)),
            None => ControlFlow::Continue(()),
        };
        let opened = Arc::new(Engine::open(&opening, &mut loading)?);
        // SAFETY: as above.
        unsafe { engine.write(Arc::into_raw(opened)) };
        Ok(())
    })
}

/// Closes an engine.
///
/// # Safety
/// `engine` is NULL, or of [`forerun_open`], and neither was it closed nor will it be used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_close(engine: *const Engine) {
    // A failure has no way out of here but its words.
    guarded(|| {
        if !engine.is_null() {
            // SAFETY: by the contract this is the reference that `forerun_open` gave away, taken back once. A thread that
            // generates has one of its own.
            let engine = unsafe { Arc::from_raw(engine) };
            engine.close();
        }
        Ok(())
    });
}

/// Answers a request.
///
/// # Safety
/// `engine` is NULL, or of [`forerun_open`] and not closed; `request` and `result` are NULL or as `forerun.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_generate(
    engine: *const Engine,
    request: *const Request,
    callback: Callback,
    user: *mut c_void,
    result: *mut Answer,
) -> Status {
    guarded(|| {
        // SAFETY: the contract is that of `held`.
        let engine = unsafe { held(engine) }?;
        if !result.is_null() {
            // SAFETY: the contract is that of `write`.
            unsafe { borrow::write("result", result, &answer_of(None)) }?;
        }
        // SAFETY: the contract is that of `ask`, and `request` stays as it is until this returns.
        let ask = unsafe { ask(request) }?;
        let mut told = |event: &Event<'_>| match callback {
            Some(callback) => flow(callback(user, &event_of(event))),
            None => ControlFlow::Continue(()),
        };
        let answered = engine.generate(&ask, &mut told)?;
        if !result.is_null() {
            // SAFETY: as above.
            unsafe { borrow::write("result", result, &answer_of(Some(&answered))) }?;
        }
        Ok(())
    })
}

/// Ends the answer that is being made.
///
/// # Safety
/// `engine` is NULL, or of [`forerun_open`] and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_cancel(engine: *const Engine) -> Status {
    guarded(|| {
        // SAFETY: the contract is that of `held`.
        unsafe { held(engine) }?.cancel();
        Ok(())
    })
}

/// Lowers an engine's budget.
///
/// # Safety
/// `engine` is NULL, or of [`forerun_open`] and not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_lower_budget(engine: *const Engine, memory_bytes: u64) -> Status {
    // SAFETY: the contract is that of `held`.
    guarded(|| unsafe { held(engine) }?.lower_budget(memory_bytes))
}

/// Stores the figures of the last answer.
///
/// # Safety
/// `engine` is NULL, or of [`forerun_open`] and not closed; `json` is NULL, or a pointer may be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_telemetry(engine: *const Engine, json: *mut *mut c_char) -> Status {
    guarded(|| {
        if json.is_null() {
            return Err(CapiError::Null { name: "json".to_owned(), right: "where the text is to be stored" });
        }
        // SAFETY: not NULL, so it may be written, by the contract.
        unsafe { json.write(ptr::null_mut()) };
        // SAFETY: the contract is that of `held`.
        let words = unsafe { held(engine) }?.telemetry();
        // JSON escapes a NUL, so there is none.
        let words = CString::new(words).unwrap_or_default();
        // SAFETY: as above.
        unsafe { json.write(words.into_raw()) };
        Ok(())
    })
}

/// Frees a text.
///
/// # Safety
/// `text` is NULL, or of [`forerun_telemetry`], and wasn't freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forerun_free_text(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: by the contract it is what `into_raw` gave, and this is the only time that it is taken back.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// What went wrong last on this thread.
#[unsafe(no_mangle)]
pub extern "C" fn forerun_last_error() -> *const c_char {
    last_error::words()
}

/// The library's version.
#[unsafe(no_mangle)]
pub extern "C" fn forerun_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// A reference of the call's own: closing the engine meanwhile doesn't free it.
///
/// # Safety
/// `engine` is NULL, or of [`forerun_open`] and not closed.
unsafe fn held(engine: *const Engine) -> Result<Arc<Engine>, CapiError> {
    if engine.is_null() {
        return Err(CapiError::Null { name: "engine".to_owned(), right: ENGINE });
    }
    // SAFETY: it came from `into_raw` and isn't closed, so that reference still counts; this adds another and takes it.
    unsafe {
        Arc::increment_strong_count(engine);
        Ok(Arc::from_raw(engine))
    }
}

/// Looks at everything that a request points to.
///
/// # Safety
/// `request` is NULL or as `forerun.h` says, and stays as it is while the result lives.
unsafe fn ask<'a>(request: *const Request) -> Result<Ask<'a>, CapiError> {
    // SAFETY: the contract is that of `structure`; it covers what the structure points to, for all calls below.
    let request = unsafe { borrow::structure("request", request) }?;
    let sampling = match request.sampling.is_null() {
        true => None,
        // SAFETY: as above.
        false => Some(unsafe { borrow::structure("request.sampling", request.sampling) }?),
    };
    // SAFETY: as above.
    let messages = unsafe { borrow::list(("messages", "n_messages"), request.messages, request.n_messages) }?;
    // SAFETY: as above.
    let messages = unsafe { borrow::messages(messages) }?;
    // SAFETY: as above.
    let prompt = unsafe { borrow::optional_text("prompt", request.prompt) }?;
    // SAFETY: as above.
    let stops = unsafe { borrow::list(("stops", "n_stops"), request.stops, request.n_stops) }?;
    let stops = stops.iter().enumerate().map(|(i, &stop)| {
        // SAFETY: as above.
        unsafe { borrow::text(&format!("stops[{i}]"), stop, "text") }
    });
    let stops = stops.collect::<Result<_, _>>()?;
    Ok(Ask { request, messages, prompt, sampling, stops })
}

/// What a callback returned.
fn flow(returned: i32) -> ControlFlow<()> {
    if returned == 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
}

fn event_of(event: &Event<'_>) -> abi::Event {
    let (kind, Read { n_read, n_tokens }, text) = match *event {
        Event::Prompt(read) => (abi::EVENT_PROMPT, read, ""),
        Event::Text(read, text) => (abi::EVENT_TEXT, read, text),
        Event::Thought(read, text) => (abi::EVENT_THOUGHT, read, text),
    };
    abi::Event {
        kind,
        prompt_read: count(n_read),
        prompt_tokens: count(n_tokens),
        text: text.as_ptr().cast(),
        text_bytes: text.len(),
    }
}

/// Nothing came of a request that failed.
fn answer_of(answered: Option<&Answered>) -> Answer {
    let finish_reason = answered.map_or(0, |answered| match answered.finish_reason {
        FinishReason::Stop => abi::FINISH_STOP,
        FinishReason::Length => abi::FINISH_LENGTH,
        FinishReason::Interrupted => abi::FINISH_CANCELLED,
    });
    Answer {
        size: size_of::<Answer>(),
        finish_reason,
        prompt_tokens: answered.map_or(0, |answered| count(answered.prompt_tokens)),
        reused_tokens: answered.map_or(0, |answered| count(answered.reused_tokens)),
        answer_tokens: answered.map_or(0, |answered| count(answered.answer_tokens)),
        seed: answered.map_or(0, |answered| answered.seed),
        prompt_ms: answered.map_or(0.0, |answered| answered.prompt_ms),
        decode_ms: answered.map_or(0.0, |answered| answered.decode_ms),
    }
}

/// Tokens fit 32 bits: a context has no more.
fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
