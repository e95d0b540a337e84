//! Logits to a token: penalties, filters, and a draw that depends on nothing but its place.
//!
//! The order is llama.cpp's: tokens outside the grammar and banned ones out, repetition, presence and frequency penalties, then (unless the
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

use crate::grammar::{Grammar, Guide};
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

/// Draws tokens. Its buffers are reused: after the first draw there is no allocation, but for what a grammar takes.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplerConfig,
    n_vocab: usize,
    /// Tokens that are never drawn, sorted.
    banned: Box<[TokenId]>,
    candidates: Vec<Candidate>,
    /// Logits with penalties, without what is outside the grammar.
    adjusted: Vec<f32>,
    guide: Option<Box<Guide>>,
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
        Ok(Self {
            config,
            n_vocab,
            banned: banned.into(),
            candidates: Vec::new(),
            adjusted: Vec::new(),
            guide: None,
        })
    }

    /// The same sampler for an answer that keeps to `grammar`, if there is one; the answer begins empty.
    ///
    /// # Errors
    /// [`SamplerError::GrammarVocabulary`] when the grammar was compiled for more tokens.
    pub fn with_grammar(self, grammar: Option<&Grammar>) -> Result<Self, SamplerError> {
        let guide = grammar.map(|grammar| match grammar.n_vocab() {
            found if found > self.n_vocab => {
                Err(SamplerError::GrammarVocabulary { found, expected: self.n_vocab })
            }
            _ => Ok(Box::new(Guide::new(grammar))),
        });
        Ok(Self { guide: guide.transpose()?, ..self })
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
    /// [`SamplerError`]: logits of another number, a logit that is NaN or +inf, no token left to draw, or a grammar that the
    /// history has left.
    pub fn sample(&mut self, logits: &[f32], history: &History, draw: Draw) -> Result<TokenId, SamplerError> {
        if logits.len() != self.n_vocab {
            return Err(SamplerError::LogitsLength { found: logits.len(), expected: self.n_vocab });
        }
        if let Some((token, value)) = filter::first_bad(logits) {
            return Err(SamplerError::NotFinite { token, value });
        }
        let is_adjusted = self.adjust(logits, history)?;
        let Self { config, banned, candidates, adjusted, .. } = self;
        let logits = if is_adjusted { &*adjusted } else { logits };
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

    /// Copies the logits, masks what is outside the grammar and takes penalties from the rest, if there is any of it to
    /// do: then the result is `true`. A masked token stays masked, and penalties mask none.
    fn adjust(&mut self, logits: &[f32], history: &History) -> Result<bool, SamplerError> {
        let has_penalties = self.config.has_penalties();
        if !has_penalties && self.guide.is_none() {
            return Ok(false);
        }
        self.adjusted.clear();
        self.adjusted.extend_from_slice(logits);
        if let Some(guide) = &mut self.guide {
            guide.mask(history.answer(), &mut self.adjusted)?;
        }
        for seen in history.tokens().filter(|_| has_penalties) {
            match self.adjusted.get_mut(seen.token.idx()) {
                Some(logit) if *logit != f32::NEG_INFINITY => {
                    *logit = self.config.penalised(*logit + 0.0, seen).clamp(f32::MIN, f32::MAX);
                }
                _ => {}
            }
        }
        Ok(true)
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
