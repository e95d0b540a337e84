//! Sequences that leave a backend as bytes, and come back.

use forerun_compute::sequence::Sequence;
use forerun_compute::{Checkpoint, ComputeError, SequenceIdx, Step};

use super::{CONFIG, FIRST, SECOND, Subject, part, text};
use crate::support::rig::text_rows;

/// The same sequence, another, and one of another backend; whole, and up to where an earlier state was taken.
pub(crate) fn a_saved_sequence_goes_on_wherever_it_is_loaded(subject: &Subject) {
    let mut bench = subject.bench();
    let (tokens, more) = (text(1, 26), text(2, 9));
    bench.read(FIRST, 0, &tokens[..15]);
    let early = bench.checkpoint(FIRST);
    bench.read(FIRST, 15, &tokens[15..]);
    let (end, rows) = (bench.checkpoint(FIRST), bench.rows(FIRST, 26));
    let row_bytes = usize::try_from(Sequence::kv_bytes(&bench.shape, subject.kv, 1)).unwrap();
    assert_eq!(rows.len(), 26 * row_bytes, "the engine plans for so many bytes a token");
    assert_eq!(bench.rows(FIRST, 10), rows[..10 * row_bytes], "tokens come in order");
    let want = bench.read(FIRST, 26, &more);
    // Others overwrite it.
    bench.read(FIRST, 0, &text(3, 40));
    bench.read(SECOND, 0, &text(4, 10));
    for sequence in [SECOND, FIRST] {
        bench.backend.load(sequence, &end, &mut &rows[..]).unwrap();
        assert_eq!(bench.rows(sequence, 26), rows, "what is loaded is saved again");
        let found = bench.read(sequence, 26, &more);
        bench.same(&found, &want, "a loaded sequence");
    }
    // No byte more than it needs.
    let mut with_more = &[&rows[..], &[7; 5]].concat()[..];
    bench.backend.load(SECOND, &end, &mut with_more).unwrap();
    assert_eq!(with_more, [7; 5]);
    bench.backend.load(SECOND, &early, &mut &rows[..15 * row_bytes]).unwrap();
    bench.read(SECOND, 15, &tokens[15..]);
    let found = bench.read(SECOND, 26, &more);
    bench.same(&found, &want, "a sequence that was loaded in part");
    let mut fresh = subject.bench();
    fresh.backend.load(SECOND, &end, &mut &rows[..]).unwrap();
    let found = fresh.read(SECOND, 26, &more);
    bench.same(&found, &want, "a sequence of another backend");
    // The check sees rows that aren't these.
    let mut others = rows.clone();
    others[..10 * row_bytes].fill(0);
    bench.backend.load(FIRST, &end, &mut &others[..]).unwrap();
    let found = bench.read(FIRST, 26, &more);
    bench.tolerance.differ(&found, &want, "other rows");
}

pub(crate) fn saving_changes_nothing_between_two_layers(subject: &Subject) {
    let mut bench = subject.bench();
    let tokens = text(3, 24);
    let want = bench.one_by_one(SECOND, &tokens);
    bench.read(FIRST, 0, &tokens[..10]);
    let (checkpoint, rows) = (bench.checkpoint(FIRST), bench.rows(FIRST, 10));
    bench.begin(&[part(FIRST, 10, 14)], &text_rows(10, &tokens[10..]));
    for layer in 0..bench.n_layers() {
        bench.layers(layer..layer + 1);
        assert!(bench.rows(FIRST, 10) == rows, "rows of what was accepted, at layer {layer}");
        assert!(bench.checkpoint(FIRST).values == checkpoint.values, "states at layer {layer}");
        let beyond = bench.backend.save_rows(FIRST, 5..11, &mut Vec::new());
        assert!(matches!(beyond, Err(ComputeError::SavedRows { .. })), "what isn't accepted: {beyond:?}");
    }
    let found = bench.finish();
    bench.same(&found, &want[10..].concat(), "a step during which was saved");
    bench.backend.accept(0, 14).unwrap();
    assert_eq!(bench.rows(FIRST, 10), rows);
}

