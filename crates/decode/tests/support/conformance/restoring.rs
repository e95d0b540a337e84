//! Sequences that are cut back.

use forerun_compute::{Checkpoint, ComputeError, SequenceIdx};

use super::{FIRST, SECOND, Subject, part, text};
use crate::support::rig::text_rows;

pub(crate) fn a_sequence_goes_back_to_its_checkpoint(subject: &Subject) {
    let mut bench = subject.bench();
    let tokens = text(1, 22);
    let want = bench.one_by_one(SECOND, &tokens);
    bench.read(FIRST, 0, &tokens[..7]);
    let early = bench.checkpoint(FIRST);
    bench.read(FIRST, 7, &tokens[7..15]);
    let late = bench.checkpoint(FIRST);
    assert_eq!((early.len, late.len), (7, 15));
    for (checkpoint, other) in [(&late, 2), (&late, 3), (&early, 4), (&early, 5)] {
        let n = checkpoint.len;
        bench.read(FIRST, bench.held(FIRST), &text(other, 7));
        bench.backend.restore(FIRST, checkpoint).unwrap();
        assert_eq!(bench.held(FIRST), n);
        let found = bench.read(FIRST, n, &tokens[n..]);
        bench.same(&found, &want[n..].concat(), format!("after going back to {n}"));
    }
    // Saving again gives what was saved.
    bench.backend.restore(FIRST, &early).unwrap();
    let again = bench.checkpoint(FIRST);
    assert_eq!((again.len, bits(&again.values)), (early.len, bits(&early.values)));
    // Nothing at all can be gone back to.
    let mut empty = subject.bench();
    let none = empty.checkpoint(FIRST);
    empty.read(FIRST, 0, &tokens[..5]);
    empty.backend.restore(FIRST, &none).unwrap();
    let found = empty.read(FIRST, 0, &tokens);
    empty.same(&found, &want.concat(), "after going back to nothing");
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

pub(crate) fn going_back_abandons_its_own_step_and_no_other(subject: &Subject) {
    let mut bench = subject.bench();
    let tokens = text(2, 20);
    let want = bench.one_by_one(SECOND, &tokens);
    bench.read(FIRST, 0, &tokens[..8]);
    let checkpoint = bench.checkpoint(FIRST);
    bench.read(FIRST, 8, &tokens[8..10]);
    // Its own, while layers run and afterwards.
    for is_finished in [false, true] {
        bench.begin(&[part(FIRST, bench.held(FIRST), 2)], &text_rows(8, &tokens[8..10]));
        bench.layers(0..if is_finished { bench.n_layers() } else { 2 });
        if is_finished {
            bench.finish();
        }
        bench.backend.restore(FIRST, &checkpoint).unwrap();
        assert!(bench.backend.accept(0, 2).is_err(), "its step is abandoned");
        assert_eq!(bench.held(FIRST), 8);
    }
    // Another's.
    bench.begin(&[part(SECOND, 0, tokens.len())], &text_rows(0, &tokens));
    for layer in 0..bench.n_layers() {
        bench.layers(layer..layer + 1);
        bench.backend.restore(FIRST, &checkpoint).unwrap();
    }
    let found = bench.finish();
    bench.same(&found, &want.concat(), "another's step");
    bench.backend.restore(FIRST, &checkpoint).unwrap();
    bench.backend.accept(0, tokens.len()).unwrap();
    let found = bench.read(FIRST, 8, &tokens[8..]);
    bench.same(&found, &want[8..].concat(), "the one that went back");
}

pub(crate) fn checkpoints_that_do_not_fit_are_refused(subject: &Subject) {
    let mut bench = subject.bench();
    let tokens = text(3, 16);
    let want = bench.one_by_one(SECOND, &tokens);
    bench.read(FIRST, 0, &tokens[..9]);
    let right = bench.checkpoint(FIRST);
    let longer = Checkpoint { len: 10, ..right.clone() };
    let more = Checkpoint { values: [&right.values[..], &[0.0]].concat(), ..right.clone() };
    for (name, checkpoint) in [("more tokens than are held", &longer), ("another model's", &more)] {
        let refused = bench.backend.restore(FIRST, checkpoint);
        assert!(matches!(refused, Err(ComputeError::Checkpoint { .. })), "{name}: {refused:?}");
    }
    let unknown = SequenceIdx(3);
    let refused = bench.backend.restore(unknown, &right);
    assert!(matches!(refused, Err(ComputeError::Sequence { .. })), "{refused:?}");
    let refused = bench.backend.save(unknown, &mut Checkpoint::default());
    assert!(matches!(refused, Err(ComputeError::Sequence { .. })), "{refused:?}");
    let found = bench.read(FIRST, 9, &tokens[9..]);
    bench.same(&found, &want[9..].concat(), "after refusals");
}
