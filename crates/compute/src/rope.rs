//! Partial rotary embedding with interleaved M-RoPE sections.
//!
//! Channel `j` of the first `n_rot / 2` pairs with `j + n_rot / 2`; its angle is `P * base^(-2j / n_rot)`, where `P`
//! is the position on the pair's axis. Angles are f64, then cos and sin are f32: exact to the last bit at any
//! context length, whatever the position.

use forerun_model::{Position, RopeShape};

/// The frequencies and axes of every rotated pair.
#[derive(Clone, Debug)]
pub struct Rope {
    /// `base^(-2j / n_rot)` and the axis (0 time, 1 height, 2 width) of pair `j`.
    pairs: Vec<(f64, usize)>,
}

impl Rope {
    /// The table of `shape`.
    #[expect(clippy::cast_precision_loss, reason = "a head has few channels")]
    pub fn new(shape: &RopeShape) -> Self {
        let axis = |j: usize| {
            let axis = j % 3;
            if axis > 0 && j < 3 * shape.sections[axis] { axis } else { 0 }
        };
        let frequency = |j: usize| shape.freq_base.powf(-2.0 * j as f64 / shape.n_rot as f64);
        Self { pairs: (0..shape.n_rot / 2).map(|j| (frequency(j), axis(j))).collect() }
    }

    /// Values that [`Self::table`] fills.
    pub fn table_len(&self) -> usize {
        2 * self.pairs.len()
    }

    /// Writes cos and sin of every pair at `position`, interleaved.
    #[expect(clippy::cast_possible_truncation, reason = "cos and sin are used as f32")]
    pub fn table(&self, position: Position, table: &mut [f32]) {
        for (&(frequency, axis), out) in self.pairs.iter().zip(table.as_chunks_mut::<2>().0) {
            let (sin, cos) = (f64::from(position.0[axis]) * frequency).sin_cos();
            *out = [cos as f32, sin as f32];
        }
    }
}

/// Rotates the first channels of one head by a [`Rope::table`].
#[inline(always)]
pub fn rotate(head: &mut [f32], table: &[f32]) {
    let table = table.as_chunks::<2>().0;
    let (a, b) = head[..2 * table.len()].split_at_mut(table.len());
    for ((a, b), [cos, sin]) in a.iter_mut().zip(b).zip(table) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_interleaved() {
        let rope = Rope::new(&RopeShape { n_rot: 64, freq_base: 1e7, sections: [11, 11, 10, 0] });
        let of =
            |axis: usize| rope.pairs.iter().enumerate().filter(move |(_, p)| p.1 == axis).map(|(j, _)| j);
        assert_eq!(of(1).collect::<Vec<_>>(), (0..11).map(|i| 3 * i + 1).collect::<Vec<_>>());
        assert_eq!(of(2).collect::<Vec<_>>(), (0..10).map(|i| 3 * i + 2).collect::<Vec<_>>());
        assert_eq!(of(0).count(), 11);
    }

    #[test]
    fn the_tail_of_a_head_does_not_turn() {
        let rope = Rope::new(&RopeShape { n_rot: 4, freq_base: 1e4, sections: [1, 1, 0, 0] });
        let mut table = vec![0.0; rope.table_len()];
        rope.table(Position::text(3), &mut table);
        let mut head = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        rotate(&mut head, &table);
        assert_eq!(head[4..], [5.0, 6.0]);
        let (sin, cos) = 3.0_f32.sin_cos();
        assert!((head[0] - (cos - 3.0 * sin)).abs() < 1e-6 && (head[2] - (3.0 * cos + sin)).abs() < 1e-6);
    }
}
