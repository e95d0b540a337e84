//! A sequence that was saved goes on bit for bit wherever it is loaded, and what doesn't fit is refused.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use forerun_compute::sequence::Sequence;
use forerun_compute::{
    Backend, Checkpoint, ComputeError, Cpu, KvType, Part, Reference, Rounding, Row, SequenceIdx, StackConfig,
    Step,
};
use forerun_model::{Routing, TokenId};
use support::answers::bits;
use support::rig::{CONFIG, Rig, rig, text_rows};

const FIRST: SequenceIdx = SequenceIdx(0);
const SECOND: SequenceIdx = SequenceIdx(1);

fn text(seed: u32, len: u32) -> Vec<TokenId> {
    (0..len).map(|i| TokenId((seed * 71 + i * (13 + 2 * seed)) % 251)).collect()
}

/// Reads `tokens` into a sequence that holds `past`; returns the logits.
fn read(
    rig: &mut Rig,
    backend: &mut dyn Backend,
    sequence: SequenceIdx,
    past: usize,
    tokens: &[TokenId],
) -> Vec<f32> {
    let rows = text_rows(past, tokens);
    let part = Part { sequence, past, n_rows: rows.len(), may_reject: false };
    let logits = rig.run(backend, &Step::of(&part, &rows));
    backend.accept(0, rows.len()).unwrap();
    logits
}

fn save(backend: &dyn Backend, sequence: SequenceIdx, n: usize) -> (Checkpoint, Vec<u8>) {
    let (mut checkpoint, mut rows) = (Checkpoint::default(), Vec::new());
    backend.save(sequence, &mut checkpoint).unwrap();
    backend.save_rows(sequence, 0..n, &mut rows).unwrap();
    (checkpoint, rows)
}

fn check(
    model: &str,
    kv: KvType,
    backend: impl Fn(forerun_compute::Weights, StackConfig) -> Box<dyn Backend>,
) {
    let (mut rig, weights) = rig(model);
    let mut backend = backend(weights, StackConfig { kv, ..CONFIG });
    let backend = &mut *backend;
    let (tokens, more) = (text(1, 70), text(2, 9));
    read(&mut rig, backend, FIRST, 0, &tokens[..50]);
    let (early, _) = save(backend, FIRST, 50);
    read(&mut rig, backend, FIRST, 50, &tokens[50..]);
    let (end, rows) = save(backend, FIRST, 70);
    let row_bytes = usize::try_from(Sequence::kv_bytes(&rig.shape, kv, 1)).unwrap();
    assert_eq!(rows.len(), 70 * row_bytes);
    let want = bits(&read(&mut rig, backend, FIRST, 70, &more));
    // Others overwrite it.
    read(&mut rig, backend, FIRST, 0, &text(3, 90));
    read(&mut rig, backend, SECOND, 0, &text(4, 20));
    for sequence in [SECOND, FIRST] {
        backend.load(sequence, &end, &mut &rows[..]).unwrap();
        assert_eq!(bits(&read(&mut rig, backend, sequence, 70, &more)), want, "{model} {kv:?}");
    }
    // Back to where an earlier state was taken, with the rows up to there.
    backend.load(SECOND, &early, &mut &rows[..50 * row_bytes]).unwrap();
    read(&mut rig, backend, SECOND, 50, &tokens[50..]);
    assert_eq!(bits(&read(&mut rig, backend, SECOND, 70, &more)), want, "{model} {kv:?}");
    // The check sees rows that aren't these.
    let mut others = rows.clone();
    others[..20 * row_bytes].fill(0);
    backend.load(FIRST, &end, &mut &others[..]).unwrap();
    assert_ne!(bits(&read(&mut rig, backend, FIRST, 70, &more)), want, "{model} {kv:?}");
    let refused = backend.load(FIRST, &end, &mut &rows[..rows.len() - 1]);
    assert!(matches!(refused, Err(ComputeError::SavedBytes { .. })), "{refused:?}");
    let part = Part { sequence: FIRST, past: 70, n_rows: 1, may_reject: false };
    let row = text_rows(70, &more[..1]);
    assert!(matches!(backend.begin(&Step::of(&part, &row)), Err(ComputeError::Past { held: 0, .. })));
}

