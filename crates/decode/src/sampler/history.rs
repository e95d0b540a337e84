//! What was said before, counted for the penalties.

use std::collections::HashMap;

use forerun_model::TokenId;

/// The tokens of a sequence: which occur in the prompt, and how often each occurs in the answer. The last tokens
/// of the answer can be taken back, as a rejected draft is.
#[derive(Clone, Debug, Default)]
pub struct History {
    counts: HashMap<TokenId, Counts>,
    answer: Vec<TokenId>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    in_prompt: bool,
    n_answer: u32,
}

/// A token that occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) token: TokenId,
    pub(super) n_answer: u32,
}

impl History {
    /// The history of an answer that hasn't begun.
    pub fn new(prompt: &[TokenId]) -> Self {
        Self::with_capacity(prompt, 0)
    }

    /// The same, with room for an answer of `n_answer` tokens.
    pub fn with_capacity(prompt: &[TokenId], n_answer: usize) -> Self {
        let mut history = Self {
            counts: HashMap::with_capacity(prompt.len() + n_answer),
            answer: Vec::with_capacity(n_answer),
        };
        for &token in prompt {
            history.counts.entry(token).or_default().in_prompt = true;
        }
        history
    }

    /// Adds a token to the answer.
    pub fn push(&mut self, token: TokenId) {
        self.counts.entry(token).or_default().n_answer += 1;
        self.answer.push(token);
    }

    /// Takes the last token of the answer back.
    pub fn pop(&mut self) -> Option<TokenId> {
        let token = self.answer.pop()?;
        if let Some(counts) = self.counts.get_mut(&token) {
            counts.n_answer -= 1;
        }
        Some(token)
    }

    /// The answer so far.
    pub fn answer(&self) -> &[TokenId] {
        &self.answer
    }

    /// Each token that occurs, once, in no order.
    pub(super) fn tokens(&self) -> impl Iterator<Item = Seen> {
        let occurs = self.counts.iter().filter(|(_, counts)| counts.in_prompt || counts.n_answer > 0);
        occurs.map(|(&token, counts)| Seen { token, n_answer: counts.n_answer })
    }
}
