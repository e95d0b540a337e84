//! Log-probabilities for a report.
//!
//! They are the model's own: natural logarithms of the softmax over all logits, before penalties, filters and
//! temperature. So they don't depend on how a token was drawn, they sum to at most 1, and they mean the same at
//! temperature 0 as at 2.

use forerun_model::TokenId;

use super::SamplerError;

/// A token and its log-probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: TokenId,
    /// Natural logarithm of its probability, at most 0.
    pub logprob: f64,
}

/// The log-probability of `token`.
///
/// # Errors
/// [`SamplerError`]: a logit that is NaN or +inf, none that is finite, or a token outside the logits.
pub fn logprob(logits: &[f32], token: TokenId) -> Result<f64, SamplerError> {
    let outside = SamplerError::LogitsLength { found: logits.len(), expected: token.idx() + 1 };
    let logit = *logits.get(token.idx()).ok_or(outside)?;
    Ok((f64::from(logit) - log_sum(logits)?).min(0.0))
}

/// The `n` most probable tokens, most probable first (of equal ones the lower id), into `out`.
///
/// # Errors
/// Those of [`logprob`].
#[expect(clippy::cast_possible_truncation, reason = "token ids are u32")]
pub fn top_logprobs(logits: &[f32], n: usize, out: &mut Vec<TokenLogprob>) -> Result<(), SamplerError> {
    let log_sum = log_sum(logits)?;
    out.clear();
    for (id, &logit) in logits.iter().enumerate() {
        let logprob = (f64::from(logit) - log_sum).min(0.0);
        if out.len() == n && out.last().is_none_or(|last| last.logprob >= logprob) {
            continue;
        }
        let at = out.partition_point(|entry| entry.logprob >= logprob);
        out.insert(at, TokenLogprob { token: TokenId(id as u32), logprob });
        out.truncate(n);
    }
    Ok(())
}

/// The logarithm of the sum of all exponentials.
fn log_sum(logits: &[f32]) -> Result<f64, SamplerError> {
    if let Some((token, &value)) = logits.iter().enumerate().find(|(_, l)| l.is_nan() || **l == f32::INFINITY)
    {
        return Err(SamplerError::NotFinite { token, value });
    }
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if largest == f32::NEG_INFINITY {
        return Err(SamplerError::NothingLeft);
    }
    let largest = f64::from(largest);
    let sum: f64 = logits.iter().map(|&logit| libm::exp(f64::from(logit) - largest)).sum();
    Ok(largest + libm::log(sum))
}