pub(crate) fn what_does_not_fit_is_refused(subject: &Subject) {
    let mut bench = subject.bench();
    let tokens = text(1, 14);
    let want = bench.one_by_one(SECOND, &tokens);
    bench.read(FIRST, 0, &tokens[..10]);
    let (end, rows) = (bench.checkpoint(FIRST), bench.rows(FIRST, 10));
    let other = Checkpoint { values: [&end.values[..], &[0.0]].concat(), ..end.clone() };
    let long = Checkpoint { len: CONFIG.context + 1, ..end.clone() };
    let unknown = SequenceIdx(3);
    let refused = bench.backend.load(FIRST, &other, &mut &rows[..]);
    assert!(matches!(refused, Err(ComputeError::SavedState { .. })), "{refused:?}");
    let refused = bench.backend.load(FIRST, &long, &mut &rows[..]);
    assert!(matches!(refused, Err(ComputeError::ContextFull { .. })), "{refused:?}");
    let refused = bench.backend.load(unknown, &end, &mut &rows[..]);
    assert!(matches!(refused, Err(ComputeError::Sequence { .. })), "{refused:?}");
    let refused = bench.backend.save_rows(FIRST, 5..11, &mut Vec::new());
    assert!(matches!(refused, Err(ComputeError::SavedRows { end: 11, held: 10, .. })), "{refused:?}");
    let refused = bench.backend.save_rows(unknown, 0..1, &mut Vec::new());
    assert!(matches!(refused, Err(ComputeError::Sequence { .. })), "{refused:?}");
    let mut full = [0; 16];
    let refused = bench.backend.save_rows(FIRST, 0..10, &mut &mut full[..]);
    assert!(matches!(refused, Err(ComputeError::SavedBytes { .. })), "{refused:?}");
    let found = bench.read(FIRST, 10, &tokens[10..]);
    bench.same(&found, &want[10..].concat(), "nothing has changed");
    // What ends too early leaves nothing.
    let refused = bench.backend.load(FIRST, &end, &mut &rows[..rows.len() - 1]);
    assert!(matches!(refused, Err(ComputeError::SavedBytes { .. })), "{refused:?}");
    assert_eq!(bench.held(FIRST), 0);
    let parts = [part(FIRST, 10, 1)];
    let refused = bench.backend.begin(&Step { parts: &parts, rows: &text_rows(10, &tokens[..1]) });
    assert!(matches!(refused, Err(ComputeError::Past { held: 0, .. })), "{refused:?}");
    let found = bench.read(FIRST, 0, &tokens);
    bench.same(&found, &want.concat(), "a text after a load that failed");
}

/// Between two layers of another's step, and of its own.
pub(crate) fn loading_disturbs_no_step_of_others(subject: &Subject) {
    let mut bench = subject.bench();
    let (tokens, others) = (text(1, 15), text(4, 6));
    let want_others = bench.one_by_one(SECOND, &others).concat();
    bench.read(FIRST, 0, &tokens[..12]);
    let (end, saved) = (bench.checkpoint(FIRST), bench.rows(FIRST, 12));
    let want = bench.read(FIRST, 12, &tokens[12..]);
    let rows = text_rows(0, &others);
    // Shared with another: not while it runs, and put aside it is the same.
    let both = text_rows(0, &others[..3]).repeat(2);
    bench.begin(&[part(FIRST, 0, 3), part(SECOND, 0, 3)], &both);
    bench.layers(0..1);
    let refused = bench.backend.load(FIRST, &end, &mut &saved[..]);
    assert!(matches!(refused, Err(ComputeError::Part { .. })), "{refused:?}");
    bench.backend.exchange();
    assert!(bench.backend.load(FIRST, &end, &mut &saved[..]).is_err(), "its step is put aside");
    bench.backend.exchange();
    bench.layers(1..bench.n_layers());
    let found = bench.finish();
    let n_vocab = bench.shape.n_vocab;
    bench.same(&found[3 * n_vocab..], &want_others[..3 * n_vocab], "a refused load disturbs nobody");
    // Its own: abandoned.
    bench.begin(&[part(FIRST, 0, 6)], &rows);
    bench.layers(0..1);
    bench.backend.load(FIRST, &end, &mut &saved[..]).unwrap();
    assert!(bench.backend.accept(0, 6).is_err(), "its own step is abandoned");
    let found = bench.read(FIRST, 12, &tokens[12..]);
    bench.same(&found, &want, "a sequence that was loaded over its own step");
    // Another's, at every layer, and finished: it may still be accepted.
    bench.begin(&[part(SECOND, 0, 6)], &rows);
    for layer in 0..bench.n_layers() {
        bench.layers(layer..layer + 1);
        bench.backend.load(FIRST, &end, &mut &saved[..]).unwrap();
    }
    let found = bench.finish();
    bench.same(&found, &want_others, "another's step");
    bench.backend.load(FIRST, &end, &mut &saved[..]).unwrap();
    bench.backend.accept(0, 6).unwrap();
    let found = bench.read(FIRST, 12, &tokens[12..]);
    bench.same(&found, &want, "a sequence that was loaded beside another's step");
    // A finished step of both: the loaded one's rows alone can no longer be accepted.
    bench.run(&[part(FIRST, 15, 1), part(SECOND, 6, 1)], &text_rows(15, &others[..2]));
    bench.backend.load(FIRST, &end, &mut &saved[..]).unwrap();
    assert!(bench.backend.accept(0, 1).is_err(), "its rows are of what it no longer holds");
    bench.backend.accept(1, 1).unwrap();
    assert_eq!((bench.held(FIRST), bench.held(SECOND)), (12, 7));
}
