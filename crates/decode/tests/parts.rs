//! Steps with rows of several sequences, and steps that are put aside: every row has the bits that it has alone.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use forerun_compute::products::Products;
use forerun_compute::{
    Backend, ComputeError, Cpu, KvType, Part, Reference, Rounding, SequenceIdx, Stack, StackConfig, Step,
};
use forerun_model::TokenId;
use support::rig::{CONFIG, Rig, rig, text_rows};

const THREE: StackConfig = StackConfig { n_sequences: 3, ..CONFIG };

fn text(i: u32) -> Vec<TokenId> {
    (0..60).map(|k| TokenId((i * 77 + k * (31 + i)) % 512)).collect()
}

/// The logits of every token of a text, one token a step.
fn clean<P: Products>(rig: &mut Rig, stack: &mut Stack<P>, text: &[TokenId]) -> Vec<Vec<f32>> {
    let read = |(past, token): (usize, &TokenId)| {
        let part = Part { past, n_rows: 1, ..Part::default() };
        let logits = rig.run(stack, &Step::of(&part, &text_rows(past, &[*token])));
        stack.accept(0, 1).unwrap();
        logits
    };
    text.iter().enumerate().map(read).collect()
}

/// Parts of different lengths, of which different numbers are accepted, in an order of their own.
fn parts_are_what_they_are_alone<P: Products>(rig: &mut Rig, stack: &mut Stack<P>) {
    let texts = [text(0), text(1), text(2)];
    let want = texts.each_ref().map(|text| clean(rig, stack, text));
    let n_vocab = rig.shape.n_vocab;
    let mut held = [0; 3];
    let rounds = [
        [(5, 5), (1, 1), (9, 9)],
        [(3, 1), (4, 4), (1, 1)],
        [(8, 0), (2, 1), (7, 6)],
        [(1, 1), (8, 3), (2, 2)],
    ];
    for (round, shares) in rounds.iter().enumerate() {
        // Sequences come in another order each time.
        let order = [0, 1, 2].map(|i| (i + round) % 3);
        let parts = order.map(|i| Part {
            sequence: SequenceIdx(i),
            past: held[i],
            n_rows: shares[i].0,
            may_reject: shares[i].1 < shares[i].0,
        });
        let rows: Vec<_> =
            order.iter().flat_map(|&i| text_rows(held[i], &texts[i][held[i]..][..shares[i].0])).collect();
        let logits = rig.run(stack, &Step { parts: &parts, rows: &rows });
        let mut rest = logits.chunks_exact(n_vocab);
        for &i in &order {
            let rows = want[i].iter().enumerate().skip(held[i]).take(shares[i].0);
            for (position, want) in rows {
                let found = rest.next().unwrap();
                assert_eq!(found, want, "sequence {i}, position {position}, round {round}");
            }
        }
        for part in [1, 2, 0] {
            let i = order[part];
            stack.accept(part, shares[i].1).unwrap();
            held[i] += shares[i].1;
            assert!(
                matches!(stack.accept(part, 0), Err(ComputeError::Accept { .. })),
                "a part is accepted once"
            );
        }
    }
    for (i, held) in held.into_iter().enumerate() {
        assert_eq!(stack.sequence(SequenceIdx(i)).len, held);
    }
}

#[test]
fn parts_of_a_step_are_what_they_are_alone_in_the_reference() {
    let (mut rig, weights) = rig("tiny-a-f32.gguf");
    let mut stack = Reference::reference(weights, THREE, Rounding::None);
    parts_are_what_they_are_alone(&mut rig, &mut stack);
}

#[test]
fn parts_of_a_step_are_what_they_are_alone_in_cpu() {
    let (mut rig, weights) = rig("tiny-b-q3_k_m.gguf");
    let mut stack = Cpu::cpu(weights, StackConfig { kv: KvType::F16, ..THREE }, 2).unwrap();
    parts_are_what_they_are_alone(&mut rig, &mut stack);
}

/// A prompt's step is put aside at every layer while another sequence goes on, token by token.
#[test]
fn a_step_that_is_put_aside_is_what_it_is_without() {
    let (mut rig, weights) = rig("tiny-b-q3_k_m.gguf");
    let mut stack = Cpu::cpu(weights, StackConfig { kv: KvType::F16, ..THREE }, 2).unwrap();
    let (long, other) = (text(0), text(1));
    let want = [&long, &other].map(|text| clean(&mut rig, &mut stack, text));
    let n_layers = rig.shape.n_layers();
    let prompt = Part { n_rows: long.len(), ..Part::default() };
    let rows = text_rows(0, &long);
    rig.begin(&mut stack, &Step::of(&prompt, &rows));
    for (layer, &token) in (0..n_layers).zip(&other) {
        rig.layers(&mut stack, layer..layer + 1);
        stack.exchange();
        let busy = Part { past: 0, n_rows: 1, ..Part::default() };
        let refused = stack.begin(&Step::of(&busy, &text_rows(0, &[token])));
        assert!(matches!(refused, Err(ComputeError::Part { .. })), "its step is put aside");
        let part = Part { sequence: SequenceIdx(1), past: layer, n_rows: 1, may_reject: false };
        let logits = rig.run(&mut stack, &Step::of(&part, &text_rows(layer, &[token])));
        assert_eq!(logits, want[1][layer]);
        stack.accept(0, 1).unwrap();
        stack.exchange();
    }
    assert_eq!(rig.finish(&mut stack), want[0].concat());
    stack.accept(0, long.len()).unwrap();
    assert_eq!(stack.sequence(SequenceIdx(0)).len, long.len());
}

/// A device without buffers for a second step refuses it, and goes on with the first.
#[test]
fn without_room_nothing_is_put_aside() {
    let (mut rig, weights) = rig("tiny-a-f32.gguf");
    let mut stack = Reference::reference(weights, StackConfig { aside_rows: 0, ..THREE }, Rounding::None);
    let (part, rows) = (Part { n_rows: 2, ..Part::default() }, text_rows(0, &text(0)[..2]));
    rig.begin(&mut stack, &Step::of(&part, &rows));
    stack.exchange();
    let other = Part { sequence: SequenceIdx(1), ..part };
    assert!(matches!(stack.begin(&Step::of(&other, &rows)), Err(ComputeError::Rows { rows_max: 0, .. })));
    stack.exchange();
    let n_layers = rig.shape.n_layers();
    rig.layers(&mut stack, 0..n_layers);
    rig.finish(&mut stack);
    stack.accept(0, 2).unwrap();
}
