//! How a step begins, and which don't.

use forerun_compute::{ComputeError, Part, Row, SequenceIdx, Step, Taps};
use forerun_model::TokenId;

use super::{CONFIG, FIRST, SECOND, Subject, part, text};
use crate::support::rig::text_rows;

/// What a refusal must be.
type Is = fn(&ComputeError) -> bool;

pub(crate) fn steps_that_make_no_sense_are_refused(subject: &Subject) {
    let mut bench = subject.bench();
    let tokens = text(1, 12);
    let want = bench.one_by_one(SECOND, &tokens);
    bench.read(FIRST, 0, &tokens[..8]);
    let rows = |n: usize| text_rows(8, &vec![TokenId(1); n]);
    let unknown = text_rows(0, &[TokenId(u32::try_from(bench.shape.n_vocab).unwrap())]);
    let (one, good) = (rows(1), part(FIRST, 8, 1));
    let may_reject = |part: Part| Part { may_reject: true, ..part };
    let (log, max, context) = (CONFIG.log_rows, CONFIG.rows_max, CONFIG.context);
    let is_rows: Is = |error| matches!(error, ComputeError::Rows { .. } | ComputeError::Counted { .. });
    let is_past: Is = |error| matches!(error, ComputeError::Past { held: 8, .. });
    let is_token: Is = |error| matches!(error, ComputeError::Token { .. });
    let is_part: Is = |error| matches!(error, ComputeError::Part { .. });
    let is_full: Is = |error| matches!(error, ComputeError::ContextFull { .. });
    let is_sequence: Is = |error| matches!(error, ComputeError::Sequence { sequence: 3, n_sequences: 3 });
    let cases: &[(&str, &[Part], Vec<Row>, Is)] = &[
        ("no rows", &[good], rows(0), is_rows),
        ("no parts", &[], rows(1), is_rows),
        ("a part of more rows than there are", &[part(FIRST, 8, 2)], rows(1), is_rows),
        ("a part without rows", &[good, part(SECOND, 12, 0)], rows(1), is_rows),
        ("too many rows", &[part(FIRST, 0, max + 1)], rows(max + 1), is_rows),
        ("too many that may be rejected", &[may_reject(part(FIRST, 8, log + 1))], rows(log + 1), is_rows),
        ("less past than was accepted", &[part(FIRST, 3, 1)], rows(1), is_past),
        ("more past than was accepted", &[part(FIRST, 9, 1)], rows(1), is_past),
        ("an unknown token", &[good], unknown.clone(), is_token),
        ("an unknown token of a new text", &[part(FIRST, 0, 1)], unknown, is_token),
        ("a sequence twice", &[good, good], rows(2), is_part),
        ("an unknown sequence", &[part(SequenceIdx(3), 0, 1)], rows(1), is_sequence),
        ("a full context", &[part(FIRST, 8, context - 7)], rows(context - 7), is_full),
        ("a full context of a new text", &[part(FIRST, 0, context + 1)], rows(context + 1), is_full),
    ];
    for (name, parts, rows, is_right) in cases {
        match bench.backend.begin(&Step { parts, rows }) {
            Ok(()) => panic!("{name}: it began"),
            Err(error) => assert!(is_right(&error), "{name}: {error}"),
        }
        assert!(bench.backend.accept(0, 1).is_err(), "{name}: it can be accepted");
        assert_eq!(bench.held(FIRST), 8, "{name}: tokens held");
    }
    let first = bench.run(&[good], &text_rows(8, &tokens[8..9]));
    assert!(bench.backend.begin(&Step { parts: &[], rows: &one }).is_err());
    let again = bench.read(FIRST, 8, &tokens[8..]);
    bench.same(&first, &want[8], "a row after refused steps");
    bench.same(&again, &want[8..].concat(), "rows after refused steps");
}

pub(crate) fn a_context_can_be_filled_and_no_more(subject: &Subject) {
    let mut bench = subject.bench();
    let tokens = text(2, u32::try_from(CONFIG.context).unwrap());
    bench.read(FIRST, 0, &tokens);
    let one = text_rows(tokens.len(), &tokens[..1]);
    let parts = [part(FIRST, tokens.len(), 1)];
    let refused = bench.backend.begin(&Step { parts: &parts, rows: &one });
    assert!(matches!(refused, Err(ComputeError::ContextFull { .. })), "{refused:?}");
    assert_eq!(bench.held(FIRST), tokens.len());
}

/// Also when the step is never finished.
pub(crate) fn past_zero_forgets_at_once_and_only_its_sequence(subject: &Subject) {
    let mut bench = subject.bench_of(CONFIG, Taps::default());
    let tokens = text(3, 20);
    let want = bench.one_by_one(FIRST, &tokens).concat();
    bench.read(SECOND, 0, &tokens[..15]);
    bench.begin(&[part(FIRST, 0, 4)], &text_rows(0, &text(4, 4)));
    assert_eq!((bench.held(FIRST), bench.held(SECOND)), (0, 15), "as soon as it begins");
    bench.layers(0..2);
    let parts = [part(FIRST, tokens.len(), 1)];
    let refused = bench.backend.begin(&Step { parts: &parts, rows: &text_rows(20, &tokens[..1]) });
    assert!(matches!(refused, Err(ComputeError::Past { held: 0, .. })), "{refused:?}");
    let found = bench.read(FIRST, 0, &tokens);
    bench.same(&found, &want, "a text after one that was forgotten");
    let found = bench.read(SECOND, 15, &tokens[15..]);
    let n_vocab = bench.shape.n_vocab;
    bench.same(&found, &want[15 * n_vocab..], "another sequence");
}
