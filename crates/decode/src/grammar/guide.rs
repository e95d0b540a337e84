//! Follows an answer through its grammar.

use std::fmt;

use forerun_model::TokenId;
use llguidance::toktrie::SimpleVob;

use super::matcher::Matcher;
use super::thoughts::Progress;
use super::{Grammar, GrammarBegin, GrammarError};

/// Tokens between the end of thoughts and the grammar that may be white space.
const GAP_TOKENS_MAX: usize = 4;

/// Masks logits so that an answer keeps to a grammar.
#[derive(Clone)]
pub(crate) struct Guide {
    grammar: Grammar,
    /// This answer's own: no other answer changes what it does.
    matcher: Matcher,
    /// The answer as far as it was followed.
    seen: Vec<TokenId>,
    /// Tokens of it that opened thoughts, once they did.
    opened: Option<usize>,
    /// Tokens of it up to the end of thoughts.
    closed: Option<usize>,
    /// Tokens of it before those that the matcher took.
    begun: Option<usize>,
    /// How much of the end marker the thoughts end with.
    marker: Progress,
}

impl fmt::Debug for Guide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guide").field("seen", &self.seen).finish_non_exhaustive()
    }
}

/// Where the next token stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The first token may open thoughts.
    Start,
    Thoughts,
    /// Behind thoughts.
    Gap,
    Grammar,
}

impl Guide {
    pub(crate) fn new(grammar: &Grammar) -> Self {
        let begin = grammar.begin;
        Self {
            matcher: Matcher::clone(&grammar.matcher),
            grammar: grammar.clone(),
            seen: Vec::new(),
            opened: (begin == GrammarBegin::AfterThoughts).then_some(0),
            closed: None,
            begun: (begin == GrammarBegin::AtOnce).then_some(0),
            marker: Progress::default(),
        }
    }

    /// Takes the logits of tokens that can't follow `answer` out of `logits`, which has at least as many as the
    /// vocabulary.
    ///
    /// # Errors
    /// [`GrammarError::Outside`] when the answer isn't in the grammar, as a draft may not be: it can go on after the
    /// wrong tokens were taken back. [`GrammarError::Runaway`] is final.
    pub(crate) fn mask(&mut self, answer: &[TokenId], logits: &mut [f32]) -> Result<(), GrammarError> {
        self.follow(answer)?;
        let lexicon = self.grammar.shared.lexicon();
        if self.phase() == Phase::Thoughts {
            for id in lexicon.ends.iter().copied().chain(self.marker.overrunning(lexicon)) {
                logits[id.idx()] = f32::NEG_INFINITY;
            }
            return Ok(());
        }
        let extra: &[TokenId] = match self.phase() {
            Phase::Start => lexicon.open.as_slice(),
            Phase::Gap if self.gap_has_room() => &lexicon.blanks,
            Phase::Gap | Phase::Thoughts | Phase::Grammar => &[],
        };
        let mut mask = self.matcher.mask()?;
        extra.iter().for_each(|token| mask.allow_token(token.0));
        apply(&mask, logits);
        Ok(())
    }

    fn phase(&self) -> Phase {
        match (self.begun, self.closed, self.opened) {
            (Some(_), _, _) => Phase::Grammar,
            (None, Some(_), _) => Phase::Gap,
            (None, None, Some(_)) => Phase::Thoughts,
            (None, None, None) => Phase::Start,
        }
    }

    /// Takes back what is no longer said and takes what is new.
    fn follow(&mut self, answer: &[TokenId]) -> Result<(), GrammarError> {
        let common = self.seen.iter().zip(answer).take_while(|(old, new)| old == new).count();
        if common < self.seen.len() {
            self.back_to(common)?;
        }
        answer[common..].iter().try_for_each(|&token| self.take(token))
    }

    fn back_to(&mut self, n: usize) -> Result<(), GrammarError> {
        if let Some(begun) = self.begun {
            let back = self.seen.len().saturating_sub(n.max(begun));
            self.matcher.back(back)?;
        }
        self.seen.truncate(n);
        match self.grammar.begin {
            GrammarBegin::AtOnce => return Ok(()),
            GrammarBegin::AfterThoughts => {}
            GrammarBegin::MayThink => self.opened = self.opened.filter(|&opened| opened <= n),
        }
        self.closed = self.closed.filter(|&closed| closed <= n);
        // The token that began the grammar is gone too: another may be white space.
        self.begun = self.begun.filter(|&begun| begun < n);
        self.marker = Progress::default();
        if self.phase() == Phase::Thoughts {
            let thoughts = &self.seen[self.opened.unwrap_or(0)..];
            self.marker = Progress::after(self.grammar.shared.lexicon(), thoughts);
        }
        Ok(())
    }

    fn take(&mut self, token: TokenId) -> Result<(), GrammarError> {
        let place = self.seen.len();
        let lexicon = self.grammar.shared.lexicon();
        match self.phase() {
            Phase::Start if lexicon.open == Some(token) => self.opened = Some(place + 1),
            Phase::Thoughts => match self.marker.over(lexicon.shown(token)) {
                Ok(marker) => self.marker = marker,
                Err(_) => {
                    self.marker = Progress::default();
                    self.closed = Some(place + 1);
                }
            },
            Phase::Gap if self.gap_has_room() && lexicon.is_blank(token) => {}
            Phase::Start | Phase::Gap => {
                self.consume(token)?;
                self.begun = Some(place);
            }
            Phase::Grammar => self.consume(token)?,
        }
        self.seen.push(token);
        Ok(())
    }

    fn gap_has_room(&self) -> bool {
        self.closed.is_some_and(|closed| self.seen.len() - closed < GAP_TOKENS_MAX)
    }

    fn consume(&mut self, token: TokenId) -> Result<(), GrammarError> {
        let outside = GrammarError::Outside { token: token.0, position: self.seen.len() };
        let lexicon = self.grammar.shared.lexicon();
        // The end of the answer is no part of it, and only a draft says it before it is over.
        if token.idx() >= lexicon.len() || lexicon.ends.contains(&token) {
            return Err(outside);
        }
        if self.matcher.take(token)? { Ok(()) } else { Err(outside) }
    }
}

/// What the mask has no bit for can't be drawn.
fn apply(mask: &SimpleVob, logits: &mut [f32]) {
    let words = mask.as_slice().iter().copied().chain(std::iter::repeat(0));
    for (logits, word) in logits.chunks_mut(u32::BITS as usize).zip(words) {
        match word {
            0 => logits.fill(f32::NEG_INFINITY),
            u32::MAX => {}
            _ => {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}
