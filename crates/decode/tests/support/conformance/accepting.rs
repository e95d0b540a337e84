//! What becomes of a step: accepted, in part, or not at all.

use forerun_compute::{ComputeError, Part};
use forerun_model::TokenId;

use super::{FIRST, SECOND, Subject, part, text};
use crate::support::rig::text_rows;

fn is_refused(accepted: &Result<(), ComputeError>) -> bool {
    matches!(accepted, Err(ComputeError::Accept { .. }))
}

pub(crate) fn what_can_not_be_accepted_is_refused(subject: &Subject) {
    let mut bench = subject.bench();
    let tokens = text(1, 6);
    let want = bench.one_by_one(FIRST, &tokens);
    assert!(is_refused(&bench.backend.accept(0, 2)), "a part of a step that doesn't exist");
    let parts = [part(FIRST, 0, 3), Part { may_reject: true, ..part(SECOND, 0, 2) }];
    let rows = [text_rows(0, &tokens[..3]), text_rows(0, &tokens[..2])].concat();
    bench.begin(&parts, &rows);
    assert!(is_refused(&bench.backend.accept(0, 3)), "before the layers");
    bench.layers(0..bench.n_layers());
    assert!(is_refused(&bench.backend.accept(1, 1)), "before it was finished");
    bench.finish();
    assert!(is_refused(&bench.backend.accept(2, 1)), "a part that the step hasn't");
    assert!(is_refused(&bench.backend.accept(0, 4)), "more rows than the part has");
    assert!(is_refused(&bench.backend.accept(1, 3)), "more rows than the part has");
    assert!(is_refused(&bench.backend.accept(0, 2)), "fewer rows without having said so");
    assert_eq!((bench.held(FIRST), bench.held(SECOND)), (0, 0), "what is refused changes nothing");
    bench.backend.accept(1, 1).unwrap();
    bench.backend.accept(0, 3).unwrap();
    for part in [0, 1] {
        assert!(is_refused(&bench.backend.accept(part, 1)), "part {part} is accepted once");
    }
    assert_eq!((bench.held(FIRST), bench.held(SECOND)), (3, 1));
    let found = bench.read(FIRST, 3, &tokens[3..]);
    bench.same(&found, &want[3..].concat(), "after refusals");
    let found = bench.read(SECOND, 1, &tokens[1..]);
    bench.same(&found, &want[1..].concat(), "after one row of two");
}

/// Drafts of which some rows, none or all are accepted.
pub(crate) fn rejected_rows_leave_no_trace(subject: &Subject) {
    let mut bench = subject.bench();
    let tokens = text(2, 30);
    let want = bench.one_by_one(SECOND, &tokens);
    let n_vocab = bench.shape.n_vocab;
    let mut past = 0;
    for (n_draft, n_accept) in [(8, 3), (5, 0), (1, 1), (8, 8), (6, 1), (16, 9), (2, 1)] {
        let mut draft = tokens[past..past + n_draft].to_vec();
        draft[n_accept..].iter_mut().for_each(|token| token.0 = (token.0 + 1) % 251);
        let parts = [Part { may_reject: true, ..part(FIRST, past, n_draft) }];
        let logits = bench.run(&parts, &text_rows(past, &draft));
        let found = &logits[..n_accept * n_vocab];
        let name = format!("{n_draft} drafted after {past}, {n_accept} accepted");
        bench.same(found, &want[past..past + n_accept].concat(), name);
        bench.backend.accept(0, n_accept).unwrap();
        past += n_accept;
        assert_eq!(bench.held(FIRST), past);
    }
    let found = bench.read(FIRST, past, &tokens[past..]);
    bench.same(&found, &want[past..].concat(), "after all drafts");
}

/// Wherever it stops: before the first layer, in the middle of one, between two, or after the last.
pub(crate) fn an_abandoned_step_changes_nothing(subject: &Subject) {
    let mut bench = subject.bench();
    let (tokens, others) = (text(3, 17), text(4, 5));
    let want = bench.one_by_one(SECOND, &tokens);
    bench.read(FIRST, 0, &tokens[..9]);
    let n_layers = bench.n_layers();
    for may_reject in [false, true] {
        let parts = [Part { may_reject, ..part(FIRST, 9, others.len()) }, part(SECOND, 17, 1)];
        let rows = [text_rows(9, &others), text_rows(17, &[TokenId(7)])].concat();
        for stop in 0..=n_layers {
            bench.begin(&parts, &rows);
            bench.layers(0..stop);
            if stop < n_layers {
                bench.mix_route(stop);
            } else {
                bench.finish();
            }
            assert_eq!((bench.held(FIRST), bench.held(SECOND)), (9, 17));
            let found = bench.run(&[part(FIRST, 9, 1)], &text_rows(9, &tokens[9..10]));
            bench.same(&found, &want[9], format!("after a step abandoned at layer {stop}"));
        }
    }
    // One part is accepted, and the other with the next begin forgotten.
    let parts = [part(FIRST, 9, 2), part(SECOND, 17, 1)];
    bench.run(&parts, &[text_rows(9, &tokens[9..11]), text_rows(17, &[TokenId(7)])].concat());
    bench.backend.accept(0, 2).unwrap();
    let found = bench.read(FIRST, 11, &tokens[11..]);
    bench.same(&found, &want[11..].concat(), "after all that was abandoned");
    assert_eq!((bench.held(FIRST), bench.held(SECOND)), (17, 17));
    assert!(is_refused(&bench.backend.accept(1, 1)), "a part of a step that is gone");
}
