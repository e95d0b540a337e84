//! Case 89: a budget that is lowered while the model runs holds from then on, and changes no bit.
//!
//! The only test of its file, so that the high-water mark is its own.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forerun_decode::{BackendChoice, DecodeError, Engine, IoChoice, Logits, Session};
use forerun_decode::{EngineConfig, Process};
use forerun_model::TokenId;
use support::{argmax, config, fixture};

const MIB: u64 = 1 << 20;
const N_TOKENS: usize = 1000;

fn open(io: IoChoice, budget_bytes: Option<u64>) -> Engine {
    let mut config: EngineConfig = config(&fixture("pico-q4_k_m.gguf"), BackendChoice::Cpu);
    (config.io, config.budget_bytes, config.context, config.n_threads) =
        (io, budget_bytes, Some(N_TOKENS + 64), Some(2));
    Engine::open(&config).unwrap()
}

/// Greedy tokens, without those that end a text.
fn decode(engine: &mut Engine, session: &mut Session, mut token: TokenId, n: usize) -> Vec<TokenId> {
    (0..n)
        .map(|_| {
            let logits = session.extend(engine, &[token], Logits::Last).unwrap().unwrap();
            token = TokenId(u32::try_from(argmax(logits)).unwrap());
            token
        })
        .collect()
}

#[test]
fn a_lowered_budget_holds_and_changes_no_bit() {
    let whole = {
        let mut engine = open(IoChoice::Memory, None);
        decode(&mut engine, &mut Session::new(), TokenId(5), N_TOKENS)
    };
    for io in [IoChoice::Pread, IoChoice::Mmap] {
        let mut engine = open(io, Some(64 * MIB));
        let mut session = Session::new();
        let mut tokens = decode(&mut engine, &mut session, TokenId(5), 40);
        assert_eq!(engine.plan().mapped > 0, io == IoChoice::Mmap, "{}", engine.plan());
        let before = engine.plan().n_slots;
        assert!(matches!(engine.lower_budget(MIB), Err(DecodeError::Budget { .. })));
        assert_eq!(engine.plan().n_slots, before, "a refused budget changes nothing");
        engine.lower_budget(24 * MIB).unwrap();
        assert_eq!(engine.plan().mapped, 0, "it doesn't hold what was mapped");
        assert!(engine.plan().n_slots < before, "{} slots of {before}", engine.plan().n_slots);
        // The high-water mark begins anew.
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        let last = *tokens.last().unwrap();
        tokens.extend(decode(&mut engine, &mut session, last, N_TOKENS - 40));
        assert!(tokens == whole, "{io:?}: other tokens");
        let process = Process::read().unwrap();
        let peak = process.peak_bytes - process.program_bytes;
        assert!(peak <= 24 * MIB, "{io:?}: peak {:.2} MiB", peak as f64 / MIB as f64);
        assert!(engine.decisions().iter().any(|decision| decision.choice == "24.00MiB"));
    }
    a_system_that_wants_memory_gets_it(&whole);
}

/// What is asked for is given up while there is something to give, and nobody is asked in vain.
fn a_system_that_wants_memory_gets_it(whole: &[TokenId]) {
    let mut engine = open(IoChoice::Pread, Some(40 * MIB));
    let before = engine.plan().total();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    engine.watch_memory(Some(Box::new(move || match counted.fetch_add(1, Ordering::Relaxed) {
        50 => 8 * MIB,
        100 | 150 => 1 << 40,
        _ => 0,
    })));
    let mut session = Session::new();
    let mut tokens = decode(&mut engine, &mut session, TokenId(5), 60);
    let after = engine.plan().total();
    assert!(before - after >= 8 * MIB && before - after < 9 * MIB, "{before} {after}");
    let last = *tokens.last().unwrap();
    tokens.extend(decode(&mut engine, &mut session, last, N_TOKENS - 60));
    assert!(tokens == whole, "other tokens");
    assert!(engine.plan().total() < after, "the least");
    assert_eq!(asked.load(Ordering::Relaxed), 151, "nothing is left to give up");
    let decisions = engine.decisions();
    let short: Vec<_> = decisions.iter().filter(|d| d.reason.contains("short of memory")).collect();
    assert_eq!(short.len(), 3, "{short:?}");
    assert!(short[2].reason.contains("nothing more can be given up"), "{short:?}");
}
