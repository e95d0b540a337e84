//! The toy's sequences can be saved and loaded like a real backend's.

#![cfg(test)]

mod support;

use forerun_compute::{Backend, Checkpoint, ComputeError, SequenceIdx};
use forerun_sim::{Machine, ToyBackend};
use support::World;

fn save(toy: &ToyBackend, sequence: usize) -> (Checkpoint, Vec<u8>) {
    let (mut checkpoint, mut rows) = (Checkpoint::default(), Vec::new());
    toy.save(SequenceIdx(sequence), &mut checkpoint).unwrap();
    toy.save_rows(SequenceIdx(sequence), 0..checkpoint.len, &mut rows).unwrap();
    (checkpoint, rows)
}

#[test]
fn a_saved_sequence_is_the_same_in_another() {
    let world = World::of_steps(8);
    let machine = Machine::calm(world.model.n_experts_total());
    let mut toy = ToyBackend::new(world.model, 2);
    world.run_on(&machine, world.rig(&machine), &mut toy);
    let (checkpoint, rows) = save(&toy, 0);
    assert!(checkpoint.len > 8 && rows.len() == 8 * checkpoint.len);
    toy.load(SequenceIdx(1), &checkpoint, &mut &rows[..]).unwrap();
    let (same, same_rows) = save(&toy, 1);
    assert_eq!((same.len, same.values, same_rows), (checkpoint.len, checkpoint.values.clone(), rows.clone()));
    let refused = toy.load(SequenceIdx(1), &checkpoint, &mut &rows[1..]);
    assert!(matches!(refused, Err(ComputeError::SavedBytes { .. })), "{refused:?}");
    assert_eq!(save(&toy, 1).0.len, 0, "nothing is held after that");
    let other = Checkpoint { values: checkpoint.values[1..].to_vec(), ..checkpoint };
    let refused = toy.load(SequenceIdx(1), &other, &mut &rows[..]);
    assert!(matches!(refused, Err(ComputeError::SavedState { .. })), "{refused:?}");
}
