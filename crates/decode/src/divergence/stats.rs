//! What two predictions differ by, and what many such differences say.

use forerun_model::TokenId;

use crate::perplexity::Estimate;

/// A mean, and how far the true one may be from it: 95 times of 100 no further than `half_width`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The mean.
    pub mean: f64,
    /// Half the width of its 95 % confidence interval.
    pub half_width: f64,
}

/// How far a model is from its base.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Perplexity of the model.
    pub model: Estimate,
    /// Perplexity of the base.
    pub base: Estimate,
    /// Divergence of a token, in nats.
    pub kl: Interval,
    /// What half of all tokens' divergences don't exceed.
    pub kl_median: f64,
    /// What 99 of 100 don't exceed.
    pub kl_p99: f64,
    /// The largest.
    pub kl_max: f64,
    /// Share of the tokens for which both hold the same one for the most probable.
    pub agreement: Interval,
    /// Logarithm of the probability of the text's next token, the model's less the base's.
    pub log_probability: Interval,
}

/// One prediction of both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Token {
    kl: f64,
    model_nll: f64,
    base_nll: f64,
    agrees: bool,
}

impl Token {
    /// What the logits of both say of `next`. With `s` the logarithm of the sum of exponentials, the divergence is
    /// `sum(b * (base - model)) - s_base + s_model`, which needs no logarithm per entry.
    pub(super) fn of(base: &[f32], model: &[f32], next: TokenId) -> Self {
        let [(top_base, max_base), (top_model, max_model)] = [base, model].map(top);
        let (mut sum_base, mut sum_model, mut weighted) = (0.0, 0.0, 0.0);
        for (&b, &m) in base.iter().zip(model) {
            let (b, m) = (f64::from(b), f64::from(m));
            let e = (b - max_base).exp();
            sum_base += e;
            sum_model += (m - max_model).exp();
            // An entry of no weight counts nothing, however far the models are apart.
            weighted += if e > 0.0 { e * (b - m) } else { 0.0 };
        }
        let (log_base, log_model) = (sum_base.ln() + max_base, sum_model.ln() + max_model);
        Self {
            // Below 0 only by rounding.
            kl: (weighted / sum_base - log_base + log_model).max(0.0),
            model_nll: log_model - f64::from(model[next.idx()]),
            base_nll: log_base - f64::from(base[next.idx()]),
            agrees: top_base == top_model,
        }
    }
}

/// The first of the largest entries, and its value.
fn top(logits: &[f32]) -> (usize, f64) {
    let largest =
        |best: (usize, f32), (i, &logit): (usize, &f32)| if logit > best.1 { (i, logit) } else { best };
    let (i, logit) = logits.iter().enumerate().fold((0, f32::NEG_INFINITY), largest);
    (i, f64::from(logit))
}

/// Sums over some tokens.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    n: u64,
    kl: f64,
    model_nll: f64,
    model_squares: f64,
    base_nll: f64,
    base_squares: f64,
    n_agree: u64,
}

impl Totals {
    fn add(&mut self, token: Token) {
        self.n += 1;
        self.kl += token.kl;
        self.model_nll += token.model_nll;
        self.model_squares += token.model_nll * token.model_nll;
        self.base_nll += token.base_nll;
        self.base_squares += token.base_nll * token.base_nll;
        self.n_agree += u64::from(token.agrees);
    }
}

/// Mean and variance of the windows' means: Welford's recurrence.
#[derive(Clone, Copy, Debug, Default)]
struct Spread {
    n: f64,
    mean: f64,
    squares: f64,
}

impl Spread {
    fn add(&mut self, value: f64) {
        self.n += 1.0;
        let off = value - self.mean;
        self.mean += off / self.n;
        self.squares += off * (value - self.mean);
    }

    /// Of one window nothing is known of how far another would be: an infinite width.
    fn interval(&self) -> Interval {
        let df = self.n - 1.0;
        let half_width =
            if df < 1.0 { f64::INFINITY } else { student_t(df) * (self.squares / df / self.n).sqrt() };
        Interval { mean: self.mean, half_width }
    }
}

/// The 97.5th percentile of Student's t: the expansion around the normal's by Cornish and Fisher (Abramowitz and Stegun,
/// 26.7.5), but for the few degrees of freedom where it is off.
fn student_t(df: f64) -> f64 {
    const Z: f64 = 1.959_963_985;
    if df < 4.0 {
        return match df {
            ..2.0 => 12.706_205,
            ..3.0 => 4.302_653,
            _ => 3.182_446,
        };
    }
    let (z2, inverse) = (Z * Z, 1.0 / df);
    let terms = [
        (z2 + 1.0) / 4.0,
        ((5.0 * z2 + 16.0) * z2 + 3.0) / 96.0,
        (((3.0 * z2 + 19.0) * z2 + 17.0) * z2 - 15.0) / 384.0,
    ];
    Z * (1.0 + inverse * (terms[0] + inverse * (terms[1] + inverse * terms[2])))
}

/// Everything that is kept of the predictions so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    /// Of the window under way, of all tokens, and of those of whole windows.
    window: Totals,
    all: Totals,
    whole: Totals,
    kl: Spread,
    agreement: Spread,
    log_probability: Spread,
    /// Every token's divergence.
    all_kl: Vec<f32>,
}

