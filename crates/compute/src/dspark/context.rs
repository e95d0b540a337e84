//! What a drafter remembers of the text: keys and values of every layer, a row for each position that was observed.

use std::ops::Range;

use forerun_model::DrafterShape;

use super::OBSERVED_ROWS_MAX;
use crate::ComputeError;
use crate::kv_cache::{KvRows, KvType};

/// Keys and values of one layer.
#[derive(Debug)]
pub(super) struct LayerRows {
    pub(super) keys: KvRows,
    pub(super) values: KvRows,
}

/// Rows of consecutive positions, the oldest first, and room for a block behind them. Where every layer sees only a window,
/// old rows give way in bulk when the room is used up.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) layers: Vec<LayerRows>,
    /// The position of the first row.
    base: usize,
    /// The position after the last one.
    len: usize,
    room: Room,
}

/// Rows that are allocated.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// For the context, a block's rows apart.
    context: usize,
    /// How many are kept when old ones give way: all that a window sees, also when a step's rows were cut back. None ever
    /// gives way where a layer sees everything.
    kept: usize,
    block: usize,
}

impl Room {
    fn new(shape: &DrafterShape, context: usize) -> Self {
        let kept = shape.window().map_or(usize::MAX, |window| window.saturating_add(OBSERVED_ROWS_MAX));
        Self { context: context.min(kept.saturating_mul(2)), kept, block: shape.block }
    }

    fn rows(self) -> usize {
        self.context + self.block
    }
}

impl Context {
    /// Room for a context of `context` tokens, or for what windows of it are seen.
    pub(super) fn new(shape: &DrafterShape, context: usize, kv: KvType) -> Self {
        let room = Room::new(shape, context);
        let rows = || KvRows::new(kv, room.rows(), shape.attention.kv_width());
        let layers = (0..shape.n_layers()).map(|_| LayerRows { keys: rows(), values: rows() });
        Self { layers: layers.collect(), base: 0, len: 0, room }
    }

    /// Bytes that [`Self::new`] allocates.
    pub(super) fn bytes(shape: &DrafterShape, context: usize, kv: KvType) -> u64 {
        let row = 2 * shape.n_layers() * shape.attention.kv_width() * kv.value_bytes();
        (Room::new(shape, context).rows() as u64).saturating_mul(row as u64)
    }

    /// The position after the last that was observed.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Rows that are held.
    pub(super) fn held(&self) -> usize {
        self.len - self.base
    }

    /// Forgets all positions from `len` on.
    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.base = self.base.min(self.len);
    }

    /// Prepares for `n` rows from position `first` on: what was held from there on is forgotten, and all of it if positions
    /// are missing between. Returns how many of the `n` no window will see once all are there.
    pub(super) fn continue_at(&mut self, first: usize, n: usize) -> usize {
        self.truncate(first);
        let unseen = n.saturating_sub(self.room.kept);
        if self.len < first || unseen > 0 {
            (self.base, self.len) = (first + unseen, first + unseen);
        }
        unseen
    }

    /// Makes room for `n` rows, at most [`OBSERVED_ROWS_MAX`]. Returns the first of them.
    pub(super) fn make_room(&mut self, n: usize) -> Result<usize, ComputeError> {
        let Room { context, kept, .. } = self.room;
        if self.held() + n > context {
            if kept.saturating_add(n) > context {
                return Err(ComputeError::ContextFull { past: self.len, rows: n, context });
            }
            let from = self.held() - kept;
            for LayerRows { keys, values } in &mut self.layers {
                keys.shift(from, 0, kept);
                values.shift(from, 0, kept);
            }
            self.base += from;
        }
        Ok(self.held())
    }

    /// Stores the keys and values of a layer, `[rows, key-value width]` each, as rows from `row` on.
    pub(super) fn write(&mut self, layer: usize, row: usize, (new_keys, new_values): (&[f32], &[f32])) {
        let LayerRows { keys, values } = &mut self.layers[layer];
        let width = keys.width();
        let new = new_keys.chunks_exact(width).zip(new_values.chunks_exact(width));
        for (row, (key, value)) in (row..).zip(new) {
            keys.write(row, key);
            values.write(row, value);
        }
    }

    /// Counts `n` rows that were written behind those held.
    pub(super) fn grow(&mut self, n: usize) {
        self.len += n;
    }

    /// The rows that slot `slot` of a block behind the context sees, when it sees `n_block` of the block's.
    pub(super) fn seen(&self, slot: usize, window: Option<usize>, n_block: usize) -> Range<usize> {
        let oldest = window.map_or(0, |window| (self.len + slot + 1).saturating_sub(window));
        oldest.saturating_sub(self.base).min(self.held())..self.held() + n_block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(window: Option<usize>, context: usize) -> Context {
        let room = match window {
            None => Room { context, kept: usize::MAX, block: 2 },
            Some(window) => Room { context: context.min(2 * window), kept: window, block: 2 },
        };
        let rows = || KvRows::new(KvType::F32, room.rows(), 1);
        Context { layers: vec![LayerRows { keys: rows(), values: rows() }], base: 0, len: 0, room }
    }

    /// Writes each position as its own key.
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn observe(context: &mut Context, first: usize, n: usize) {
        let skipped = context.continue_at(first, n);
        for position in first + skipped..first + n {
            let row = context.make_room(1).unwrap();
            context.layers[0].keys.write(row, &[position as f32]);
            context.grow(1);
        }
    }

    fn keys(context: &Context, range: Range<usize>) -> Vec<f32> {
        let mut key = [0.0];
        let mut read = |row| {
            context.layers[0].keys.read(row, 0, &mut key);
            key[0]
        };
        range.map(&mut read).collect()
    }

    #[test]
    fn a_window_sees_the_same_keys_however_they_came() {
        for parts in [vec![23], vec![1; 23], vec![5, 9, 2, 7]] {
            let mut context = context(Some(4), 100);
            let mut first = 0;
            for n in parts {
                observe(&mut context, first, n);
                first += n;
            }
            assert_eq!(keys(&context, context.seen(0, Some(4), 0)), [20.0, 21.0, 22.0]);
            assert_eq!(keys(&context, context.seen(2, Some(4), 0)), [22.0]);
            assert_eq!(context.seen(0, Some(4), 2).len(), 5);
            // Far beyond the window the block sees itself alone.
            assert_eq!(context.seen(9, Some(4), 2).len(), 2);
        }
    }

    #[test]
    fn positions_that_are_missing_are_seen_by_nobody() {
        let mut context = context(None, 50);
        observe(&mut context, 0, 5);
        observe(&mut context, 9, 2);
        assert_eq!(keys(&context, context.seen(0, None, 0)), [9.0, 10.0]);
        context.truncate(10);
        assert_eq!(keys(&context, context.seen(0, None, 0)), [9.0]);
        context.truncate(3);
        assert!(context.seen(0, None, 0).is_empty() && context.len() == 3);
        observe(&mut context, 3, 1);
        assert_eq!(keys(&context, context.seen(0, None, 0)), [3.0]);
    }

    #[test]
    fn a_full_context_is_an_error() {
        let mut context = context(None, 3);
        observe(&mut context, 0, 3);
        assert_eq!(context.continue_at(3, 1), 0);
        let error = context.make_room(1).unwrap_err().to_string();
        assert!(error.contains("a context of 3"), "{error}");
    }
}
