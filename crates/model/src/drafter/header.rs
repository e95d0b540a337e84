//! Reads a drafter's header key by key; every number has a range and must fit the others, its tensors, and the model.

use super::{
    ARCHITECTURE, BLOCK_MAX, CONFIDENCE, ConfidenceShape, DrafterShape, FEATURES, MARKOV_IN, TARGET_IDS,
};
use crate::metadata::{self, KeyValue, KeyValues, boolean, float, in_range, integer, required_integer};
use crate::shape::header::{CONTEXT_MAX, HEADS_MAX, WIDTH_MAX, fits, positive, to_usize};
use crate::{
    AttentionParts, AttentionShape, HEAD_DIM_MAX, LayerId, ModelShape, RopeShape, ShapeError, TokenId,
};

/// Most layers of a drafter.
const LAYERS_MAX: u64 = 64;
/// Widest Markov table.
const RANK_MAX: u64 = 1 << 14;
/// Keys that change what is computed and aren't done here; absent, zero and false are right.
const REFUSED: [&str; 12] = [
    "expert_count",
    "attention.q_lora_rank",
    "attention.kv_lora_rank",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
    "use_parallel_residual",
];

/// A file's metadata, the dimensions of its tensors, and the model that it must fit.
pub(super) struct Header<'a> {
    pub(super) kv: &'a dyn KeyValues,
    pub(super) dims: &'a dyn Fn(&str) -> Option<Vec<u64>>,
    pub(super) target: &'a ModelShape,
}

