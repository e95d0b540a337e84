//! The parameters of sampling.

use serde::{Deserialize, Serialize};

use super::SamplerError;
use super::history::Seen;

/// How tokens are drawn. The defaults are those that the Qwen3.5 files carry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplerConfig {
    /// Flattens (above 1) or sharpens the distribution; 0 takes the most probable token always.
    pub temperature: f32,
    /// Only so many of the most probable tokens; 0 for all.
    pub top_k: usize,
    /// Only the fewest tokens whose probabilities reach this sum; 1 for all.
    pub top_p: f32,
    /// Only tokens with at least this share of the largest probability; 0 for all.
    pub min_p: f32,
    /// Divides positive logits, and multiplies negative ones, of tokens in prompt or answer; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Taken from the logit of each token in the answer.
    pub presence_penalty: f32,
    /// Taken from the logit of each token in the answer, as often as it occurs there.
    pub frequency_penalty: f32,
    /// Where the noise comes from; the same seed gives the same answer.
    pub seed: u64,
}

impl Default for SamplerConfig {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 20,
            top_p: 0.95,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
        }
    }
}

impl SamplerConfig {
    /// The parameters that always take the most probable token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Checks each parameter's range.
    ///
    /// # Errors
    /// [`SamplerError::Parameter`], for the first one that is outside.
    pub fn validate(&self) -> Result<(), SamplerError> {
        let share = 0.0..=1.0;
        let penalty = -100.0..=100.0;
        let rules = [
            ("temperature", self.temperature, (0.0..=100.0).contains(&self.temperature), "0 to 100"),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, share.contains(&self.min_p), "0 to 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0 && self.repetition_penalty <= 100.0,
                "above 0 and at most 100",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                penalty.contains(&self.presence_penalty),
                "-100 to 100",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                penalty.contains(&self.frequency_penalty),
                "-100 to 100",
            ),
        ];
        match rules.into_iter().find(|(_, _, right, _)| !right) {
            Some((name, value, _, range)) => {
                Err(SamplerError::Parameter { name, value: f64::from(value), range })
            }
            None => Ok(()),
        }
    }

    /// Whether what was said before matters.
    pub(super) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// The logit of a token that occurred before.
    #[expect(clippy::cast_precision_loss, reason = "a count needs no more than 24 bits")]
    pub(super) fn penalised(&self, logit: f32, seen: Seen) -> f32 {
        let factor = self.repetition_penalty;
        let repeated = if logit > 0.0 { logit / factor } else { logit * factor };
        if seen.n_answer == 0 {
            return repeated;
        }
        repeated - self.presence_penalty - self.frequency_penalty * seen.n_answer as f32
    }
}
