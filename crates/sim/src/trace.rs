//! A recorded routing: what a real model's routers chose, and what they guessed before.

use forerun_model::{ExpertId, LayerId, Routing};
use serde::{Deserialize, Serialize};

use crate::{Guesses, TraceError};

/// Most tokens of a trace.
pub const TOKENS_MAX: usize = 1 << 24;
const LAYERS_MAX: u64 = 1024;
/// Ids of a trace are bytes.
const EXPERTS_MAX: u64 = 256;

/// What every token of a trace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceShape {
    /// Layers.
    pub n_layers: usize,
    /// Experts of a layer.
    pub n_experts: usize,
    /// Experts of a token.
    pub top_k: usize,
}

/// Tokens of a trace that belong together: one text, or one answer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Document {
    /// Where they come from.
    pub source: String,
    /// The first.
    pub first: usize,
    /// How many there are.
    pub count: usize,
}

/// The experts that a real model's router chose, token by token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Tokens.
    pub n_tokens: usize,
    /// Layers.
    pub n_layers: usize,
    /// Experts of a layer.
    pub n_experts: usize,
    /// Experts of a token.
    pub top_k: usize,
    /// The texts, if the header names them.
    pub documents: Vec<Document>,
    /// What each router guessed after the mixer of the layer before, or on the embedding for the first layer.
    pub prev_mid: Option<Guesses>,
    /// What it guessed after that whole layer, or on the embedding.
    pub prev_out: Option<Guesses>,
    /// `[n_tokens, n_layers, top_k]`.
    pub(crate) ids: Vec<u8>,
}

/// The part of a header that matters here.
#[derive(Deserialize)]
struct Header {
    format: String,
    version: u64,
    layers: u64,
    experts: u64,
    top_k: u64,
    tokens: u64,
    #[serde(default)]
    predicted: u64,
    #[serde(default)]
    documents: Vec<Document>,
    arrays: Vec<Array>,
}

#[derive(Deserialize)]
struct Array {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    offset: u64,
}

impl Trace {
    /// Reads a recorded trace from the bytes of its two files, the header and the arrays.
    ///
    /// # Errors
    /// [`TraceError`] says what isn't as the format demands.
    pub fn parse(header: &[u8], arrays: &[u8]) -> Result<Self, TraceError> {
        let header: Header =
            serde_json::from_slice(header).map_err(|source| TraceError::Header { source })?;
        if header.format != "routing-trace" || header.version != 1 {
            return Err(TraceError::Format { format: header.format, version: header.version });
        }
        let n_experts = in_range("experts", header.experts, EXPERTS_MAX)?;
        let n_tokens = in_range("tokens", header.tokens, TOKENS_MAX as u64)?;
        let n_layers = in_range("layers", header.layers, LAYERS_MAX)?;
        let top_k = in_range("top_k", header.top_k, n_experts as u64)?;
        let ids = array("ids", header.top_k, &header, arrays)?;
        let prev_mid = guesses("pred:prev_mid", &header, arrays)?;
        let prev_out = guesses("pred:prev_out", &header, arrays)?;
        let Header { documents, .. } = header;
        let trace = Self { n_tokens, n_layers, n_experts, top_k, documents, prev_mid, prev_out, ids };
        trace.check()?;
        Ok(trace)
    }

    /// A trace from the experts of every token and layer, best first: `ids` is `[n_tokens, n_layers, top_k]`.
    ///
    /// # Errors
    /// [`TraceError`] for a shape that the format can't hold, or an expert that the shape lacks.
    ///
    /// # Panics
    /// When `ids` doesn't end with a whole token.
    pub fn new(shape: TraceShape, ids: Vec<u8>) -> Result<Self, TraceError> {
        let TraceShape { n_layers, n_experts, top_k } = shape;
        let n_experts = in_range("experts", n_experts as u64, EXPERTS_MAX)?;
        let n_layers = in_range("layers", n_layers as u64, LAYERS_MAX)?;
        let top_k = in_range("top_k", top_k as u64, n_experts as u64)?;
        assert!(ids.len().is_multiple_of(n_layers * top_k), "whole tokens");
        let n_tokens = in_range("tokens", (ids.len() / (n_layers * top_k)) as u64, TOKENS_MAX as u64)?;
        let (documents, prev_mid, prev_out) = (Vec::new(), None, None);
        let trace = Self { n_tokens, n_layers, n_experts, top_k, documents, prev_mid, prev_out, ids };
        trace.check()?;
        Ok(trace)
    }

