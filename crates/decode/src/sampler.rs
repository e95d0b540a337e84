//! Logits to a token: penalties, filters, and a draw that depends on nothing but its place.
//!
//! The order is llama.cpp's: banned tokens out, repetition, presence and frequency penalties, then (unless the
//! temperature is 0) top-k, top-p, min-p, temperature, and the draw. So top-p and min-p look at probabilities
//! before the temperature, among the tokens that top-k left.
//!
//! The draw takes the token with the largest `logit / temperature + noise`, where the noise is Gumbel-distributed
//! and comes from a hash of seed, choice, position and token. This picks each token with exactly its probability,
//! and the result at a position doesn't depend on what was drawn or verified before: a draft can't change it.
//!
//! Exponentials and logarithms are `libm`'s pure Rust, and sums run in a fixed order, so the same logits give the
//! same token on every platform.

mod config;
mod error;
mod filter;
mod history;
mod logprobs;
mod noise;

use std::cmp::Ordering;

use forerun_model::TokenId;

pub use config::SamplerConfig;
pub use error::SamplerError;
pub use history::History;
pub use logprobs::{TokenLogprob, logprob, top_logprobs};

use filter::Candidate;
use noise::Noise;

/// Where a token is drawn; the same place gives the same noise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Draw {
    /// Which of several answers to one prompt.
    pub choice: u32,
    /// The position in the sequence that the token will have.
    pub position: u64,
}

/// Draws tokens. Its buffers are reused: after the first draw there is no allocation.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplerConfig,
    n_vocab: usize,
    /// Tokens that are never drawn, sorted.
    banned: Box<[TokenId]>,
    candidates: Vec<Candidate>,
    /// Logits with penalties.
    penalised: Vec<f32>,
}

impl Sampler {
    /// A sampler over `n_vocab` logits that never draws a token of `banned`.
    ///
    /// # Errors
    /// [`SamplerError::Parameter`] names the parameter, its value and its range.
    pub fn new(
        config: SamplerConfig,
        n_vocab: usize,
        banned: impl IntoIterator<Item = TokenId>,
    ) -> Result<Self, SamplerError> {
        config.validate()?;
        let mut banned: Vec<_> = banned.into_iter().collect();
        banned.sort_unstable();
        banned.dedup();
        Ok(Self { config, n_vocab, banned: banned.into(), candidates: Vec::new(), penalised: Vec::new() })
    }

    /// Logits that it takes.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// The parameters.
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// Draws the token at `draw`. A logit of -inf is a token that can't be drawn, such as one outside a grammar.
    ///
    /// # Errors
    /// [`SamplerError`]: logits of another number, a logit that is NaN or +inf, or no token left to draw.
    pub fn sample(&mut self, logits: &[f32], history: &History, draw: Draw) -> Result<TokenId, SamplerError> {
        if logits.len() != self.n_vocab {
            return Err(SamplerError::LogitsLength { found: logits.len(), expected: self.n_vocab });
        }
        if let Some((token, value)) = filter::first_bad(logits) {
            return Err(SamplerError::NotFinite { token, value });
        }
        let has_penalties = self.config.has_penalties();
        if has_penalties {
            self.penalise(logits, history);
        }
        let Self { config, banned, candidates, penalised, .. } = self;
        let logits = if has_penalties { &*penalised } else { logits };
        if config.temperature == 0.0 {
            filter::most_probable(logits, banned, 1, candidates);
            return candidates.first().map(|best| best.token).ok_or(SamplerError::NothingLeft);
        }
        filter::most_probable(logits, banned, config.top_k, candidates);
        filter::top_p(&mut self.candidates, config.top_p);
        filter::min_p(&mut self.candidates, config.min_p);
        let noise = Noise::new(config.seed, draw);
        let inverse = 1.0 / f64::from(config.temperature);
        let mut best = None;
        for &Candidate { token, logit } in &self.candidates {
            let scaled = f64::from(logit) * inverse;
            // Most of many candidates can't win with any noise that they may have.
            if best.is_none_or(|(score, _)| scaled + noise.gumbel_max(token) >= score) {
                let next = (scaled + noise.gumbel(token), token);
                best = Some(best.map_or(next, |best| better(best, next)));
            }
        }
        best.map(|(_, token)| token).ok_or(SamplerError::NothingLeft)
    }

    /// Copies the logits and takes the penalties from them; a masked token stays masked, and no other becomes so.
    fn penalise(&mut self, logits: &[f32], history: &History) {
        self.penalised.clear();
        self.penalised.extend_from_slice(logits);
        for seen in history.tokens() {
            match self.penalised.get_mut(seen.token.idx()) {
                Some(logit) if *logit != f32::NEG_INFINITY => {
                    *logit = self.config.penalised(*logit + 0.0, seen).clamp(f32::MIN, f32::MAX);
                }
                _ => {}
            }
        }
    }
}

/// The larger score; of equal ones the lower id.
fn better(best: (f64, TokenId), next: (f64, TokenId)) -> (f64, TokenId) {
    match next.0.total_cmp(&best.0) {
        Ordering::Greater => next,
        Ordering::Equal if next.1 < best.1 => next,
        _ => best,
    }
}

#[cfg(test)]
mod tests;
