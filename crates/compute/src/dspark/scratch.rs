//! Buffers of a drafter, sized once.

use forerun_model::DrafterShape;

use super::OBSERVED_ROWS_MAX;
use crate::activation::Activations;
use crate::attention;

/// How a block's queries are grouped, so that keys that several of them see are widened once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Groups {
    /// Slots whose queries go together, in layers where all slots see the same keys.
    pub(super) slots: usize,
    /// Values of one slot's queries of one key-value head.
    pub(super) width: usize,
    /// Slots of a key-value head, up to whole groups.
    pub(super) padded: usize,
}

impl Groups {
    fn new(shape: &DrafterShape) -> Self {
        let (group, block) = (shape.attention.n_heads / shape.attention.n_kv_heads, shape.block);
        let slots = (attention::HEADS / group).clamp(1, block);
        let width = group * shape.attention.head_dim;
        Self { slots, width, padded: block.next_multiple_of(slots) }
    }

    /// Values of all of them.
    fn len(self, shape: &DrafterShape) -> usize {
        shape.attention.n_kv_heads * self.padded * self.width
    }
}

/// Everything that a drafter computes on the way.
#[derive(Debug)]
pub(super) struct Scratch {
    pub(super) groups: Groups,
    /// The tapped states of observed rows, `[rows, taps * hidden]`.
    pub(super) features: Activations,
    /// The residual stream of a block, `[slots, hidden]`; the projection of observed rows, `[rows, hidden]`.
    pub(super) x: Vec<f32>,
    /// The normalised stream, or the normalised projection.
    pub(super) normed: Activations,
    /// Attended heads, then the feed-forward part's inner values.
    pub(super) inner: Activations,
    /// `[slots, query width]`, then the feed-forward part's gates.
    pub(super) queries: Vec<f32>,
    /// The feed-forward part's other values.
    pub(super) ups: Vec<f32>,
    /// `[rows, key-value width]`.
    pub(super) keys: Vec<f32>,
    /// `[rows, key-value width]`.
    pub(super) values: Vec<f32>,
    /// Queries by key-value head and slot.
    pub(super) grouped: Vec<f32>,
    /// What they attend to.
    pub(super) attended: Vec<f32>,
    /// Output of a part of a layer, `[slots, hidden]`.
    pub(super) out: Vec<f32>,
    /// Cos and sin, `[rows, n_rot]`.
    pub(super) rope: Vec<f32>,
    /// States of a block after the last norm.
    pub(super) states: Activations,
    /// The row of the token before in the Markov table.
    pub(super) markov: Activations,
    /// Logits of a block's slots without what the token before says, `[slots, n_drafted]`.
    pub(super) base: Vec<f32>,
    /// Logits of one slot, `[n_drafted]`; empty without a Markov table.
    pub(super) logits: Vec<f32>,
    /// The same in the model's vocabulary, where another is drafted from.
    pub(super) scattered: Vec<f32>,
}

/// Values of every buffer, for a drafter.
struct Sizes {
    groups: Groups,
    rows: usize,
    inner: usize,
    x: usize,
    queries: usize,
    ups: usize,
    kv: usize,
    grouped: usize,
    out: usize,
    rope: usize,
    base: usize,
    logits: usize,
    scattered: usize,
}

impl Sizes {
    fn new(shape: &DrafterShape) -> Self {
        let (block, d, att) = (shape.block, shape.hidden, &shape.attention);
        let (rows, groups) = (block.max(OBSERVED_ROWS_MAX), Groups::new(shape));
        Self {
            groups,
            rows,
            inner: att.q_width().max(shape.ff),
            x: rows * d,
            queries: block * att.q_width().max(shape.ff),
            ups: block * shape.ff,
            kv: rows * att.kv_width(),
            grouped: groups.len(shape),
            out: block * d,
            rope: rows * shape.rope.n_rot,
            base: block * shape.n_drafted,
            logits: shape.markov_rank.map_or(0, |_| shape.n_drafted),
            // Also a table of as many ids may bring them into another order.
            scattered: shape.n_vocab,
        }
    }
}

