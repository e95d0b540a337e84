//! Reads a header key by key; every number has a range and must fit the others.

use super::architecture::Architecture;
use super::{
    AttentionShape, DeltaNetShape, HEAD_DIM_MAX, HeadOrder, LayerKind, ModelShape, MoeShape, RopeShape,
};
use crate::ShapeError;
use crate::metadata::{self, KeyValue, KeyValues, boolean, float, in_range, integer, required_integer};

const LAYERS_MAX: u64 = 1024;
pub(crate) const WIDTH_MAX: u64 = 1 << 17;
pub(crate) const HEADS_MAX: u64 = 1024;
const EXPERTS_MAX: u64 = 4096;
const VOCAB_MAX: u64 = 1 << 20;
pub(crate) const CONTEXT_MAX: u64 = 1 << 31;

/// A file's metadata, and the architecture that prefixes its keys.
pub(super) struct Header<'a> {
    pub(super) kv: &'a dyn KeyValues,
    pub(super) architecture: Architecture,
}

impl Header<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture.name)
    }

    fn need(&self, name: &str, min: u64, max: u64) -> Result<usize, ShapeError> {
        required_integer(self.kv, &self.key(name), min, max).map(to_usize)
    }

    fn or(&self, name: &str, default: usize, min: u64, max: u64) -> Result<usize, ShapeError> {
        Ok(integer(self.kv, &self.key(name), min, max)?.map_or(default, to_usize))
    }

    pub(super) fn shape(&self) -> Result<ModelShape, ShapeError> {
        let hidden = self.need("embedding_length", 1, WIDTH_MAX)?;
        let n_blocks = self.need("block_count", 1, LAYERS_MAX)?;
        let n_mtp = self.or("nextn_predict_layers", 0, 0, n_blocks as u64 - 1)?;
        let layers = self.layer_kinds(n_blocks, n_blocks - n_mtp)?;
        let attention = self.attention(hidden, &layers)?;
        Ok(ModelShape {
            hidden,
            n_vocab: self.n_vocab()?,
            context_max: self.need("context_length", 1, CONTEXT_MAX)?,
            norm_eps: self.norm_eps()?,
            layers,
            n_mtp,
            attention,
            rope: self.rope(attention.head_dim)?,
            delta_net: self.architecture.delta_net.map(|order| self.delta_net(order)).transpose()?,
            moe: self.moe()?,
        })
    }

    fn n_vocab(&self) -> Result<usize, ShapeError> {
        let key = "tokenizer.ggml.tokens";
        match self.kv.get(key) {
            Some(KeyValue::Texts(tokens)) => in_range(key, tokens.len() as i128, 1, VOCAB_MAX).map(to_usize),
            Some(other) => Err(metadata::wrong_type(key, "an array of strings", &other)),
            None => Err(ShapeError::MissingKey { key: key.into() }),
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "an f32 in the file")]
    fn norm_eps(&self) -> Result<f32, ShapeError> {
        let key = self.key("attention.layer_norm_rms_epsilon");
        let value = float(self.kv, &key)?.ok_or_else(|| ShapeError::MissingKey { key: key.clone() })?;
        positive(&key, value).map(|v| v as f32)
    }

    /// All attention where the architecture has nothing else. `recurrent_layers` wins over `full_attention_interval`:
    /// converters write the latter as 4 even where it is wrong.
    fn layer_kinds(&self, n_blocks: usize, n_layers: usize) -> Result<Vec<LayerKind>, ShapeError> {
        if self.architecture.delta_net.is_none() {
            return Ok(vec![LayerKind::Attention; n_layers]);
        }
        let kind = |recurrent| if recurrent { LayerKind::DeltaNet } else { LayerKind::Attention };
        let key = self.key("attention.recurrent_layers");
        match self.kv.get(&key) {
            Some(KeyValue::Bools(flags)) => {
                if flags.len() < n_layers {
                    let expected = format!("{n_blocks}, one per block");
                    return Err(ShapeError::KeyLength { key, found: flags.len(), expected });
                }
                Ok(flags[..n_layers].iter().map(|&f| kind(f)).collect())
            }
            Some(other) => Err(metadata::wrong_type(&key, "an array of bools", &other)),
            None => {
                let interval = self.or("full_attention_interval", 4, 1, LAYERS_MAX)?;
                Ok((0..n_layers).map(|i| kind(!(i + 1).is_multiple_of(interval))).collect())
            }
        }
    }

    fn attention(&self, hidden: usize, layers: &[LayerKind]) -> Result<AttentionShape, ShapeError> {
        let n_heads = self.need("attention.head_count", 1, HEADS_MAX)?;
        let n_kv_heads = self.kv_heads(n_heads, layers)?;
        let head_dim = self.or("attention.key_length", hidden / n_heads, 1, HEAD_DIM_MAX as u64)?;
        let value_dim = self.or("attention.value_length", head_dim, 1, HEAD_DIM_MAX as u64)?;
        fits(
            ("attention.head_count", n_heads),
            ("attention.head_count_kv", n_kv_heads),
            n_heads.is_multiple_of(n_kv_heads),
            "query heads must be a multiple of key-value heads",
        )?;
        fits(
            ("attention.value_length", value_dim),
            ("attention.key_length", head_dim),
            value_dim == head_dim,
            "they must be equal",
        )?;
        fits(
            ("attention.head_count", n_heads),
            ("embedding_length", hidden),
            (1..=HEAD_DIM_MAX).contains(&head_dim),
            "without attention.key_length the hidden size must be 1 to 1024 values per head",
        )?;
        Ok(AttentionShape { n_heads, n_kv_heads, head_dim, parts: self.architecture.attention })
    }

    /// One number, or one per layer with zeros at the linear layers.
    fn kv_heads(&self, n_heads: usize, layers: &[LayerKind]) -> Result<usize, ShapeError> {
        let key = self.key("attention.head_count_kv");
        let Some(KeyValue::Integers(list)) = self.kv.get(&key) else {
            return self.or("attention.head_count_kv", n_heads, 1, HEADS_MAX);
        };
        if list.len() < layers.len() {
            let expected = format!("{}, one per layer", layers.len());
            return Err(ShapeError::KeyLength { key, found: list.len(), expected });
        }
        let mut heads = None;
        for (_, &value) in layers.iter().zip(&list).filter(|(kind, _)| **kind == LayerKind::Attention) {
            let value = in_range(&key, value, 1, HEADS_MAX).map(to_usize)?;
            let first = *heads.get_or_insert(value);
            fits(
                ("attention.head_count_kv", value),
                ("attention.head_count_kv", first),
                value == first,
                "all attention layers must have the same number of key-value heads",
            )?;
        }
        Ok(heads.unwrap_or(n_heads))
    }

    fn rope(&self, head_dim: usize) -> Result<RopeShape, ShapeError> {
        let n_rot = self.or("rope.dimension_count", head_dim, 2, head_dim as u64)?;
        fits(
            ("rope.dimension_count", n_rot),
            ("half", n_rot / 2),
            n_rot.is_multiple_of(2),
            "it must be even",
        )?;
        let base_key = self.key("rope.freq_base");
        let freq_base = positive(&base_key, float(self.kv, &base_key)?.unwrap_or(10_000.0))?;
        if let Some(KeyValue::Text(kind)) = self.kv.get(&self.key("rope.scaling.type"))
            && kind != "none"
        {
            return Err(ShapeError::KeyUnsupported {
                key: self.key("rope.scaling.type"),
                found: format!("`{}`", kind.escape_debug()),
                supported: "absent or `none`: scaled rotary embeddings aren't supported",
            });
        }
        Ok(RopeShape { n_rot, freq_base, sections: self.sections(n_rot)? })
    }

    fn sections(&self, n_rot: usize) -> Result<[usize; 4], ShapeError> {
        if !self.architecture.has_rope_sections {
            return Ok([n_rot / 2, 0, 0, 0]);
        }
        let key = self.key("rope.dimension_sections");
        let list = match self.kv.get(&key) {
            Some(KeyValue::Integers(list)) => list,
            Some(other) => return Err(metadata::wrong_type(&key, "an array of integers", &other)),
            None => return Err(ShapeError::MissingKey { key }),
        };
        if !(3..=4).contains(&list.len()) {
            return Err(ShapeError::KeyLength { key, found: list.len(), expected: "3 or 4".into() });
        }
        let mut sections = [0; 4];
        for (slot, &value) in sections.iter_mut().zip(&list) {
            *slot = to_usize(in_range(&key, value, 0, n_rot as u64 / 2)?);
        }
        let total: usize = sections.iter().sum();
        fits(
            ("rope.dimension_sections (sum)", total),
            ("rope.dimension_count / 2", n_rot / 2),
            total == n_rot / 2,
            "the sections must cover every rotated pair",
        )?;
        Ok(sections)
    }

    fn delta_net(&self, order: HeadOrder) -> Result<DeltaNetShape, ShapeError> {
        let n_key_heads = self.need("ssm.group_count", 1, HEADS_MAX)?;
        let n_value_heads = self.need("ssm.time_step_rank", 1, HEADS_MAX)?;
        let key_dim = self.need("ssm.state_size", 1, HEAD_DIM_MAX as u64)?;
        let inner = self.need("ssm.inner_size", 1, WIDTH_MAX)?;
        fits(
            ("ssm.inner_size", inner),
            ("ssm.time_step_rank", n_value_heads),
            inner.is_multiple_of(n_value_heads),
            "the inner size must be a multiple of the value heads",
        )?;
        fits(
            ("ssm.inner_size", inner),
            ("ssm.time_step_rank", n_value_heads),
            inner / n_value_heads <= HEAD_DIM_MAX,
            "a value head must have at most 1024 channels",
        )?;
        fits(
            ("ssm.time_step_rank", n_value_heads),
            ("ssm.group_count", n_key_heads),
            n_value_heads.is_multiple_of(n_key_heads),
            "value heads must be a multiple of key heads",
        )?;
        let order = match boolean(self.kv, &self.key("ssm.v_head_reordered"))? {
            Some(true) => HeadOrder::Tiled,
            Some(false) => HeadOrder::Grouped,
            None => order,
        };
        Ok(DeltaNetShape {
            n_key_heads,
            n_value_heads,
            key_dim,
            value_dim: inner / n_value_heads,
            conv_kernel: self.need("ssm.conv_kernel", 2, 16)?,
            order,
        })
    }

    fn moe(&self) -> Result<MoeShape, ShapeError> {
        let n_experts = self.need("expert_count", 1, EXPERTS_MAX)?;
        let top_k = self.uniform("expert_used_count", n_experts as u64)?;
        let top_k = top_k.ok_or_else(|| ShapeError::MissingKey { key: self.key("expert_used_count") })?;
        let expert_ff = match self.uniform("expert_feed_forward_length", WIDTH_MAX)? {
            Some(width) => width,
            None => match self.feed_forward()? {
                Some(total) if total >= top_k => total / top_k,
                _ => return Err(ShapeError::MissingKey { key: self.key("expert_feed_forward_length") }),
            },
        };
        let shared_ff = self.shared_ff()?;
        Ok(MoeShape { n_experts, top_k, expert_ff, shared_ff, renormalises: self.architecture.renormalises })
    }

    /// The shared expert's width, for which older files have only the width of a layer without experts.
    fn shared_ff(&self) -> Result<Option<usize>, ShapeError> {
        if !self.architecture.has_shared_expert {
            return Ok(None);
        }
        let key = self.key("expert_shared_feed_forward_length");
        let width = match integer(self.kv, &key, 1, WIDTH_MAX)? {
            Some(width) => Some(to_usize(width)),
            None => self.feed_forward()?,
        };
        width.map(Some).ok_or(ShapeError::MissingKey { key })
    }

    /// The width of a layer without experts. Asked for only where nothing else says how wide experts are: files have 0
    /// here, or a list, where no layer is without experts.
    fn feed_forward(&self) -> Result<Option<usize>, ShapeError> {
        Ok(integer(self.kv, &self.key("feed_forward_length"), 1, WIDTH_MAX)?.map(to_usize))
    }

    /// A number that some exporters write once per layer; all entries must be equal.
    fn uniform(&self, name: &str, max: u64) -> Result<Option<usize>, ShapeError> {
        let key = self.key(name);
        let Some(KeyValue::Integers(list)) = self.kv.get(&key) else {
            return Ok(integer(self.kv, &key, 1, max)?.map(to_usize));
        };
        let Some(&first) = list.first() else {
            return Err(ShapeError::KeyLength { key, found: 0, expected: "one per layer".into() });
        };
        let first = in_range(&key, first, 1, max)?;
        for &value in &list {
            in_range(&key, value, first, first)?;
        }
        Ok(Some(to_usize(first)))
    }
}

pub(crate) fn positive(key: &str, value: f64) -> Result<f64, ShapeError> {
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err(ShapeError::KeyFloat { key: key.to_owned(), value })
    }
}

pub(crate) fn fits(
    (what, value): (&'static str, usize),
    (other, other_value): (&'static str, usize),
    ok: bool,
    rule: &'static str,
) -> Result<(), ShapeError> {
    if ok {
        return Ok(());
    }
    Err(ShapeError::Mismatch { what, value: value as u64, other, other_value: other_value as u64, rule })
}

pub(crate) fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("every limit above fits a usize")
}