#[test]
fn a_saved_sequence_goes_on_bit_for_bit() {
    for kv in [KvType::F32, KvType::F16] {
        for model in ["tiny-a-f32.gguf", "tiny-b-q3_k_m.gguf", "architectures/qwen3moe-f32.gguf"] {
            check(model, kv, |weights, config| {
                Box::new(Reference::reference(weights, config, Rounding::None))
            });
        }
        for model in ["tiny-b-q3_k_m.gguf", "pico-q4_k_m.gguf"] {
            check(model, kv, |weights, config| Box::new(Cpu::cpu(weights, config, 1).unwrap()));
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (mut rig, weights) = rig("tiny-a-f32.gguf");
    let mut backend = Reference::reference(weights, CONFIG, Rounding::None);
    read(&mut rig, &mut backend, FIRST, 0, &text(1, 10));
    let (end, rows) = save(&backend, FIRST, 10);
    let other = Checkpoint { values: end.values[1..].to_vec(), ..end.clone() };
    let long = Checkpoint { len: CONFIG.context + 1, ..end.clone() };
    let load = |backend: &mut Reference, sequence, checkpoint: &Checkpoint| {
        backend.load(sequence, checkpoint, &mut &rows[..])
    };
    assert!(matches!(load(&mut backend, FIRST, &other), Err(ComputeError::SavedState { .. })));
    assert!(matches!(load(&mut backend, FIRST, &long), Err(ComputeError::ContextFull { .. })));
    assert!(matches!(load(&mut backend, SequenceIdx(2), &end), Err(ComputeError::Sequence { .. })));
    let beyond = backend.save_rows(FIRST, 5..11, &mut Vec::new());
    assert!(matches!(beyond, Err(ComputeError::SavedRows { end: 11, held: 10, .. })), "{beyond:?}");
    assert!(backend.save_rows(FIRST, 0..10, &mut Vec::new()).is_ok(), "nothing has changed");
    read(&mut rig, &mut backend, FIRST, 10, &text(2, 1));
}

/// Between two layers of another's step, and of its own.
#[test]
fn loading_disturbs_no_step_of_others() {
    let (mut rig, weights) = rig("tiny-a-f32.gguf");
    let mut backend = Reference::reference(weights, CONFIG, Rounding::None);
    read(&mut rig, &mut backend, FIRST, 0, &text(1, 12));
    let (end, saved) = save(&backend, FIRST, 12);
    let want = bits(&read(&mut rig, &mut backend, FIRST, 12, &text(2, 3)));
    let mut routing = Routing::default();
    let begin = |backend: &mut Reference, routing: &mut Routing, parts: &[Part], rows: &[Row]| {
        backend.begin(&Step { parts, rows }).unwrap();
        backend.mix_route(forerun_model::LayerId(0), routing).unwrap();
    };
    let part = |sequence, n_rows| Part { sequence, past: 0, n_rows, may_reject: false };
    let rows = text_rows(0, &text(4, 6));
    // Shared with another: not while it runs.
    begin(&mut backend, &mut routing, &[part(FIRST, 3), part(SECOND, 3)], &rows);
    let refused = backend.load(FIRST, &end, &mut &saved[..]);
    assert!(matches!(refused, Err(ComputeError::Part { .. })), "{refused:?}");
    // Put aside it is the same.
    backend.exchange();
    assert!(backend.load(FIRST, &end, &mut &saved[..]).is_err());
    backend.exchange();
    // Its own: abandoned.
    begin(&mut backend, &mut routing, &[part(FIRST, 6)], &rows);
    backend.load(FIRST, &end, &mut &saved[..]).unwrap();
    assert!(backend.accept(0, 6).is_err());
    assert_eq!(bits(&read(&mut rig, &mut backend, FIRST, 12, &text(2, 3))), want);
    // Another's finished step may still be accepted.
    let logits = rig.run(&mut backend, &Step { parts: &[part(SECOND, 6)], rows: &rows });
    backend.load(FIRST, &end, &mut &saved[..]).unwrap();
    backend.accept(0, 6).unwrap();
    assert_eq!(bits(&read(&mut rig, &mut backend, FIRST, 12, &text(2, 3))), want);
    let again = read(&mut rig, &mut backend, SECOND, 0, &text(4, 6));
    assert_eq!(bits(&logits), bits(&again));
}
