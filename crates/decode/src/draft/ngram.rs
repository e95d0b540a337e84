//! Prompt lookup: what followed the last time that the same tokens came.

use std::collections::HashMap;

use forerun_compute::Taps;
use forerun_model::TokenId;
use forerun_scheduler::Scheduler;

use super::{Anchor, Draft, Drafter, Seen, VERIFIED_ROWS_MAX};
use crate::DecodeError;

/// Tokens that must be the same, longest first: a longer match is likelier to go on.
const LENGTHS: [usize; 3] = [8, 4, 2];

/// Drafts without a model: finds the last place where the newest tokens occurred before, the longest match first, and
/// proposes what followed there.
#[derive(Debug, Default)]
pub struct Ngram {
    /// For each of [`LENGTHS`]: a hash of so many tokens to the position after them, the last one.
    places: [HashMap<u64, u32>; LENGTHS.len()],
    tokens: Vec<TokenId>,
    /// The draft under way.
    proposed: Vec<TokenId>,
}

impl Ngram {
    /// One that has seen nothing, for a context of `context` tokens; allocates all that it takes.
    pub fn new(context: usize) -> Self {
        Self {
            places: LENGTHS.map(|_| HashMap::with_capacity(context)),
            tokens: Vec::with_capacity(context),
            proposed: Vec::with_capacity(VERIFIED_ROWS_MAX),
        }
    }

    /// Bytes that [`Self::new`] allocates.
    pub fn bytes(context: usize) -> u64 {
        // A table keeps a byte beside each entry and is a power of two that is at most seven eighths full.
        let entry = size_of::<(u64, u32)>() as u64 + 1;
        let table = (context as u64 * 8 / 7 + 8).next_power_of_two() * entry;
        LENGTHS.len() as u64 * table + (context * size_of::<TokenId>()) as u64
    }

    /// Remembers what the tokens before position `end` are.
    fn note(&mut self, end: usize) {
        for (&n, places) in LENGTHS.iter().zip(&mut self.places) {
            if let (Some(start), Ok(at)) = (end.checked_sub(n), u32::try_from(end)) {
                places.insert(hash(&self.tokens[start..end]), at);
            }
        }
    }

    /// Where the tokens after `before` and `token` are, if their last ones occurred before.
    fn find(&self, token: TokenId) -> Option<usize> {
        LENGTHS.iter().zip(&self.places).find_map(|(&n, places)| {
            let held = &self.tokens[self.tokens.len().checked_sub(n - 1)?..];
            let at = *places.get(&hash(held.iter().chain([&token])))? as usize;
            // A hash may lie.
            let there = self.tokens.get(at.checked_sub(n)?..at)?;
            (there.iter().eq(held.iter().chain([&token]))).then_some(at)
        })
    }
}

impl Drafter for Ngram {
    fn name(&self) -> &'static str {
        "ngram"
    }

    fn taps(&self) -> Taps {
        Taps::default()
    }

    fn n_max(&self) -> usize {
        VERIFIED_ROWS_MAX - 1
    }

    fn observe(&mut self, _: &mut Scheduler, seen: Seen<'_>) -> Result<(), DecodeError> {
        for &token in seen.tokens {
            self.tokens.push(token);
            self.note(self.tokens.len());
        }
        Ok(())
    }

    fn propose(
        &mut self,
        _: &mut Scheduler,
        anchor: Anchor<'_>,
        draft: &mut dyn Draft,
    ) -> Result<(), DecodeError> {
        let Some(start) = self.find(anchor.token) else { return Ok(()) };
        // What is copied may run into what was just proposed: a loop goes on.
        let known = self.tokens.len();
        self.proposed.clear();
        for at in start.. {
            if self.proposed.len() == self.n_max() || !draft.admits(f32::NAN) {
                return Ok(());
            }
            let token = match at.checked_sub(known) {
                None => self.tokens[at],
                Some(0) => anchor.token,
                Some(i) => self.proposed[i - 1],
            };
            self.proposed.push(token);
            draft.push(token);
        }
        Ok(())
    }

    fn truncate(&mut self, len: usize) {
        if len >= self.tokens.len() {
            return;
        }
        self.tokens.truncate(len);
        // Taken out one by one they would leave marks, for which a table may grow; this way earlier places come back too.
        self.places.iter_mut().for_each(HashMap::clear);
        (1..=len).for_each(|end| self.note(end));
    }

    fn resume(&mut self, tokens: &[TokenId]) {
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        self.places.iter_mut().for_each(HashMap::clear);
        (1..=tokens.len()).for_each(|end| self.note(end));
    }
}

/// FNV-1a over the tokens' ids.
fn hash<'a>(tokens: impl IntoIterator<Item = &'a TokenId>) -> u64 {
    let bytes = tokens.into_iter().flat_map(|token| token.0.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
