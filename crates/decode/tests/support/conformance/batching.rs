//! A row's results depend on its sequence's tokens alone.

use forerun_compute::{Part, Row, SequenceIdx};

use super::{FIRST, Order, SECOND, Subject, part, text};
use crate::support::rig::text_rows;

pub(crate) fn chunks_of_a_prompt_change_nothing(subject: &Subject) {
    let mut bench = subject.bench();
    let tokens = text(1, 23);
    let want = bench.one_by_one(FIRST, &tokens).concat();
    for chunk in [2, 3, 7, tokens.len()] {
        let mut found = Vec::new();
        for (i, part) in tokens.chunks(chunk).enumerate() {
            found.extend(bench.read(SECOND, i * chunk, part));
        }
        bench.same(&found, &want, format!("steps of {chunk}"));
    }
    let other = bench.read(FIRST, 0, &text(2, 23));
    bench.tolerance.differ(&other, &want, "another text");
}

/// Parts of different lengths, of which different numbers are accepted, in an order of their own.
pub(crate) fn parts_of_a_step_are_what_they_are_alone(subject: &Subject) {
    let mut bench = subject.bench();
    let texts = [text(1, 20), text(2, 20), text(3, 20)];
    let want = texts.each_ref().map(|text| bench.one_by_one(FIRST, text));
    let n_vocab = bench.shape.n_vocab;
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
            may_reject: shares[i].1 < shares[i].0,
            ..part(SequenceIdx(i), held[i], shares[i].0)
        });
        let rows_of = |&i: &usize| text_rows(held[i], &texts[i][held[i]..][..shares[i].0]);
        let rows: Vec<_> = order.iter().flat_map(rows_of).collect();
        let logits = bench.run(&parts, &rows);
        let mut rest = logits.chunks_exact(n_vocab);
        for &i in &order {
            for (position, want) in want[i].iter().enumerate().skip(held[i]).take(shares[i].0) {
                let name = format!("round {round}: sequence {i}, position {position}");
                bench.same(rest.next().unwrap(), want, name);
            }
        }
        for part in [1, 2, 0] {
            let i = order[part];
            bench.backend.accept(part, shares[i].1).unwrap();
            held[i] += shares[i].1;
        }
    }
    for (i, held) in held.into_iter().enumerate() {
        assert_eq!(bench.held(SequenceIdx(i)), held);
    }
}

/// The shared expert comes anywhere between them.
pub(crate) fn the_order_of_experts_changes_nothing(subject: &Subject) {
    let mut bench = subject.bench();
    let tokens = text(4, 14);
    let want = bench.read(FIRST, 0, &tokens);
    for turn in 0..3 {
        for is_reversed in [false, true] {
            bench.order = Order { turn, is_reversed, shared_after: 3 * turn };
            let found = bench.read(SECOND, 0, &tokens);
            bench.same(&found, &want, format!("{:?}", bench.order));
        }
    }
}

pub(crate) fn only_rows_that_want_logits_get_them(subject: &Subject) {
    let mut bench = subject.bench();
    let tokens = text(5, 12);
    let want = bench.one_by_one(FIRST, &tokens);
    let rows = |wants: &dyn Fn(usize) -> bool| -> Vec<Row> {
        let rows = text_rows(0, &tokens).into_iter().enumerate();
        rows.map(|(i, row)| Row { wants_logits: wants(i), ..row }).collect()
    };
    let parts = [part(SECOND, 0, tokens.len())];
    for wanted in [&[2, 3, 9][..], &[0], &[11], &[]] {
        let found = bench.run(&parts, &rows(&|i| wanted.contains(&i)));
        let want: Vec<f32> = wanted.iter().flat_map(|&i| want[i].clone()).collect();
        bench.same(&found, &want, format!("logits of {wanted:?}"));
        assert_eq!(bench.output.n_vocab, bench.shape.n_vocab);
    }
    bench.backend.accept(0, tokens.len()).unwrap();
    assert_eq!(bench.held(SECOND), tokens.len(), "a step without logits counts like any other");
}
