//! After an error the same session goes on, and damage is never answered.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::sync::Arc;

use bytes::Bytes;
use forerun_compute::{ComputeError, Rounding};
use forerun_decode::draft::Drafter;
use forerun_decode::{
    BackendChoice, DecodeError, Engine, EngineConfig, Event, Generation, GenerationConfig, Logits,
    ModelSource, Parts, Report, SamplerConfig, Session,
};
use forerun_model::{ModelShape, TokenId};
use forerun_scheduler::SchedulerError;
use forerun_sim::{Faults, FlashHandle, Machine};
use forerun_storage::repack::{Settings, pack};
use forerun_storage::{Catalog, Gguf, Verify};
use support::drafters::{Script, Scripted};
use support::{config, fixture};

/// Tiny-b over simulated flash with few slots.
fn engine_over_flash() -> (Engine, FlashHandle) {
    drafted_engine_over_flash(None)
}

/// The same with a drafter.
fn drafted_engine_over_flash(drafter: Option<Box<dyn Drafter>>) -> (Engine, FlashHandle) {
    let path = fixture("tiny-b-q3_k_m.gguf");
    let bytes = Bytes::from(std::fs::read(&path).unwrap());
    let gguf = Gguf::open_bytes("tiny-b", bytes.clone()).unwrap();
    let shape = ModelShape::from_metadata(&gguf.metadata).unwrap();
    let catalog = Arc::new(Catalog::new(&shape, &gguf).unwrap());
    let rig = Machine::calm(3).rig(&catalog, vec![bytes]).unwrap();
    let flash = rig.flash.clone();
    let parts = Parts { drafter, ..Parts::over(rig.scheduler, Arc::new(rig.clock)) };
    let config = EngineConfig { draft_length: Some(7), ..config(&path, BackendChoice::Cpu) };
    (Engine::open_with(&config, parts).unwrap(), flash)
}

fn tokens(n: u32) -> Vec<TokenId> {
    (0..n).map(|i| TokenId(i * 29 % 512)).collect()
}

#[track_caller]
fn assert_fetch_failed(error: &DecodeError) {
    let fetch = matches!(error, DecodeError::Scheduler(SchedulerError::Fetch { .. }));
    assert!(fetch, "an error that names the expert: {error}");
}

#[test]
fn a_session_goes_on_when_the_disk_does() {
    let (mut engine, _) = engine_over_flash();
    let tokens = tokens(12);
    let parts = [&tokens[..5], &tokens[5..9], &tokens[9..10], &tokens[10..]];
    let mut session = Session::new();
    let calm: Vec<Vec<f32>> = parts
        .iter()
        .map(|part| session.extend(&mut engine, part, Logits::Last).unwrap().unwrap().to_vec())
        .collect();

    let (mut engine, flash) = engine_over_flash();
    let mut session = Session::new();
    for (part, want) in parts.iter().zip(&calm) {
        let held = session.tokens().to_vec();
        flash.set_faults(Faults::dead(1000));
        let error = session.extend(&mut engine, part, Logits::Last).unwrap_err();
        assert_fetch_failed(&error);
        assert_eq!(session.tokens(), held, "a failed step adds nothing");
        flash.set_faults(Faults::none());
        let found = session.extend(&mut engine, part, Logits::Last).unwrap().unwrap();
        assert_eq!(found, want, "after {} tokens", held.len());
    }
    assert_eq!(session.tokens(), tokens);
}

/// Makes an answer; `before_each` runs before every piece. Errors are repeated, but not counted as pieces.
fn answer(engine: &mut Engine, mut before_each: impl FnMut(usize)) -> (String, Report, usize) {
    let config = GenerationConfig {
        sampler: SamplerConfig { temperature: 0.8, seed: 5, ..SamplerConfig::default() },
        max_tokens: Some(12),
        ..GenerationConfig::default()
    };
    let mut session = Session::new();
    let mut generation = Generation::new(engine, &mut session, tokens(30), &config).unwrap();
    let (mut text, mut calls, mut errors) = (String::new(), 0, 0);
    loop {
        before_each(calls);
        calls += 1;
        match generation.next() {
            Ok(None) => break,
            Ok(Some(Event::Text(piece))) => text.push_str(&piece.text),
            Ok(Some(Event::Prompt { .. })) => {}
            Err(error) => {
                assert_fetch_failed(&error);
                errors += 1;
            }
        }
    }
    (text, generation.finish(), errors)
}

#[test]
fn an_answer_goes_on_after_every_error() {
    let (mut engine, _) = engine_over_flash();
    let (want, calm, errors) = answer(&mut engine, |_| {});
    assert_eq!(errors, 0);
    let (mut engine, flash) = engine_over_flash();
    let (found, report, errors) = answer(&mut engine, |call| {
        flash.set_faults(if call % 2 == 0 { Faults::dead(1000) } else { Faults::none() })
    });
    assert!(errors > 4, "only {errors} errors");
    assert_eq!((found, report.tokens), (want, calm.tokens));
}