impl Scratch {
    /// Buffers for a drafter of `shape`, which maps its tokens to others if `maps_tokens`.
    pub(super) fn new(shape: &DrafterShape, maps_tokens: bool) -> Self {
        let s = Sizes::new(shape);
        let floats = |n: usize| vec![0.0; n];
        Self {
            groups: s.groups,
            features: Activations::with_capacity(OBSERVED_ROWS_MAX, shape.feature_width()),
            x: floats(s.x),
            normed: Activations::with_capacity(s.rows, shape.hidden),
            inner: Activations::with_capacity(shape.block, s.inner),
            queries: floats(s.queries),
            ups: floats(s.ups),
            keys: floats(s.kv),
            values: floats(s.kv),
            grouped: floats(s.grouped),
            attended: floats(s.grouped),
            out: floats(s.out),
            rope: floats(s.rope),
            states: Activations::with_capacity(shape.block, shape.hidden),
            markov: Activations::with_capacity(1, shape.markov_rank.unwrap_or(0)),
            base: floats(s.base),
            logits: floats(s.logits),
            scattered: if maps_tokens { vec![f32::NEG_INFINITY; s.scattered] } else { Vec::new() },
        }
    }

    /// Bytes that [`Self::new`] allocates.
    pub(super) fn bytes(shape: &DrafterShape, maps_tokens: bool) -> u64 {
        let s = Sizes::new(shape);
        let activations = Activations::bytes(OBSERVED_ROWS_MAX, shape.feature_width())
            + Activations::bytes(s.rows, shape.hidden)
            + Activations::bytes(shape.block, s.inner)
            + Activations::bytes(shape.block, shape.hidden)
            + Activations::bytes(1, shape.markov_rank.unwrap_or(0));
        let scattered = if maps_tokens { s.scattered } else { 0 };
        let floats = s.x + s.queries + s.ups + 2 * s.kv + 2 * s.grouped + s.out + s.rope + s.base + s.logits;
        (activations + 4 * (floats + scattered)) as u64
    }
}

#[cfg(test)]
mod tests {
    use forerun_model::{AttentionParts, AttentionShape, LayerId, RopeShape, TokenId};

    use super::*;

    #[test]
    fn every_buffer_is_counted() {
        let parts = AttentionParts { gate: false, head_norms: true };
        let shape = DrafterShape {
            hidden: 24,
            n_vocab: 50,
            n_drafted: 30,
            context_max: 100,
            norm_eps: 1e-6,
            windows: vec![None; 2],
            attention: AttentionShape { n_heads: 6, n_kv_heads: 2, head_dim: 4, parts },
            rope: RopeShape { n_rot: 4, freq_base: 1e4, sections: [2, 0, 0, 0] },
            ff: 40,
            block: 5,
            taps: vec![LayerId(0), LayerId(2)],
            mask: TokenId(1),
            drafts_from_anchor: true,
            causal: false,
            markov_rank: Some(12),
            confidence: None,
        };
        for maps_tokens in [false, true] {
            let scratch = Scratch::new(&shape, maps_tokens);
            // All of them, so that a new one can't be left out.
            #[rustfmt::skip]
            let Scratch {
                groups: _, features: _, normed: _, inner: _, states: _, markov: _, x, queries, ups, keys, values,
                grouped, attended, out, rope, base, logits, scattered,
            } = &scratch;
            let buffers =
                [x, queries, ups, keys, values, grouped, attended, out, rope, base, logits, scattered];
            let floats: usize = buffers.iter().map(|buffer| buffer.capacity()).sum();
            let rows = [(64, 48), (64, 24), (5, 40), (5, 24), (1, 12)];
            let rows: usize = rows.iter().map(|&(n, width)| Activations::bytes(n, width)).sum();
            assert_eq!(Scratch::bytes(&shape, maps_tokens), (4 * floats + rows) as u64);
        }
    }
}
