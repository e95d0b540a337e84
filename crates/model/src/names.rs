//! Tensor names, and the dimensions that a header demands of them.
//!
//! Dimensions are GGUF's `ne`: fastest axis first. Two names of one tensor (`ssm_dt` with and without suffix, the two
//! names of the norm before the experts) are alternatives of one [`Spec`]. Where files keep several matrices either
//! apart or in one tensor (attention's, a delta-net's), all of them are optional here, and binding checks that one
//! form is whole.

use crate::{AttentionShape, DeltaNetShape, HeadOrder, LayerId, LayerKind, ModelShape};

/// The token embedding, `[hidden, n_vocab]`.
pub const TOKEN_EMBD: &str = "token_embd.weight";
/// The last norm, `[hidden]`.
pub const OUTPUT_NORM: &str = "output_norm.weight";
/// The head, `[hidden, n_vocab]`; the embedding stands in for it when absent.
pub const OUTPUT: &str = "output.weight";

/// `blk.N.NAME.weight`.
pub fn block(layer: LayerId, name: &str) -> String {
    format!("blk.{}.{name}.weight", layer.0)
}

/// `blk.N.NAME`, for the two names without the usual suffix.
pub fn block_bare(layer: LayerId, name: &str) -> String {
    format!("blk.{}.{name}", layer.0)
}

/// The tensor of one expert where a file keeps experts apart: `blk.N.NAME.E.weight`.
pub fn block_expert(layer: LayerId, name: &str, expert: usize) -> String {
    format!("blk.{}.{name}.{expert}.weight", layer.0)
}

/// A resident tensor that must be in the file, under one of several names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Names to look for, the usual one first.
    pub names: Vec<String>,
    /// Required dimensions, fastest first; a trailing 1 in the file is tolerated.
    pub dims: Vec<u64>,
    /// Whether the model can do without it.
    pub optional: bool,
}

impl Spec {
    pub(crate) fn matrix(name: String, n_cols: usize, n_rows: usize) -> Self {
        Self { names: vec![name], dims: vec![n_cols as u64, n_rows as u64], optional: false }
    }

    pub(crate) fn vector(name: String, len: usize) -> Self {
        Self { names: vec![name], dims: vec![len as u64], optional: false }
    }

    fn or(mut self, name: String) -> Self {
        self.names.push(name);
        self
    }

    pub(crate) fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Whether a tensor of dimensions `found` is what this demands.
    pub fn accepts(&self, found: &[u64]) -> bool {
        let n = self.dims.len();
        found.len() >= n && found[..n] == self.dims[..] && found[n..].iter().all(|&d| d == 1)
    }
}

/// Every resident tensor of `shape`: all but the routed experts and the prediction blocks.
pub fn resident(shape: &ModelShape) -> Vec<Spec> {
    let mut specs = vec![
        Spec::matrix(TOKEN_EMBD.into(), shape.hidden, shape.n_vocab),
        Spec::vector(OUTPUT_NORM.into(), shape.hidden),
        Spec::matrix(OUTPUT.into(), shape.hidden, shape.n_vocab).optional(),
    ];
    for layer in shape.layer_ids() {
        specs.push(Spec::vector(block(layer, "attn_norm"), shape.hidden));
        let norm = Spec::vector(block(layer, "post_attention_norm"), shape.hidden);
        specs.push(norm.or(block(layer, "ffn_norm")));
        match (shape.layers[layer.idx()], &shape.delta_net) {
            (LayerKind::DeltaNet, Some(net)) => delta_net(shape.hidden, net, layer, &mut specs),
            _ => attention(shape.hidden, &shape.attention, layer, &mut specs),
        }
        moe(shape, layer, &mut specs);
    }
    specs
}

/// Every resident tensor of the first prediction block of `shape`, and the last norm, which may stand in for the block's.
pub fn prediction(shape: &ModelShape) -> Vec<Spec> {
    let (d, layer) = (shape.hidden, LayerId(u16::try_from(shape.n_layers()).unwrap_or(u16::MAX)));
    let own = |name: &str| block(layer, &format!("nextn.{name}"));
    let norm = Spec::vector(block(layer, "post_attention_norm"), d);
    let mut specs = vec![
        Spec::vector(OUTPUT_NORM.into(), d),
        Spec::matrix(own("eh_proj"), 2 * d, d),
        Spec::vector(own("enorm"), d),
        Spec::vector(own("hnorm"), d),
        Spec::vector(own("shared_head_norm"), d).optional(),
        Spec::matrix(own("embed_tokens"), d, shape.n_vocab).optional(),
        Spec::matrix(own("shared_head_head"), d, shape.n_vocab).optional(),
        Spec::vector(block(layer, "attn_norm"), d),
        norm.or(block(layer, "ffn_norm")),
    ];
    attention(d, &shape.attention, layer, &mut specs);
    moe(shape, layer, &mut specs);
    specs
}