/// A step that verifies a draft fails as a whole, and is repeated as a whole.
#[test]
fn an_answer_with_drafts_goes_on_after_every_error() {
    let (mut engine, _) = engine_over_flash();
    let (want, calm, _) = answer(&mut engine, |_| {});
    let text = [&tokens(30)[..], &calm.tokens, &[TokenId(0); 8]].concat();
    for script in [Script::Right, Script::Wrong, Script::Mixed(4)] {
        let drafter = Scripted::new(&text, script, engine.shape().n_vocab);
        let (mut engine, flash) = drafted_engine_over_flash(Some(drafter));
        let (found, report, errors) = answer(&mut engine, |call| {
            flash.set_faults(if call % 2 == 0 { Faults::dead(1000) } else { Faults::none() });
        });
        assert!(errors > 0, "{script:?}");
        assert_eq!((found, report.tokens), (want.clone(), calm.tokens.clone()), "{script:?}");
    }
}

#[test]
fn a_session_that_was_overtaken_is_refused() {
    let (mut engine, _) = engine_over_flash();
    let (mut first, mut second) = (Session::new(), Session::new());
    first.extend(&mut engine, &tokens(4), Logits::None).unwrap();
    second.extend(&mut engine, &tokens(4), Logits::None).unwrap();
    let error = first.extend(&mut engine, &tokens(1), Logits::Last).unwrap_err();
    assert!(matches!(error, DecodeError::StaleSession { n_tokens: 4 }), "{error}");
    second.extend(&mut engine, &tokens(1), Logits::Last).unwrap();
}

/// One scale in the first block of every expert is no number: no backend may answer as if nothing were wrong.
#[test]
fn damaged_experts_are_never_answered() {
    let bytes = std::fs::read(fixture("tiny-b-q3_k_m.gguf")).unwrap();
    let gguf = Gguf::open_bytes("tiny-b", bytes.clone().into()).unwrap();
    let like = BackendChoice::Reference(Rounding::LikeQuantised);
    for (name, scale_at) in [("blk.3.ffn_down_exps.weight", 0), ("blk.1.ffn_gate_exps.weight", 108)] {
        let tensor = gguf.tensor(name).unwrap();
        let start = usize::try_from(tensor.offset_bytes).unwrap();
        let n_experts = usize::try_from(tensor.dims()[2]).unwrap();
        let stride = usize::try_from(tensor.len_bytes).unwrap() / n_experts;
        let mut damaged = bytes.clone();
        for expert in 0..n_experts {
            let at = start + expert * stride + scale_at;
            damaged[at..at + 2].copy_from_slice(&0x7E00_u16.to_le_bytes());
        }
        let source = ModelSource::Embedded { name: "damaged", bytes: damaged.into() };
        for backend in [BackendChoice::Cpu, BackendChoice::EXACT, like] {
            let config = EngineConfig { backend, n_threads: Some(1), ..EngineConfig::new(source.clone()) };
            let mut engine = Engine::open(&config).unwrap();
            let result = Session::new().extend(&mut engine, &tokens(3), Logits::Last).map(|_| ());
            let seen = matches!(result, Err(DecodeError::Compute(ComputeError::NotFinite { .. })));
            assert!(seen, "{name} {backend:?}: {result:?}");
        }
    }
}

/// Bits that the flash flips are seen by the checksums of a packed file, read again, and change nothing.
#[test]
fn flipped_bits_are_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let packed = folder.path().join("packed.gguf");
    let source = Gguf::open(&fixture("tiny-b-q3_k_m.gguf")).unwrap();
    pack(&source, &packed, &Settings::default()).unwrap().finish().unwrap();
    let bytes = Bytes::from(std::fs::read(&packed).unwrap());
    let gguf = Gguf::open_bytes("packed", bytes.clone()).unwrap();
    let shape = ModelShape::from_metadata(&gguf.metadata).unwrap();
    let catalog = Arc::new(Catalog::new(&shape, &gguf).unwrap());
    let logits = |machine: Machine| {
        let rig = machine.rig(&catalog, vec![bytes.clone()]).unwrap();
        let flash = rig.flash.clone();
        let parts = Parts::over(rig.scheduler, Arc::new(rig.clock));
        let mut engine = Engine::open_with(&config(&packed, BackendChoice::Cpu), parts).unwrap();
        let mut session = Session::new();
        let mut rows = Vec::new();
        for token in tokens(24) {
            rows.extend_from_slice(session.extend(&mut engine, &[token], Logits::Last).unwrap().unwrap());
        }
        let bits: Vec<u32> = rows.iter().map(|logit| logit.to_bits()).collect();
        (bits, flash.log().n_flipped, engine.store_stats().n_corrupt)
    };
    let (calm, ..) = logits(Machine::calm(3));
    let shaky = Machine { verify: Verify::Always, ..Machine::calm(3).faults(Faults::flips(30)) };
    let (found, n_flipped, n_corrupt) = logits(shaky);
    assert!(n_flipped > 5, "{n_flipped} bits were flipped");
    assert!(n_corrupt > 0 && n_corrupt <= n_flipped);
    assert!(found == calm, "a flipped bit changed the logits");
    let (found, n_flipped, _) = logits(Machine::calm(3).faults(Faults::flips(30)));
    assert!(n_flipped > 5 && found != calm, "without checksums nobody sees them: the test of the test");
}