    /// The experts that `token` chose in `layer`, best first.
    ///
    /// # Panics
    /// When there is no such token or layer.
    pub fn row(&self, token: usize, layer: LayerId) -> &[u8] {
        assert!(token < self.n_tokens && layer.idx() < self.n_layers, "no token {token} or no {layer}");
        let at = (token * self.n_layers + layer.idx()) * self.top_k;
        &self.ids[at..at + self.top_k]
    }

    /// The layers, in order.
    pub fn layers(&self) -> impl Iterator<Item = LayerId> + use<> {
        (0..u16::MAX).map(LayerId).take(self.n_layers)
    }

    fn check(&self) -> Result<(), TraceError> {
        self.check_rows(&self.ids, self.top_k)?;
        for guesses in self.prev_mid.iter().chain(&self.prev_out) {
            self.check_rows(guesses.ids(), guesses.n_each())?;
        }
        let outside = |document: &&Document| {
            document.first.checked_add(document.count).is_none_or(|end| end > self.n_tokens)
        };
        match self.documents.iter().find(outside) {
            None => Ok(()),
            Some(&Document { first, count, .. }) => {
                Err(TraceError::Document { first, count, n_tokens: self.n_tokens })
            }
        }
    }

    fn check_rows(&self, ids: &[u8], n_each: usize) -> Result<(), TraceError> {
        for (i, row) in ids.chunks(n_each).enumerate() {
            let wrong =
                |&(rank, &id): &(usize, &u8)| usize::from(id) >= self.n_experts || row[..rank].contains(&id);
            if let Some((_, &expert)) = row.iter().enumerate().find(wrong) {
                let (token, layer) = (i / self.n_layers, i % self.n_layers);
                let n_experts = self.n_experts;
                return Err(if usize::from(expert) < n_experts {
                    TraceError::Twice { token, layer, expert }
                } else {
                    TraceError::Expert { token, layer, expert, n_experts }
                });
            }
        }
        Ok(())
    }

    /// Replaces `routing` by what `token` chose in `layer`, grouped; the weights are all the same.
    ///
    /// # Panics
    /// When there is no such token or layer.
    pub fn routing(&self, token: usize, layer: LayerId, routing: &mut Routing) {
        let row = self.row(token, layer).iter().map(|&id| (ExpertId(id.into()), 1.0));
        routing.reset(self.top_k);
        routing.push_row(&row.collect::<Vec<_>>());
        routing.group();
    }
}

/// The bytes of the array `name`, `n_each` for every token and layer.
fn array(name: &'static str, n_each: u64, header: &Header, arrays: &[u8]) -> Result<Vec<u8>, TraceError> {
    let shape = [header.tokens, header.layers, n_each];
    let array = header.arrays.iter().find(|a| a.name == name && a.dtype == "u8" && a.shape == shape);
    let array = array.ok_or_else(|| TraceError::Array { name, expected: format!("u8 {shape:?}") })?;
    // Each factor was checked against its maximum before.
    let len = shape.iter().fold(1u64, |product, &n| product.saturating_mul(n));
    let (start, end) = (array.offset, array.offset.saturating_add(len));
    let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    let bytes = range.and_then(|(start, end)| arrays.get(start..end));
    let found_bytes = arrays.len() as u64;
    bytes.map(<[u8]>::to_vec).ok_or(TraceError::End { name, start, end, found_bytes })
}

/// The guesses of the array `name`, if there is one.
fn guesses(name: &'static str, header: &Header, arrays: &[u8]) -> Result<Option<Guesses>, TraceError> {
    if header.arrays.iter().all(|array| array.name != name) {
        return Ok(None);
    }
    let n_each = in_range("predicted", header.predicted, header.experts)?;
    let ids = array(name, header.predicted, header, arrays)?;
    let n_layers = in_range("layers", header.layers, LAYERS_MAX)?;
    Ok(Some(Guesses::of(n_layers, n_each, ids)))
}