impl Header<'_> {
    fn need(&self, name: &str, min: u64, max: u64) -> Result<usize, ShapeError> {
        required_integer(self.kv, &key(name), min, max).map(to_usize)
    }

    fn or(&self, name: &str, default: usize, min: u64, max: u64) -> Result<usize, ShapeError> {
        Ok(integer(self.kv, &key(name), min, max)?.map_or(default, to_usize))
    }

    pub(super) fn shape(&self) -> Result<DrafterShape, ShapeError> {
        self.architecture()?;
        self.nothing_else()?;
        let hidden = self.need("embedding_length", 1, WIDTH_MAX)?;
        fits(
            ("dflash.embedding_length", hidden),
            ("the model's embedding_length", self.target.hidden),
            hidden == self.target.hidden,
            "a drafter has the hidden size of its model",
        )?;
        let n_vocab = self.n_vocab()?;
        let attention = self.attention(hidden)?;
        let block = self.need("block_size", 1, BLOCK_MAX as u64)?;
        let drafts_from_anchor = boolean(self.kv, &key("sample_from_anchor"))?.unwrap_or(true);
        if !drafts_from_anchor {
            // The first slot gives nothing then.
            self.need("block_size", 2, BLOCK_MAX as u64)?;
        }
        let markov_rank = self.length(MARKOV_IN, RANK_MAX)?;
        let shape = DrafterShape {
            hidden,
            n_vocab,
            n_drafted: self.length(TARGET_IDS, n_vocab as u64)?.unwrap_or(n_vocab),
            context_max: self.or("context_length", self.target.context_max, 1, CONTEXT_MAX)?,
            norm_eps: self.norm_eps()?,
            windows: self.windows()?,
            attention,
            rope: self.rope(attention.head_dim)?,
            ff: self.need("feed_forward_length", 1, WIDTH_MAX)?,
            block,
            taps: self.taps(hidden)?,
            mask: self.mask()?,
            drafts_from_anchor,
            causal: boolean(self.kv, &key("attention.causal"))?.unwrap_or(false),
            markov_rank,
            confidence: None,
        };
        let confidence = self.confidence(&shape)?;
        Ok(DrafterShape { confidence, ..shape })
    }

    fn architecture(&self) -> Result<(), ShapeError> {
        let key = "general.architecture";
        match self.kv.get(key) {
            Some(KeyValue::Text(ARCHITECTURE)) => Ok(()),
            Some(KeyValue::Text(found)) => {
                Err(ShapeError::UnknownArchitecture { found: found.to_owned(), supported: ARCHITECTURE })
            }
            Some(other) => Err(metadata::wrong_type(key, "a string", &other)),
            None => Err(ShapeError::MissingKey { key: key.into() }),
        }
    }

    fn nothing_else(&self) -> Result<(), ShapeError> {
        for name in REFUSED {
            let found = match self.kv.get(&key(name)) {
                None | Some(KeyValue::Integer(0) | KeyValue::Bool(false)) => continue,
                Some(KeyValue::Float(0.0)) => continue,
                Some(KeyValue::Integer(value)) => value.to_string(),
                Some(KeyValue::Float(value)) => value.to_string(),
                Some(other) => other.kind().to_owned(),
            };
            return Err(ShapeError::KeyUnsupported { key: key(name), found, supported: "absent or zero" });
        }
        match self.kv.get(&key("rope.scaling.type")) {
            Some(KeyValue::Text(kind)) if kind != "none" => Err(ShapeError::KeyUnsupported {
                key: key("rope.scaling.type"),
                found: format!("`{}`", kind.escape_debug()),
                supported: "absent or `none`",
            }),
            _ => Ok(()),
        }
    }

    /// A vocabulary of its own must be the model's; most files have a copy.
    fn n_vocab(&self) -> Result<usize, ShapeError> {
        let n_vocab = self.target.n_vocab;
        if let Some(KeyValue::Texts(tokens)) = self.kv.get("tokenizer.ggml.tokens") {
            fits(
                ("tokenizer.ggml.tokens (entries)", tokens.len()),
                ("the model's vocabulary", n_vocab),
                tokens.len() == n_vocab,
                "a drafter has the vocabulary of its model",
            )?;
        }
        Ok(n_vocab)
    }

    #[expect(clippy::cast_possible_truncation, reason = "an f32 in the file")]
    fn norm_eps(&self) -> Result<f32, ShapeError> {
        let key = key("attention.layer_norm_rms_epsilon");
        let value = float(self.kv, &key)?.ok_or_else(|| ShapeError::MissingKey { key: key.clone() })?;
        positive(&key, value).map(|v| v as f32)
    }

    fn attention(&self, hidden: usize) -> Result<AttentionShape, ShapeError> {
        let n_heads = self.need("attention.head_count", 1, HEADS_MAX)?;
        let n_kv_heads = self.or("attention.head_count_kv", n_heads, 1, HEADS_MAX)?;
        let widest = HEAD_DIM_MAX as u64;
        let head_dim = match integer(self.kv, &key("attention.key_length"), 1, widest)? {
            Some(dim) => to_usize(dim),
            None => hidden / n_heads,
        };
        let value_dim = self.or("attention.value_length", head_dim, 1, widest)?;
        fits(
            ("dflash.attention.head_count", n_heads),
            ("dflash.attention.head_count_kv", n_kv_heads),
            n_heads.is_multiple_of(n_kv_heads),
            "query heads must be a multiple of key-value heads",
        )?;
        fits(
            ("dflash.attention.value_length", value_dim),
            ("dflash.attention.key_length", head_dim),
            value_dim == head_dim,
            "they must be equal",
        )?;
        fits(
            ("dflash.attention.key_length", head_dim),
            ("half", head_dim / 2),
            (2..=HEAD_DIM_MAX).contains(&head_dim) && head_dim.is_multiple_of(2),
            "a head must have an even number of values, 2 to 1024",
        )?;
        let parts = AttentionParts { gate: false, head_norms: true };
        Ok(AttentionShape { n_heads, n_kv_heads, head_dim, parts })
    }

    /// Drafters turn by the text's position alone; sections that say otherwise are refused.
    fn rope(&self, head_dim: usize) -> Result<RopeShape, ShapeError> {
        let n_rot = self.or("rope.dimension_count", head_dim, 2, head_dim as u64)?;
        fits(
            ("dflash.rope.dimension_count", n_rot),
            ("half", n_rot / 2),
            n_rot.is_multiple_of(2),
            "it must be even",
        )?;
        let base_key = key("rope.freq_base");
        let freq_base = positive(&base_key, float(self.kv, &base_key)?.unwrap_or(10_000.0))?;
        let sections_key = key("rope.dimension_sections");
        match self.kv.get(&sections_key) {
            None => {}
            Some(KeyValue::Integers(list)) if list.iter().skip(1).all(|&n| n == 0) => {}
            Some(other) => {
                let found = match other {
                    KeyValue::Integers(list) => format!("{list:?}"),
                    other => other.kind().to_owned(),
                };
                let supported = "absent, or all pairs in the first section";
                return Err(ShapeError::KeyUnsupported { key: sections_key, found, supported });
            }
        }
        Ok(RopeShape { n_rot, freq_base, sections: [n_rot / 2, 0, 0, 0] })
    }

    /// With a pattern, only the layers that it names have the window.
    fn windows(&self) -> Result<Vec<Option<usize>>, ShapeError> {
        let n_layers = self.need("block_count", 1, LAYERS_MAX)?;
        let window = match integer(self.kv, &key("attention.sliding_window"), 0, CONTEXT_MAX)? {
            None | Some(0) => None,
            Some(window) => Some(to_usize(window)),
        };
        let key = key("attention.sliding_window_pattern");
        match self.kv.get(&key) {
            None => Ok(vec![window; n_layers]),
            Some(KeyValue::Bools(flags)) if flags.len() == n_layers => {
                Ok(flags.into_iter().map(|has| window.filter(|_| has)).collect())
            }
            Some(KeyValue::Bools(flags)) => {
                let expected = format!("{n_layers}, one per layer");
                Err(ShapeError::KeyLength { key, found: flags.len(), expected })
            }
            Some(other) => Err(metadata::wrong_type(&key, "an array of bools, one per layer", &other)),
        }
    }

    /// The file counts layers' inputs: what is read of layer `i` is the input of layer `i + 1`.
    fn taps(&self, hidden: usize) -> Result<Vec<LayerId>, ShapeError> {
        let key = key("target_layers");
        let list = match self.kv.get(&key) {
            Some(KeyValue::Integers(list)) => list,
            Some(other) => return Err(metadata::wrong_type(&key, "an array of integers", &other)),
            None => return Err(ShapeError::MissingKey { key }),
        };
        if list.is_empty() {
            return Err(ShapeError::KeyLength { key, found: 0, expected: "at least 1".into() });
        }
        let mut taps: Vec<LayerId> = Vec::with_capacity(list.len());
        for &value in &list {
            let least = taps.last().map_or(1, |last| u64::from(last.0) + 2);
            let input = in_range(&key, value, least, self.target.n_layers() as u64)?;
            taps.push(LayerId(u16::try_from(input - 1).unwrap_or(u16::MAX)));
        }
        let Some(found) = (self.dims)(FEATURES) else {
            return Err(ShapeError::MissingTensor { name: FEATURES.into() });
        };
        let width = found.first().map_or(0, |&width| usize::try_from(width).unwrap_or(usize::MAX));
        fits(
            ("dflash.target_layers (entries)", taps.len()),
            ("columns of `fc.weight`", width),
            taps.len() * hidden == width,
            "it has as many columns as the tapped layers have values",
        )?;
        Ok(taps)
    }

    fn mask(&self) -> Result<TokenId, ShapeError> {
        let key = "tokenizer.ggml.mask_token_id";
        let id = required_integer(self.kv, key, 0, self.target.n_vocab as u64 - 1)?;
        Ok(TokenId(u32::try_from(id).unwrap_or(u32::MAX)))
    }

    /// The first dimension of a tensor, if there is one.
    fn length(&self, name: &str, max: u64) -> Result<Option<usize>, ShapeError> {
        let Some(found) = (self.dims)(name) else { return Ok(None) };
        match found.first() {
            Some(&len) if (1..=max).contains(&len) => Ok(Some(to_usize(len))),
            _ => Err(ShapeError::TensorShape { name: name.to_owned(), found, expected: vec![max] }),
        }
    }

    /// The tensor tells whether there is a head, unless the header does.
    fn confidence(&self, shape: &DrafterShape) -> Result<Option<ConfidenceShape>, ShapeError> {
        let found = (self.dims)(CONFIDENCE);
        match boolean(self.kv, &key("has_confidence_head"))? {
            Some(false) => return Ok(None),
            Some(true) if found.is_none() => {
                return Err(ShapeError::MissingTensor { name: CONFIDENCE.into() });
            }
            _ => {}
        }
        let Some(found) = found else { return Ok(None) };
        // Of any other width it is refused with the tensors.
        let reads_markov = shape.markov_rank.is_some() && found.first() != Some(&(shape.hidden as u64));
        Ok(Some(ConfidenceShape { reads_markov, temperatures: self.temperatures(shape.n_drafts())? }))
    }

    #[expect(clippy::cast_possible_truncation, reason = "an f32 in the file")]
    fn temperatures(&self, n_drafts: usize) -> Result<Vec<f32>, ShapeError> {
        let key = key("confidence_temperature");
        let list = match self.kv.get(&key) {
            None => return Ok(Vec::new()),
            Some(KeyValue::Floats(list)) => list,
            Some(other) => return Err(metadata::wrong_type(&key, "an array of floats", &other)),
        };
        if list.len() != n_drafts {
            let expected = format!("{n_drafts}, one per draft of a block");
            return Err(ShapeError::KeyLength { key, found: list.len(), expected });
        }
        list.into_iter().map(|value| positive(&key, value).map(|v| v as f32)).collect()
    }
}

/// A key of the architecture.
fn key(name: &str) -> String {
    format!("{ARCHITECTURE}.{name}")
}
