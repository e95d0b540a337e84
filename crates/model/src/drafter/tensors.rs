//! A block drafter's tensors, and the dimensions that its header demands of them.

use super::DrafterShape;
use crate::names::{OUTPUT, OUTPUT_NORM, Spec, TOKEN_EMBD, block};
use crate::{LayerId, ShapeError};

/// Projects the tapped states to one row, `[taps * hidden, hidden]`.
pub const FEATURES: &str = "fc.weight";
/// The norm of that row, `[hidden]`.
pub const FEATURES_NORM: &str = "enc.output_norm.weight";
/// What the token before says of the next, a row for each, `[rank, n_vocab]`.
pub const MARKOV_IN: &str = "markov_w1.weight";
/// From there to logits, `[rank, n_drafted]`.
pub const MARKOV_OUT: &str = "markov_w2.weight";
/// The confidence head, `[hidden + rank]` or `[hidden]`.
pub const CONFIDENCE: &str = "conf_proj.weight";
/// What is added to it, `[1]`.
pub const CONFIDENCE_BIAS: &str = "conf_proj.bias";
/// The model's token of each token that can be drafted, `[n_drafted]`, integers.
pub const TARGET_IDS: &str = "d2t";

/// What a file may hold, for messages.
const SUPPORTED: &str = "a drafter has the tensors of dense Qwen3 layers with norms of queries and keys, `fc`, \
                         `enc.output_norm`, `output_norm`, and optionally `token_embd`, `output`, `d2t`, `markov_w1` and \
                         `markov_w2` (the plain Markov head) and `conf_proj`";

/// Every tensor of `shape`. Absent tables of embeddings and heads are the model's (but a file that maps its tokens to the
/// model's has a head); absent values are the keys before their norm.
pub fn specs(shape: &DrafterShape) -> Vec<Spec> {
    let (d, att) = (shape.hidden, &shape.attention);
    let mut specs = vec![
        Spec::matrix(FEATURES.into(), shape.feature_width(), d),
        Spec::vector(FEATURES_NORM.into(), d),
        Spec::vector(OUTPUT_NORM.into(), d),
        Spec::matrix(TOKEN_EMBD.into(), d, shape.n_vocab).optional(),
    ];
    specs.push(Spec::matrix(OUTPUT.into(), d, shape.n_drafted).optional());
    specs.push(Spec::vector(TARGET_IDS.into(), shape.n_drafted).optional());
    if let Some(rank) = shape.markov_rank {
        specs.push(Spec::matrix(MARKOV_IN.into(), rank, shape.n_vocab));
        specs.push(Spec::matrix(MARKOV_OUT.into(), rank, shape.n_drafted));
    }
    if let Some(confidence) = &shape.confidence {
        let rank = shape.markov_rank.filter(|_| confidence.reads_markov).unwrap_or(0);
        specs.push(Spec::vector(CONFIDENCE.into(), d + rank));
        specs.push(Spec::vector(CONFIDENCE_BIAS.into(), 1).optional());
    }
    for layer in (0..).take(shape.n_layers()).map(LayerId) {
        let matrix = |name, n_cols, n_rows| Spec::matrix(block(layer, name), n_cols, n_rows);
        let vector = |name, len| Spec::vector(block(layer, name), len);
        specs.extend([
            vector("attn_norm", d),
            matrix("attn_q", d, att.q_width()),
            matrix("attn_k", d, att.kv_width()),
            matrix("attn_v", d, att.kv_width()).optional(),
            matrix("attn_output", att.q_width(), d),
            vector("attn_q_norm", att.head_dim),
            vector("attn_k_norm", att.head_dim),
            vector("ffn_norm", d),
            matrix("ffn_gate", d, shape.ff),
            matrix("ffn_up", d, shape.ff),
            matrix("ffn_down", shape.ff, d),
        ]);
    }
    specs
}

/// Refuses a tensor that none of `specs` knows: it would change what is drafted.
///
/// # Errors
/// [`ShapeError::UnsupportedTensor`] names it.
pub fn check_known<'a>(specs: &[Spec], names: impl IntoIterator<Item = &'a str>) -> Result<(), ShapeError> {
    // A head that the header says isn't there is only left out.
    let known = |name: &str| {
        let left_out = [CONFIDENCE, CONFIDENCE_BIAS].contains(&name);
        left_out || specs.iter().any(|spec| spec.names.iter().any(|known| known == name))
    };
    match names.into_iter().find(|name| !known(name)) {
        Some(name) => Err(ShapeError::UnsupportedTensor { name: name.to_owned(), supported: SUPPORTED }),
        None => Ok(()),
    }
}
