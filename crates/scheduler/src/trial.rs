//! Whether guessing pays at all, found out by doing without it now and then.
//!
//! A gate that reckons with averages can be wrong about a machine. So passes with guesses are compared with passes
//! without, in short windows by turns; where guesses don't make a pass faster they are made fewer, down to none, and tried
//! again after longer and longer pauses.

use forerun_model::Nanos;

/// Passes of one window.
const WINDOW: usize = 5;
/// Windows of a test: with, without, and so on.
const WINDOWS: usize = 4;
/// Passes before the first test, in which ranks and times are learnt.
const FIRST_AFTER: usize = 48;
/// Most passes between two tests.
const LATER_MAX: usize = 2048;
/// Guesses of a layer with which a predictor that was given up is tried again.
const RETRY_WIDTH: usize = 4;
/// A pass with guesses must not take more than so many thousandths longer than one without.
const SLACK_PERMILLE: u64 = 5;

/// What a test changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Guesses of a layer from now on, at most.
    pub(crate) width: usize,
    /// Guesses before.
    pub(crate) before: usize,
    /// Median time of a pass with guesses.
    pub(crate) with: Nanos,
    /// Median time of a pass without.
    pub(crate) without: Nanos,
    /// Passes until the next test.
    pub(crate) next: usize,
}

/// Decides how many guesses a layer may have.
#[derive(Debug)]
pub(crate) struct Trial {
    width: usize,
    width_max: usize,
    /// Passes until the next test, or of the test that were run.
    state: State,
    /// Passes between the last test and the next one.
    pause: usize,
    /// Times of the test, with guesses and without.
    times: [Vec<Nanos>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Pause { left: usize },
    Test { pass: usize },
}

impl Trial {
    /// Begins with `width_max` guesses a layer.
    pub(crate) fn new(width_max: usize) -> Self {
        let times = [(); 2].map(|()| Vec::with_capacity(WINDOW * WINDOWS / 2));
        Self {
            width: width_max,
            width_max,
            state: State::Pause { left: FIRST_AFTER },
            pause: FIRST_AFTER,
            times,
        }
    }

    /// Most guesses of a layer in the coming pass; 0: nobody need be asked.
    pub(crate) fn width(&self) -> usize {
        match self.state {
            State::Pause { .. } => self.width,
            State::Test { pass } if is_with(pass) => self.tested(),
            State::Test { .. } => 0,
        }
    }

    fn tested(&self) -> usize {
        if self.width == 0 { RETRY_WIDTH.min(self.width_max) } else { self.width }
    }

    /// A pass took `time`, waits included; `acted`: guesses were read since the last test. A test that is complete
    /// brings a verdict.
    pub(crate) fn pass_took(&mut self, time: Nanos, acted: bool) -> Option<Verdict> {
        match self.state {
            _ if self.width_max == 0 => None,
            State::Pause { left: 0 } if !acted && self.width > 0 => {
                // There is nothing to compare.
                self.state = State::Pause { left: WINDOW };
                None
            }
            State::Pause { left: 0 } => {
                self.times.iter_mut().for_each(Vec::clear);
                self.state = State::Test { pass: 0 };
                None
            }
            State::Pause { left } => {
                self.state = State::Pause { left: left - 1 };
                None
            }
            State::Test { pass } => {
                // What was read ahead for a pass was so in the one before: the first of a window is in neither.
                if !pass.is_multiple_of(WINDOW) {
                    self.times[usize::from(!is_with(pass))].push(time);
                }
                self.state = State::Test { pass: pass + 1 };
                (pass + 1 == WINDOW * WINDOWS).then(|| self.judge())
            }
        }
    }

