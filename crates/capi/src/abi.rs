//! What crosses the boundary: the structures and numbers of `forerun.h`, which has their meaning.
//!
//! Callbacks are functions that Rust may call without further conditions: what they need is in `user`, whose owner promised to keep
//! it for the call. Numbers that C chooses are plain integers, since an enum of Rust's with a value it doesn't have is undefined behaviour.

use std::ffi::{c_char, c_void};

/// `forerun_status`; see [`CapiError::status`](crate::CapiError::status).
pub type Status = i32;

/// It went well.
pub const OK: Status = 0;
/// An argument is wrong.
pub const ERROR_ARGUMENT: Status = 1;
/// The file isn't a model that runs here.
pub const ERROR_MODEL: Status = 2;
/// The memory doesn't suffice.
pub const ERROR_MEMORY: Status = 3;
/// The prompt doesn't fit.
pub const ERROR_CONTEXT: Status = 4;
/// Another thread is generating.
pub const ERROR_BUSY: Status = 5;
/// The loading callback said so.
pub const ERROR_CANCELLED: Status = 6;
/// An answer failed on its way.
pub const ERROR_ENGINE: Status = 7;
/// A bug.
pub const ERROR_INTERNAL: Status = 8;

/// `FORERUN_ROLE_SYSTEM`.
pub const ROLE_SYSTEM: i32 = 1;
/// `FORERUN_ROLE_USER`.
pub const ROLE_USER: i32 = 2;
/// `FORERUN_ROLE_ASSISTANT`.
pub const ROLE_ASSISTANT: i32 = 3;

/// `FORERUN_THINKING_DEFAULT`.
pub const THINKING_DEFAULT: i32 = 0;
/// `FORERUN_THINKING_ON`.
pub const THINKING_ON: i32 = 1;
/// `FORERUN_THINKING_OFF`.
pub const THINKING_OFF: i32 = 2;

/// `FORERUN_EVENT_PROMPT`.
pub const EVENT_PROMPT: i32 = 1;
/// `FORERUN_EVENT_TEXT`.
pub const EVENT_TEXT: i32 = 2;
/// `FORERUN_EVENT_THOUGHT`.
pub const EVENT_THOUGHT: i32 = 3;

/// `FORERUN_FINISH_STOP`.
pub const FINISH_STOP: i32 = 1;
/// `FORERUN_FINISH_LENGTH`.
pub const FINISH_LENGTH: i32 = 2;
/// `FORERUN_FINISH_CANCELLED`.
pub const FINISH_CANCELLED: i32 = 3;

/// `forerun_loading_callback`, or NULL.
pub type LoadingCallback = Option<extern "C" fn(user: *mut c_void, bytes_done: u64, bytes_total: u64) -> i32>;
/// `forerun_callback`, or NULL.
pub type Callback = Option<extern "C" fn(user: *mut c_void, event: *const Event) -> i32>;

/// `forerun_options`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Options {
    /// Bytes of it that the caller knows.
    pub size: usize,
    /// The model's path.
    pub model: *const c_char,
    /// Most memory, or 0.
    pub memory_bytes: u64,
    /// Tokens, or 0.
    pub context: u32,
    /// Threads, or 0.
    pub threads: u32,
    /// A folder, or NULL.
    pub cache_folder: *const c_char,
    /// Who hears of loading, or NULL.
    pub loading: LoadingCallback,
    /// For `loading`.
    pub user: *mut c_void,
}

/// `forerun_message`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Message {
    /// `ROLE_...`.
    pub role: i32,
    /// What was said.
    pub content: *const c_char,
}

/// `forerun_sampling`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Sampling {
    /// Bytes of it that the caller knows.
    pub size: usize,
    /// The seed, or 0.
    pub seed: u64,
    /// 0 for the most probable token.
    pub temperature: f32,
    /// A probability, or 0.
    pub top_p: f32,
    /// A share, or 0.
    pub min_p: f32,
    /// A number of tokens, or 0.
    pub top_k: u32,
    /// A factor, or 0.
    pub repetition_penalty: f32,
}

/// `forerun_request`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Request {
    /// Bytes of it that the caller knows.
    pub size: usize,
    /// A conversation, or NULL.
    pub messages: *const Message,
    /// Its messages.
    pub n_messages: usize,
    /// A text, or NULL.
    pub prompt: *const c_char,
    /// Whether names of control tokens in `prompt` are these.
    pub prompt_has_control_tokens: i32,
    /// `THINKING_...`.
    pub thinking: i32,
    /// Tokens, or 0.
    pub max_tokens: u32,
    /// How tokens are chosen, or NULL.
    pub sampling: *const Sampling,
    /// Texts that end the answer, or NULL.
    pub stops: *const *const c_char,
    /// Their number.
    pub n_stops: usize,
}

/// `forerun_event`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Event {
    /// `EVENT_...`.
    pub kind: i32,
    /// Tokens read.
    pub prompt_read: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// UTF-8, whole characters.
    pub text: *const c_char,
    /// Bytes.
    pub text_bytes: usize,
}

/// `forerun_result`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Answer {
    /// Bytes of it that the caller knows.
    pub size: usize,
    /// `FINISH_...`, or 0.
    pub finish_reason: i32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Those that were held.
    pub reused_tokens: u32,
    /// Tokens made.
    pub answer_tokens: u32,
    /// What the answer was drawn with.
    pub seed: u64,
    /// Milliseconds for the prompt.
    pub prompt_ms: f64,
    /// Milliseconds for the answer.
    pub decode_ms: f64,
}