impl Sums {
    pub(super) fn add(&mut self, token: Token) {
        self.window.add(token);
        self.all.add(token);
        #[expect(clippy::cast_possible_truncation, reason = "percentiles need no more digits")]
        self.all_kl.push(token.kl as f32);
    }

    #[expect(clippy::cast_precision_loss, reason = "nobody scores 2^53 tokens")]
    pub(super) fn end_window(&mut self) {
        let window = std::mem::take(&mut self.window);
        let n = window.n as f64;
        self.kl.add(window.kl / n);
        self.agreement.add(window.n_agree as f64 / n);
        self.log_probability.add((window.base_nll - window.model_nll) / n);
        self.whole = self.all;
    }

    /// The mean divergence of whole windows.
    pub(super) fn kl(&self) -> Interval {
        self.kl.interval()
    }

    /// `None` before the first whole window.
    pub(super) fn comparison(&self) -> Option<Comparison> {
        let Totals { n, model_nll, model_squares, base_nll, base_squares, .. } = self.whole;
        let n_whole = usize::try_from(n).unwrap_or(usize::MAX).min(self.all_kl.len());
        let mut sorted = self.all_kl[..n_whole].to_vec();
        sorted.sort_unstable_by(f32::total_cmp);
        // The least that so many of a thousand don't exceed.
        let percentile = |permille: usize| {
            let rank = (sorted.len() * permille).div_ceil(1000).max(1);
            sorted.get(rank - 1).copied().map_or(0.0, f64::from)
        };
        Some(Comparison {
            model: Estimate::of(model_nll, model_squares, n)?,
            base: Estimate::of(base_nll, base_squares, n)?,
            kl: self.kl.interval(),
            kl_median: percentile(500),
            kl_p99: percentile(990),
            kl_max: percentile(1000),
            agreement: self.agreement.interval(),
            log_probability: self.log_probability.interval(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(shares: &[f32]) -> Vec<f32> {
        shares.iter().map(|share| share.ln() + 3.0).collect()
    }

    #[test]
    fn a_divergence_is_that_of_the_distributions() {
        let (b, m) = (logs(&[0.5, 0.25, 0.25]), logs(&[0.25, 0.25, 0.5]));
        let found = Token::of(&b, &m, TokenId(2));
        // 0.5 ln 2 + 0 - 0.25 ln 2
        assert!((found.kl - 0.25 * 2.0_f64.ln()).abs() < 1e-7, "{found:?}");
        assert!(
            (found.base_nll - 4.0_f64.ln()).abs() < 1e-6 && (found.model_nll - 2.0_f64.ln()).abs() < 1e-6
        );
        assert!(!found.agrees);
        let same = Token::of(&b, &b, TokenId(0));
        assert!(same.kl == 0.0 && same.agrees && same.model_nll.to_bits() == same.base_nll.to_bits());
        // What the base never says isn't held against the model, and large logits are no matter.
        let far = Token::of(&[3e4, -3e4], &[1e4, 1e4], TokenId(0));
        assert!((far.kl - 2.0_f64.ln()).abs() < 1e-9, "{far:?}");
        let surprised = Token::of(&[0.0, 0.0], &[0.0, -1000.0], TokenId(0));
        assert!((surprised.kl - (500.0 - 2.0_f64.ln())).abs() < 1e-9, "{surprised:?}");
    }

    #[test]
    fn an_interval_is_that_of_the_windows() {
        let mut sums = Sums::default();
        assert_eq!(sums.comparison(), None);
        let token = |kl, agrees| Token { kl, model_nll: 2.0 + kl, base_nll: 2.0, agrees };
        for window in [[0.0, 0.2], [0.2, 0.4], [0.4, 0.6]] {
            window.into_iter().for_each(|kl| sums.add(token(kl, kl < 0.3)));
            sums.end_window();
        }
        sums.add(token(9.0, true));
        let found = sums.comparison().unwrap();
        // Means 0.1, 0.3, 0.5: standard deviation 0.2, over the root of 3, times t of 2 degrees.
        let half = 4.302_653 * 0.2 / 3.0_f64.sqrt();
        assert!(
            (found.kl.mean - 0.3).abs() < 1e-12 && (found.kl.half_width - half).abs() < 1e-9,
            "{found:?}"
        );
        assert!((found.log_probability.mean + 0.3).abs() < 1e-12);
        assert!((found.agreement.mean - 0.5).abs() < 1e-12 && found.agreement.half_width > 0.5);
        assert!((found.kl_median - 0.2).abs() < 1e-7 && (found.kl_max - 0.6).abs() < 1e-7, "{found:?}");
        assert!((found.kl_p99 - 0.6).abs() < 1e-7 && found.model.n_tokens == 6);
        let mut one = Sums::default();
        [0.0, 0.2].into_iter().for_each(|kl| one.add(token(kl, true)));
        one.end_window();
        assert!(one.comparison().unwrap().kl.half_width.is_infinite(), "one window says nothing of others");
    }

    #[test]
    fn students_t_is_that_of_the_tables() {
        for (df, table) in
            [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (10, 2.228), (30, 2.042), (120, 1.980)]
        {
            let found = student_t(f64::from(df));
            assert!((found / table - 1.0).abs() < 0.004, "{df}: {found} {table}");
        }
    }
}
