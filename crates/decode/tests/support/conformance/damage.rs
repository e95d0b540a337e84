//! Broken weights and short slots end a step, and nothing else.

use forerun_compute::{ComputeError, ExpertJob, StackConfig, Taps};
use forerun_model::{ExpertKey, PartOffsets};
use forerun_storage::Gguf;

use super::bench::layer_id;
use super::{Bench, CONFIG, FIRST, Subject, part, text};
use crate::support::rig::text_rows;

/// Makes a tensor of f32 values all of what isn't a number.
fn spoil(gguf: &Gguf, bytes: &mut [u8], names: &[&str]) {
    let tensor = names.iter().find_map(|name| gguf.tensor(name)).unwrap();
    let (first, len) =
        (usize::try_from(tensor.offset_bytes).unwrap(), usize::try_from(tensor.len_bytes).unwrap());
    let (values, rest) = bytes[first..first + len].as_chunks_mut::<4>();
    assert!(rest.is_empty());
    values.fill(f32::NAN.to_le_bytes());
}

pub(crate) fn what_is_not_finite_is_an_error(subject: &Subject) {
    let config = StackConfig { kv: subject.kv, ..CONFIG };
    let rows = text_rows(0, &text(1, 3));
    let mut router = Bench::new(subject, config, Taps::default(), |gguf, bytes| {
        spoil(gguf, bytes, &["blk.1.post_attention_norm.weight", "blk.1.ffn_norm.weight"]);
    });
    router.begin(&[part(FIRST, 0, 3)], &rows);
    router.layers(0..1);
    let failed = router.backend.mix_route(layer_id(1), &mut router.routing);
    assert!(matches!(failed, Err(ComputeError::NotFinite { .. })), "{failed:?}");
    let mut head = Bench::new(subject, config, Taps::default(), |gguf, bytes| {
        spoil(gguf, bytes, &["output_norm.weight"]);
    });
    head.begin(&[part(FIRST, 0, 3)], &rows);
    head.layers(0..head.n_layers());
    let failed = head.backend.finish(&mut head.output);
    assert!(matches!(failed, Err(ComputeError::NotFinite { .. })), "{failed:?}");
    for bench in [&mut router, &mut head] {
        assert!(bench.backend.accept(0, 3).is_err(), "what failed can't be accepted");
        assert_eq!(bench.held(FIRST), 0);
    }
}

pub(crate) fn a_slot_that_is_too_small_is_refused(subject: &Subject) {
    let mut bench = subject.bench();
    let tokens = text(2, 9);
    let want = bench.one_by_one(FIRST, &tokens).concat();
    bench.begin(&[part(FIRST, 0, 1)], &text_rows(0, &tokens[..1]));
    bench.mix_route(0);
    let layer = layer_id(0);
    let expert = bench.routing.experts().next().unwrap();
    let (weights, parts) = bench.lease(ExpertKey { layer, expert });
    let uses = bench.routing.uses(expert);
    for parts in [
        PartOffsets { down: weights.bytes().len() - 1, ..parts },
        PartOffsets { gate: weights.bytes().len(), ..parts },
        PartOffsets { up: usize::MAX, ..parts },
    ] {
        let refused = bench.backend.run_expert(ExpertJob { layer, weights: weights.clone(), parts, uses });
        assert!(matches!(refused, Err(ComputeError::Slot { .. })), "{parts:?}: {refused:?}");
    }
    drop(weights);
    let found = bench.read(FIRST, 0, &tokens);
    bench.same(&found, &want, "after a step that was refused its expert");
}