/// `ssm_in` and `ssm_ba` hold, for one key head after the other, its rows of all their matrices: queries, keys, values
/// and gates, and betas and alphas. A file whose value heads were reordered can't have them.
fn delta_net(d: usize, net: &DeltaNetShape, layer: LayerId, specs: &mut Vec<Spec>) {
    let apart = |name, n_rows| Spec {
        optional: net.order == HeadOrder::Grouped,
        ..Spec::matrix(block(layer, name), d, n_rows)
    };
    specs.push(apart("attn_qkv", net.conv_channels()));
    specs.push(apart("attn_gate", net.value_width()));
    specs.push(apart("ssm_beta", net.n_value_heads));
    specs.push(apart("ssm_alpha", net.n_value_heads));
    if net.order == HeadOrder::Grouped {
        let all = net.conv_channels() + net.value_width();
        specs.push(Spec::matrix(block(layer, "ssm_in"), d, all).optional());
        specs.push(Spec::matrix(block(layer, "ssm_ba"), d, 2 * net.n_value_heads).optional());
    }
    specs.push(Spec::matrix(block(layer, "ssm_conv1d"), net.conv_kernel, net.conv_channels()));
    specs.push(Spec::vector(block_bare(layer, "ssm_a"), net.n_value_heads));
    let dt = Spec::vector(block_bare(layer, "ssm_dt.bias"), net.n_value_heads);
    specs.push(dt.or(block_bare(layer, "ssm_dt")));
    specs.push(Spec::vector(block(layer, "ssm_norm"), net.value_dim));
    specs.push(Spec::matrix(block(layer, "ssm_out"), net.value_width(), d));
}

fn attention(d: usize, att: &AttentionShape, layer: LayerId, specs: &mut Vec<Spec>) {
    let (q, kv) = (att.query_rows(), att.kv_width());
    for (name, n_rows) in [("attn_qkv", q + 2 * kv), ("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
        specs.push(Spec::matrix(block(layer, name), d, n_rows).optional());
        specs.push(Spec::vector(block_bare(layer, &format!("{name}.bias")), n_rows).optional());
    }
    specs.push(Spec::matrix(block(layer, "attn_output"), att.q_width(), d));
    if att.parts.head_norms {
        specs.push(Spec::vector(block(layer, "attn_q_norm"), att.head_dim));
        specs.push(Spec::vector(block(layer, "attn_k_norm"), att.head_dim));
    }
}

fn moe(shape: &ModelShape, layer: LayerId, specs: &mut Vec<Spec>) {
    let (d, moe) = (shape.hidden, &shape.moe);
    specs.push(Spec::matrix(block(layer, "ffn_gate_inp"), d, moe.n_experts));
    if let Some(ff) = moe.shared_ff {
        specs.push(Spec::matrix(block(layer, "ffn_gate_shexp"), d, ff));
        specs.push(Spec::matrix(block(layer, "ffn_up_shexp"), d, ff));
        specs.push(Spec::matrix(block(layer, "ffn_down_shexp"), ff, d));
        specs.push(Spec::vector(block(layer, "ffn_gate_inp_shexp"), d));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trailing_one_is_tolerated() {
        let spec = Spec::vector("x".into(), 8);
        assert!(spec.accepts(&[8]) && spec.accepts(&[8, 1]));
        assert!(!spec.accepts(&[8, 2]) && !spec.accepts(&[1, 8]) && !spec.accepts(&[]));
    }

    #[test]
    fn names_are_ggmls() {
        assert_eq!(block(LayerId(3), "attn_q"), "blk.3.attn_q.weight");
        assert_eq!(block_expert(LayerId(0), "ffn_up", 7), "blk.0.ffn_up.7.weight");
    }
}
