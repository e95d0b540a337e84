//! What a machine is asked to do: tokens for a backend, or routings alone, made up or recorded.

use forerun_model::{ExpertId, LayerId, Routing, TokenId};
use serde::Deserialize;

use crate::{Rng, TraceError};

const TOKENS_MAX: u64 = 1 << 24;
const LAYERS_MAX: u64 = 1024;
/// Ids of a trace are bytes.
const EXPERTS_MAX: u64 = 256;

/// One pass through the layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkStep {
    /// Its tokens.
    pub tokens: Vec<TokenId>,
    /// How many of them are accepted: fewer than all, as after a rejected draft.
    pub n_accepted: usize,
}

/// The steps of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The steps, in order.
    pub steps: Vec<WorkStep>,
}

impl Workload {
    /// A prompt of some length, then `n_steps` steps of one token, or of a few of which some are rejected.
    pub fn random(seed: u64, n_vocab: usize, n_steps: usize) -> Self {
        let mut rng = Rng::new(seed);
        let step = |n_tokens: usize, n_accepted: usize, rng: &mut Rng| {
            let token = |_| TokenId(u32::try_from(rng.index(n_vocab)).unwrap_or(0));
            WorkStep { tokens: (0..n_tokens).map(token).collect(), n_accepted }
        };
        let n_prompt = 4 + rng.index(16);
        let mut steps = vec![step(n_prompt, n_prompt, &mut rng)];
        for _ in 0..n_steps {
            let n_tokens = if rng.happens(300) { 2 + rng.index(5) } else { 1 };
            let n_accepted = 1 + rng.index(n_tokens);
            steps.push(step(n_tokens, n_accepted, &mut rng));
        }
        Self { steps }
    }
}

/// Makes up routings whose rows keep some experts of the row before.
#[derive(Clone, Debug)]
pub struct Synthetic {
    rng: Rng,
    n_experts: u16,
    top_k: usize,
    reuse_permille: u32,
    /// The last row of each layer.
    last: Vec<Vec<ExpertId>>,
}

impl Synthetic {
    /// Routings of `top_k` of `n_experts` experts, each kept from the row before with `reuse_permille`.
    ///
    /// # Panics
    /// When a row asks for more experts than there are.
    pub fn new(seed: u64, n_experts: u16, top_k: usize, reuse_permille: u32) -> Self {
        assert!(top_k <= n_experts.into(), "a row of {top_k} of {n_experts} experts");
        Self { rng: Rng::new(seed), n_experts, top_k, reuse_permille, last: Vec::new() }
    }

    /// Replaces `routing` by the next `n_rows` rows of `layer`, grouped.
    pub fn next(&mut self, layer: LayerId, n_rows: usize, routing: &mut Routing) {
        if self.last.len() <= layer.idx() {
            self.last.resize(layer.idx() + 1, Vec::new());
        }
        routing.reset(self.top_k);
        for _ in 0..n_rows {
            let mut row = std::mem::take(&mut self.last[layer.idx()]);
            row.retain(|_| self.rng.happens(self.reuse_permille));
            while row.len() < self.top_k {
                let expert = ExpertId(u16::try_from(self.rng.below(self.n_experts.into())).unwrap_or(0));
                if !row.contains(&expert) {
                    row.push(expert);
                }
            }
            routing.push_row(&row.iter().map(|&expert| (expert, 1.0)).collect::<Vec<_>>());
            self.last[layer.idx()] = row;
        }
        routing.group();
    }
}

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
    /// `[n_tokens, n_layers, top_k]`.
    ids: Vec<u8>,
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
        let trace = Self {
            n_tokens: in_range("tokens", header.tokens, TOKENS_MAX)?,
            n_layers: in_range("layers", header.layers, LAYERS_MAX)?,
            n_experts,
            top_k: in_range("top_k", header.top_k, n_experts as u64)?,
            ids: ids(&header, arrays)?,
        };
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
        let n_tokens = in_range("tokens", (ids.len() / (n_layers * top_k)) as u64, TOKENS_MAX)?;
        let trace = Self { n_tokens, n_layers, n_experts, top_k, ids };
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
        for (i, row) in self.ids.chunks(self.top_k).enumerate() {
            let wrong =
                |&(rank, &id): &(usize, &u8)| usize::from(id) >= self.n_experts || row[..rank].contains(&id);
            if let Some((_, &expert)) = row.iter().enumerate().find(wrong) {
                let (token, layer) = (i / self.n_layers, i % self.n_layers);
                let known = usize::from(expert) < self.n_experts;
                let problem = if known { "twice" } else { "of fewer" };
                return Err(TraceError::Expert { token, layer, expert, problem });
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

/// The bytes of the array `ids`.
fn ids(header: &Header, arrays: &[u8]) -> Result<Vec<u8>, TraceError> {
    let shape = [header.tokens, header.layers, header.top_k];
    let array = header.arrays.iter().find(|a| a.name == "ids" && a.dtype == "u8" && a.shape == shape);
    let array = array.ok_or_else(|| TraceError::Array { name: "ids", expected: format!("u8 {shape:?}") })?;
    // Each factor was checked against its maximum before.
    let len = shape.iter().fold(1u64, |product, &n| product.saturating_mul(n));
    let (start, end) = (array.offset, array.offset.saturating_add(len));
    let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    let bytes = range.and_then(|(start, end)| arrays.get(start..end));
    let found_bytes = arrays.len() as u64;
    bytes.map(<[u8]>::to_vec).ok_or(TraceError::End { name: "ids", start, end, found_bytes })
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

    #[test]
    fn what_is_no_trace_is_refused() {
        let ids = [0, 1, 2, 3, 4, 5, 6, 7];
        let parse = |header: String| Trace::parse(header.as_bytes(), &ids);
        assert!(matches!(parse(String::new()), Err(TraceError::Header { .. })));
        assert!(matches!(parse(header(2, 0, 0)), Err(TraceError::Range { what: "experts", .. })));
        assert!(matches!(parse(header(1 << 40, 8, 0)), Err(TraceError::Range { what: "tokens", .. })));
        assert!(matches!(parse(header(2, 8, 1)), Err(TraceError::End { .. })));
        assert!(matches!(parse(header(2, 8, u64::MAX)), Err(TraceError::End { .. })));
        assert!(matches!(
            parse(header(2, 7, 0)),
            Err(TraceError::Expert { expert: 7, problem: "of fewer", .. })
        ));
        assert!(matches!(parse(header(2, 8, 0).replace("u8", "u16")), Err(TraceError::Array { .. })));
        assert!(matches!(parse(header(2, 8, 0).replace("routing-", "")), Err(TraceError::Format { .. })));
        let twice = Trace::parse(header(1, 8, 0).as_bytes(), &[1, 2, 3, 3]);
        assert!(matches!(twice, Err(TraceError::Expert { token: 0, layer: 1, expert: 3, problem: "twice" })));
    }

    #[test]
    fn reuse_keeps_experts_from_row_to_row() {
        let kept = |reuse_permille| {
            let mut routings = Synthetic::new(1, 64, 8, reuse_permille);
            let mut routing = Routing::default();
            routings.next(LayerId(0), 100, &mut routing);
            let wants = |row: usize, e: ExpertId| routing.row(row).iter().any(|x| x.0 == e);
            (1..100)
                .flat_map(|r| routing.row(r).iter().map(move |e| (r, e.0)))
                .filter(|&(r, e)| wants(r - 1, e))
                .count()
        };
        assert!(kept(900) > 700 && kept(100) < 200, "{} {}", kept(900), kept(100));
    }
}
