//! States, rotary positions and prediction blocks, on the parts themselves.

mod support;

use forerun_compute::sequence::Committed;
use forerun_compute::{Backend, Part, Reference, Rounding, SequenceIdx, Step};
use forerun_model::Position;
use support::rig::{CONFIG, rig, text_rows};
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
