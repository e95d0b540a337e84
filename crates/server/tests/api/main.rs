//! The server's APIs, one module each. One program, since linking the engine anew for each takes longer than running them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../support/mod.rs"]
mod support;

mod anthropic;
mod chat;
mod clients;
mod completions;
mod ollama;
mod responses;
mod robust;
mod safety;
mod texts;
mod tools;
mod upstream;
mod upstream_faults;
