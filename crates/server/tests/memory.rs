//! Requests with large grammars, more than are answered at once, stay within the memory plan.
//!
//! The only test of its file, so that the high-water mark is its own.

#![cfg(target_os = "linux")]

mod support;

use std::num::NonZeroUsize;
use std::thread;

use forerun_decode::{IoChoice, Process};
use forerun_server::Limits;
use serde_json::json;
use support::Setup;

/// So many that all their grammars together would be larger than the plan.
const N_REQUESTS: usize = 48;

#[test]
fn many_large_grammars_stay_within_the_plan() {
    let mut setup = Setup::of("pico-q4_k_m.gguf");
    setup.server.limits = Limits { body_bytes_max: 1 << 20, connections_max: 64, ..Limits::default() };
    setup.engine.server_bytes = setup.server.limits.memory_bytes();
    setup.engine.sequences.n = NonZeroUsize::new(2).unwrap();
    setup.engine.io = IoChoice::Pread;
    setup.desk.queue_max = N_REQUESTS;
    let server = setup.start();
    // The high-water mark begins anew: opening a file has one of its own.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    thread::scope(|scope| {
        for i in 0..N_REQUESTS {
            let server = &server;
            scope.spawn(move || {
                let body = json!({"messages": [{"role": "user", "content": "Say."}], "max_tokens": 8,
                    "regex": r"\w".repeat(800 + i), "temperature": 1.5, "seed": i});
                let answer = server.answer("/v1/chat/completions", &body);
                let content = answer["choices"][0]["message"]["content"].as_str().unwrap();
                let is_word = |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || c == '_';
                assert!(!content.is_empty() && content.chars().all(is_word), "{content:?}");
            });
        }
    });
    let plan = &server.desk.facts().plan;
    let process = Process::read().unwrap();
    let peak = process.peak_bytes - process.program_bytes;
    assert!(peak <= plan.total(), "peak {peak} of {}\n{plan}", plan.total());
    println!("peak {peak} of {}", plan.total());
}
