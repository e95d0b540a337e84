//! A step that is put aside between two of its layers, and the one that runs meanwhile.

use forerun_compute::{ComputeError, StackConfig, Step, Taps};

use super::{CONFIG, FIRST, SECOND, Subject, THIRD, part, text};
use crate::support::rig::text_rows;

/// A prompt's step is put aside at every layer while another sequence goes on, token by token.
pub(crate) fn a_step_put_aside_is_what_it_is_without(subject: &Subject) {
    let mut bench = subject.bench();
    let (long, other) = (text(1, 20), text(2, 16));
    let want = bench.one_by_one(FIRST, &long).concat();
    let want_other = bench.one_by_one(FIRST, &other);
    let n_layers = bench.n_layers();
    bench.begin(&[part(FIRST, 0, long.len())], &text_rows(0, &long));
    for layer in 0..n_layers {
        bench.layers(layer..layer + 1);
        bench.backend.exchange();
        let refused =
            bench.backend.begin(&Step { parts: &[part(FIRST, 0, 1)], rows: &text_rows(0, &long[..1]) });
        assert!(matches!(refused, Err(ComputeError::Part { .. })), "its step is put aside: {refused:?}");
        let rows_max = CONFIG.aside_rows;
        let many = text_rows(0, &text(3, u32::try_from(rows_max).unwrap() + 1));
        let refused = bench.backend.begin(&Step { parts: &[part(THIRD, 0, many.len())], rows: &many });
        assert!(
            matches!(refused, Err(ComputeError::Rows { .. })),
            "more rows than fit beside it: {refused:?}"
        );
        let found = bench.read(SECOND, 2 * layer, &other[2 * layer..2 * layer + 2]);
        bench.same(&found, &want_other[2 * layer..2 * layer + 2].concat(), format!("beside layer {layer}"));
        bench.backend.exchange();
    }
    let found = bench.finish();
    bench.same(&found, &want, "a step that was put aside at every layer");
    bench.backend.accept(0, long.len()).unwrap();
    assert_eq!((bench.held(FIRST), bench.held(SECOND)), (long.len(), 2 * n_layers));
}

/// Whether the step that ran meanwhile was finished or not.
pub(crate) fn coming_back_forgets_what_was_not_accepted(subject: &Subject) {
    let mut bench = subject.bench();
    let tokens = text(4, 12);
    let want = bench.one_by_one(SECOND, &tokens);
    bench.read(FIRST, 0, &tokens[..4]);
    for is_finished in [false, true] {
        bench.begin(&[part(FIRST, 4, 3)], &text_rows(4, &tokens[4..7]));
        bench.layers(0..1);
        bench.backend.exchange();
        bench.begin(&[part(SECOND, 12, 2)], &text_rows(12, &tokens[..2]));
        bench.layers(0..if is_finished { bench.n_layers() } else { 2 });
        if is_finished {
            bench.finish();
        }
        bench.backend.exchange();
        assert!(bench.backend.accept(0, 2).is_err(), "the step that is taken up again isn't finished");
        bench.layers(1..bench.n_layers());
        let found = bench.finish();
        bench.same(&found, &want[4..7].concat(), "a step that was taken up again");
        assert_eq!((bench.held(FIRST), bench.held(SECOND)), (4, 12));
    }
    bench.backend.accept(0, 3).unwrap();
    let found = bench.read(FIRST, 7, &tokens[7..]);
    bench.same(&found, &want[7..].concat(), "rows after it");
    let found = bench.read(SECOND, 12, &tokens[..1]);
    let again = bench.read(FIRST, 12, &tokens[..1]);
    bench.same(&found, &again, "rows after one that was forgotten");
}

/// A device without buffers for a second step refuses it, and goes on with the first.
pub(crate) fn without_room_nothing_is_put_aside(subject: &Subject) {
    let mut bench = subject.bench_of(StackConfig { aside_rows: 0, ..CONFIG }, Taps::default());
    let tokens = text(5, 3);
    let want = bench.one_by_one(FIRST, &tokens).concat();
    bench.begin(&[part(FIRST, 0, 3)], &text_rows(0, &tokens));
    bench.layers(0..1);
    bench.backend.exchange();
    let refused =
        bench.backend.begin(&Step { parts: &[part(SECOND, 0, 1)], rows: &text_rows(0, &tokens[..1]) });
    assert!(matches!(refused, Err(ComputeError::Rows { rows_max: 0, .. })), "{refused:?}");
    bench.backend.exchange();
    bench.layers(1..bench.n_layers());
    let found = bench.finish();
    bench.same(&found, &want, "a step that was put aside in vain");
    bench.backend.accept(0, 3).unwrap();
}