fn in_range(what: &'static str, value: u64, max: u64) -> Result<usize, TraceError> {
    let found = usize::try_from(value).ok().filter(|_| (1..=max).contains(&value));
    found.ok_or(TraceError::Range { what, value, min: 1, max })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(tokens: u64, experts: u64, offset: u64) -> String {
        format!(
            r#"{{"format": "routing-trace", "version": 1, "layers": 2, "experts": {experts}, "top_k": 2,
            "tokens": {tokens}, "more": true, "arrays": [{{"name": "ids", "dtype": "u8",
            "shape": [{tokens}, 2, 2], "offset": {offset}}}]}}"#
        )
    }

    #[test]
    fn a_trace_gives_back_its_rows() {
        let trace = Trace::parse(header(2, 8, 1).as_bytes(), &[9, 0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        let mut routing = Routing::default();
        trace.routing(1, LayerId(0), &mut routing);
        assert_eq!(routing.row(0), [(ExpertId(4), 1.0), (ExpertId(5), 1.0)]);
    }

    /// One token of two layers, with guesses of three experts.
    fn guessed(guesses: [u8; 6], document: &str) -> Result<Trace, TraceError> {
        let header = header(1, 8, 0)
            .replace("\"more\": true", &format!("\"predicted\": 3, \"documents\": [{document}]"))
            .replace(
                "}]}",
                r#"}, {"name": "pred:prev_out", "dtype": "u8", "shape": [1, 2, 3], "offset": 4}]}"#,
            );
        Trace::parse(header.as_bytes(), &[&[0, 1, 2, 3], guesses.as_slice()].concat())
    }

    #[test]
    fn a_trace_gives_back_its_guesses_and_documents() {
        let trace = guessed([7, 6, 5, 4, 3, 2], r#"{"source": "book", "first": 0, "count": 1}"#).unwrap();
        assert_eq!(trace.prev_out.unwrap().row(0, LayerId(1)), [4, 3, 2]);
        assert_eq!(trace.prev_mid, None);
        assert_eq!(trace.documents, [Document { source: "book".into(), first: 0, count: 1 }]);
    }

    #[test]
    fn wrong_guesses_and_documents_are_refused() {
        let outside = guessed([7, 6, 5, 4, 3, 2], r#"{"source": "", "first": 1, "count": 1}"#);
        assert!(matches!(outside, Err(TraceError::Document { first: 1, count: 1, n_tokens: 1 })));
        let unknown = guessed([7, 6, 5, 4, 3, 8], "");
        assert!(matches!(unknown, Err(TraceError::Expert { layer: 1, expert: 8, n_experts: 8, .. })));
        let short = Trace::parse(
            header(1, 8, 0)
                .replace(
                    "}]}",
                    r#"}, {"name": "pred:prev_mid", "dtype": "u8", "shape": [1, 2, 3], "offset": 4}]}"#,
                )
                .as_bytes(),
            &[0, 1, 2, 3],
        );
        assert!(matches!(short, Err(TraceError::Range { what: "predicted", value: 0, .. })));
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        let ids = [0, 1, 2, 3, 4, 5, 6, 7];
        let parse = |header: String| Trace::parse(header.as_bytes(), &ids);
        assert!(matches!(parse(String::new()), Err(TraceError::Header { .. })));
        assert!(matches!(parse(header(2, 0, 0)), Err(TraceError::Range { what: "experts", .. })));
        assert!(matches!(parse(header(1 << 40, 8, 0)), Err(TraceError::Range { what: "tokens", .. })));
        assert!(matches!(parse(header(2, 8, 1)), Err(TraceError::End { .. })));
        assert!(matches!(parse(header(2, 8, u64::MAX)), Err(TraceError::End { .. })));
        assert!(matches!(parse(header(2, 7, 0)), Err(TraceError::Expert { expert: 7, n_experts: 7, .. })));
        assert!(matches!(parse(header(2, 8, 0).replace("u8", "u16")), Err(TraceError::Array { .. })));
        assert!(matches!(parse(header(2, 8, 0).replace("routing-", "")), Err(TraceError::Format { .. })));
        let twice = Trace::parse(header(1, 8, 0).as_bytes(), &[1, 2, 3, 3]);
        assert!(matches!(twice, Err(TraceError::Twice { token: 0, layer: 1, expert: 3 })));
    }
}