    fn judge(&mut self) -> Verdict {
        let [with, without] = &mut self.times;
        let (with, without, doubt) = (median(with), median(without), spread(with).max(spread(without)));
        let before = self.width;
        let slack = (without.0 / 1000 * SLACK_PERMILLE).max(doubt * 3 / 2);
        let is_slower = with.0 > without.0 + slack;
        let is_faster = with.0 + doubt < without.0;
        let tested = self.tested();
        self.width = match (is_slower, before) {
            (true, 0) => 0,
            (true, 1..=2) => 0,
            (true, _) => before / 2,
            // What was given up must prove itself.
            (false, 0) => {
                if is_faster {
                    tested
                } else {
                    0
                }
            }
            (false, _) => (2 * before).min(self.width_max),
        };
        let settled = self.width == before;
        self.pause = if settled { (8 * self.pause).min(LATER_MAX) } else { FIRST_AFTER };
        self.state = State::Pause { left: self.pause };
        Verdict { width: self.width, before, with, without, next: self.pause }
    }
}

fn is_with(pass: usize) -> bool {
    (pass / WINDOW).is_multiple_of(2)
}

fn median(times: &mut [Nanos]) -> Nanos {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// How far a median of these sorted times is off by chance, about: their middle half's width over the root of their
/// number.
fn spread(times: &[Nanos]) -> u64 {
    let n = times.len();
    if n < 4 { 0 } else { (times[3 * n / 4] - times[n / 4]).0 / (n as u64).isqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `n` passes of `with` or `without` microseconds, as the trial wishes; the verdicts' widths.
    fn run(trial: &mut Trial, n: usize, with: u64, without: u64) -> (Vec<usize>, usize) {
        let (mut widths, mut n_without) = (Vec::new(), 0);
        for _ in 0..n {
            let guesses = trial.width() > 0;
            n_without += usize::from(!guesses);
            let time = Nanos::from_micros(if guesses { with } else { without });
            widths.extend(trial.pass_took(time, true).map(|verdict| verdict.width));
        }
        (widths, n_without)
    }

    #[test]
    fn what_pays_stays_and_is_tested_less_and_less() {
        let mut trial = Trial::new(8);
        let (widths, n_without) = run(&mut trial, 4000, 900, 1000);
        assert!(widths.iter().all(|&width| width == 8), "{widths:?}");
        assert!(
            widths.len() <= 7 && n_without <= 7 * 16,
            "{} tests, {n_without} passes without",
            widths.len()
        );
    }

    #[test]
    fn what_does_not_pay_narrows_to_zero_and_is_tried_again() {
        let mut trial = Trial::new(8);
        let (widths, n_without) = run(&mut trial, 4000, 1100, 1000);
        assert_eq!(widths[..4], [4, 2, 0, 0]);
        assert!(widths[3..].iter().all(|&width| width == 0), "{widths:?}");
        assert!(n_without > 3000, "{n_without}");
    }

    #[test]
    fn what_pays_again_comes_back() {
        let mut trial = Trial::new(8);
        run(&mut trial, 600, 1100, 1000);
        assert_eq!(trial.width, 0);
        let (widths, _) = run(&mut trial, 1500, 800, 1000);
        assert_eq!(widths.last(), Some(&8), "{widths:?}");
    }

    #[test]
    fn a_difference_within_the_noise_changes_nothing() {
        let mut trial = Trial::new(8);
        let mut verdicts = Vec::new();
        for i in 0..600u64 {
            let noise = ((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % 400;
            let time = Nanos::from_micros(if trial.width() > 0 { 1010 } else { 1000 } + noise);
            verdicts.extend(trial.pass_took(time, true));
        }
        assert!(!verdicts.is_empty() && verdicts.iter().all(|verdict| verdict.width == 8), "{verdicts:?}");
    }

    #[test]
    fn without_guesses_there_is_nothing_to_test() {
        let mut trial = Trial::new(8);
        assert!((0..1000).all(|_| trial.pass_took(Nanos(1), false).is_none()));
        assert_eq!(trial.width(), 8);
        let mut off = Trial::new(0);
        assert!((0..1000).all(|_| off.pass_took(Nanos(1), true).is_none() && off.width() == 0));
    }
}
