//! What candle allocates is in the plan: a budget holds while a prompt is read and while tokens are made.
//!
//! The only test of its file, so that the high-water mark is its own.

#![cfg(target_os = "linux")]

mod support;

use forerun_compute::DeviceName;
use forerun_decode::{BackendChoice, DecodeError, Engine, EngineConfig, IoChoice, Logits, Process, Session};
use forerun_model::TokenId;
use support::{config, fixture};

const MIB: u64 = 1 << 20;

#[test]
fn a_budget_holds_with_copies_of_the_weights() {
    let of = |budget_bytes| {
        let config = config(&fixture("pico-q4_k_m.gguf"), BackendChoice::Candle(DeviceName::Cpu));
        EngineConfig { budget_bytes: Some(budget_bytes), io: IoChoice::Pread, context: Some(300), ..config }
    };
    let Err(DecodeError::Budget { smallest_bytes, .. }) = Engine::open(&of(MIB)) else {
        panic!("a mebibyte is too little")
    };
    let budget = smallest_bytes + 4 * MIB;
    let mut engine = Engine::open(&of(budget)).unwrap();
    assert!(engine.plan().copies > MIB && engine.plan().total() <= budget, "{}", engine.plan());
    engine.warm_up().for_each(drop);
    let mut session = Session::new();
    let tokens: Vec<_> = (0..90).map(|i| TokenId(i * 37 % 4000)).collect();
    let rows_max = engine.plan().rows_max;
    for step in tokens[..80].chunks(rows_max).chain(tokens[80..].chunks(1)) {
        session.extend(&mut engine, step, Logits::Last).unwrap();
    }
    let process = Process::read().unwrap();
    let peak = process.peak_bytes - process.program_bytes;
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    assert!(peak <= budget, "peak {:.2} MiB of {:.2}\n{}", mib(peak), mib(budget), engine.plan());
}
