//! States, rotary positions and prediction blocks, on the parts themselves.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use forerun_compute::sequence::Committed;
use forerun_compute::{
    Backend, Cpu, KvType, Part, Reference, Rounding, Row, SequenceIdx, Stack, StackConfig, Step,
};
use forerun_model::{Position, TokenId};
use support::rig::{CONFIG, Rig, rig, text_rows};
use support::{argmax, difference, floats, ids, json};

#[test]
fn states_after_65_tokens_are_the_references() {
    let expected = &json("tiny-random/tiny-a-f32.expected.json")["state_case"];
    let (mut rig, weights) = rig("tiny-a-f32.gguf");
    let mut stack = Reference::reference(weights, CONFIG, Rounding::None);
    let rows = text_rows(0, &ids(&expected["ids"]));
    let part = Part { n_rows: rows.len(), ..Part::default() };
    let step = Step::of(&part, &rows);
    rig.run(&mut stack, &step);
    stack.accept(0, rows.len()).unwrap();

    let sequence = stack.sequence(SequenceIdx(0));
    let recurrent = |layer| match sequence.committed(layer) {
        Committed::DeltaNet(memory) => memory,
        Committed::Attention { .. } => panic!("layer {layer} is a delta-net"),
    };
    let net = rig.shape.delta_net.unwrap();
    for (name, head, row) in [("blk0_S_h0_row0", 0, 0), ("blk0_S_h1_row0", 1, 0), ("blk0_S_h5_row31", 5, 31)]
    {
        let at = (head * net.key_dim + row) * net.value_dim;
        let off = difference(&recurrent(0).state[at..at + 8], &floats(&expected[name]));
        assert!(off < 1e-5, "{name} is off by {off}");
    }
    for (i, want) in expected["blk0_conv_first8"].as_array().unwrap().iter().enumerate() {
        let at = i * net.conv_channels();
        let off = difference(&recurrent(0).conv[at..at + 8], &floats(want));
        assert!(off < 1e-5, "conv row {i} is off by {off}");
    }
    let size = recurrent(6).state.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let want = expected["blk6_S_fro"].as_f64().unwrap();
    assert!((size - want).abs() < 1e-4, "{size} {want}");
    let Committed::Attention { keys, .. } = sequence.committed(3) else { panic!("layer 3 is attention") };
    let mut key = [0.0; 8];
    keys.read(64, 0, &mut key);
    let off = difference(&key, &floats(&expected["blk3_k_last_head0_first8"]));
    assert!(off < 1e-4, "the last key is off by {off}");
}

#[test]
fn three_axes_of_positions() {
    let expected = &json("tiny-random/tiny-a-f32.expected.json")["mrope_case"];
    let axes: Vec<Vec<u64>> = expected["positions_thw"]
        .as_array()
        .unwrap()
        .iter()
        .map(|axis| axis.as_array().unwrap().iter().map(|p| p.as_u64().unwrap()).collect())
        .collect();
    let (mut rig, weights) = rig("tiny-a-f32.gguf");
    let mut stack = Reference::reference(weights, CONFIG, Rounding::None);
    let mut rows = text_rows(0, &ids(&expected["ids"]));
    for (i, row) in rows.iter_mut().enumerate() {
        row.position = Position([0, 1, 2].map(|axis| u32::try_from(axes[axis][i]).unwrap()));
    }
    let part = Part { n_rows: rows.len(), ..Part::default() };
    let step = Step::of(&part, &rows);
    let logits = rig.run(&mut stack, &step);
    let n_vocab = rig.shape.n_vocab;
    for (row, want) in logits.chunks(n_vocab).zip(expected["argmax"].as_array().unwrap()) {
        assert_eq!(argmax(row) as u64, want.as_u64().unwrap());
    }
    let off = difference(&logits[logits.len() - n_vocab..], &floats(&expected["logits_last_full"]));
    assert!(off < 1e-4, "off by {off}");
}

#[test]
fn prediction_blocks_are_no_layers() {
    let (rig, weights) = rig("tiny-a-f32.gguf");
    assert_eq!((rig.shape.n_layers(), rig.shape.n_mtp), (8, 1));
    assert_eq!(weights.experts.len(), 8);
}

/// Accepting part of a step, abandoning one, and starting anew all leave the bits of a clean run.
fn rejected_rows_leave_no_trace<P: forerun_compute::products::Products>(rig: &mut Rig, stack: &mut Stack<P>) {
    let tokens: Vec<_> = (0..40).map(|i| TokenId(i * 37 % 512)).collect();
    let n_vocab = rig.shape.n_vocab;
    let clean = SequenceIdx(1);
    let part = |sequence, past, n_rows| Part { sequence, past, n_rows, may_reject: true };
    let mut want = Vec::new();
    for (past, row) in text_rows(0, &tokens).chunks(1).enumerate() {
        want.extend(rig.run(stack, &Step::of(&part(clean, past, 1), row)));
        stack.accept(0, 1).unwrap();
    }
    let mut past = 0;
    for (n_draft, n_accept) in [(8, 3), (5, 0), (1, 1), (8, 8), (6, 1), (16, 9), (2, 1)] {
        let mut draft = tokens[past..past + n_draft].to_vec();
        draft[n_accept..].iter_mut().for_each(|token| token.0 = (token.0 + 1) % 512);
        let rows = text_rows(past, &draft);
        let logits = rig.run(stack, &Step::of(&part(SequenceIdx(0), past, rows.len()), &rows));
        let range = past * n_vocab..(past + n_accept) * n_vocab;
        assert_eq!(logits[..n_accept * n_vocab], want[range], "{n_draft} drafted, {n_accept} accepted");
        stack.accept(0, n_accept).unwrap();
        past += n_accept;
    }
    assert_eq!(stack.sequence(SequenceIdx(0)).len, past);
    // A step that is never accepted is as if it had not been.
    rig.run(stack, &Step::of(&part(SequenceIdx(0), past, 4), &text_rows(past, &tokens[..4])));
    let rows = text_rows(past, &tokens[past..past + 4]);
    let logits = rig.run(stack, &Step::of(&part(SequenceIdx(0), past, rows.len()), &rows));
    assert_eq!(logits, want[past * n_vocab..(past + 4) * n_vocab]);
    // Past zero starts anew.
    let logits = rig.run(stack, &Step::of(&part(SequenceIdx(0), 0, 5), &text_rows(0, &tokens[..5])));
    assert_eq!(logits, want[..5 * n_vocab]);
}

#[test]
fn rejected_rows_leave_no_trace_in_the_reference() {
    let (mut rig, weights) = rig("tiny-a-f32.gguf");
    let mut stack = Reference::reference(weights, CONFIG, Rounding::None);
    rejected_rows_leave_no_trace(&mut rig, &mut stack);
}

#[test]
fn rejected_rows_leave_no_trace_in_cpu() {
    let (mut rig, weights) = rig("tiny-b-q3_k_m.gguf");
    let mut stack = Cpu::cpu(weights, StackConfig { kv: KvType::F16, ..CONFIG }, 2).unwrap();
    rejected_rows_leave_no_trace(&mut rig, &mut stack);
}

#[test]
fn steps_that_make_no_sense_are_refused() {
    let (_, weights) = rig("tiny-a-f32.gguf");
    let mut stack = Reference::reference(weights, CONFIG, Rounding::None);
    let rows = text_rows(0, &[TokenId(1)]);
    let mut refused = |parts: &[Part], rows: &[Row], words: &str| {
        let error = stack.begin(&Step { parts, rows }).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let good = Part { n_rows: 1, ..Part::default() };
    let long = |n_rows| Part { n_rows, ..good };
    refused(&[good], &[], "0 rows");
    refused(&[], &rows, "1 rows");
    refused(&[long(2)], &rows, "1 rows");
    refused(&[long(1), long(0)], &rows, "0 rows");
    refused(&[Part { past: 3, ..good }], &rows, "continues from 3 tokens");
    refused(&[Part { sequence: SequenceIdx(2), ..good }], &rows, "sequence 2");
    refused(&[good], &text_rows(0, &[TokenId(512)]), "token 512");
    refused(&[long(161)], &text_rows(0, &[TokenId(1); 161]), "161 rows");
    refused(&[Part { may_reject: true, ..long(17) }], &text_rows(0, &[TokenId(1); 17]), "1 to 16");
    refused(&[good, good], &text_rows(0, &[TokenId(1); 2]), "part 1");
    assert!(stack.accept(0, 1).is_err(), "nothing was finished");
}
