//! Drafters that know the answer, and say it or something else.

use forerun_compute::Taps;
use forerun_decode::DecodeError;
use forerun_decode::draft::{Anchor, Draft, Drafter, Seen};
use forerun_model::TokenId;
use forerun_scheduler::Scheduler;

/// How often a scripted drafter is right.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Script {
    /// Always.
    Right,
    /// Never.
    Wrong,
    /// By the position and this number: about two times in three.
    Mixed(u32),
}

impl Script {
    pub(crate) fn is_right(self, position: usize) -> bool {
        match self {
            Self::Right => true,
            Self::Wrong => false,
            Self::Mixed(seed) => {
                let place = u32::try_from(position).unwrap() ^ seed.wrapping_mul(0x9e37_79b9);
                place.wrapping_mul(0x85eb_ca6b) >> 16 & 0xff < 170
            }
        }
    }
}

/// Knows the whole text, prompt and answer.
pub(crate) struct Scripted {
    pub(crate) text: Vec<TokenId>,
    pub(crate) script: Script,
    pub(crate) n_vocab: u32,
    /// Tokens that were observed: must be what the engine holds, always.
    pub(crate) seen: Vec<TokenId>,
}

impl Scripted {
    pub(crate) fn new(text: &[TokenId], script: Script, n_vocab: usize) -> Box<Self> {
        let n_vocab = u32::try_from(n_vocab).unwrap();
        Box::new(Self { text: text.to_vec(), script, n_vocab, seen: Vec::new() })
    }
}

impl Drafter for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn taps(&self) -> Taps {
        Taps::default()
    }

    fn n_max(&self) -> usize {
        7
    }

    fn observe(&mut self, _: &mut Scheduler, seen: Seen<'_>) -> Result<(), DecodeError> {
        assert_eq!(seen.first, self.seen.len(), "every position once, in order");
        self.seen.extend(seen.tokens);
        Ok(())
    }

    fn propose(
        &mut self,
        _: &mut Scheduler,
        anchor: Anchor<'_>,
        draft: &mut dyn Draft,
    ) -> Result<(), DecodeError> {
        assert_eq!(anchor.held, self.seen);
        for position in anchor.held.len() + 1..self.text.len() {
            if !draft.admits(f32::NAN) {
                break;
            }
            let token = self.text[position];
            let is_right = self.script.is_right(position);
            draft.push(if is_right { token } else { TokenId((token.0 + 1) % self.n_vocab) });
        }
        Ok(())
    }

    fn truncate(&mut self, len: usize) {
        self.seen.truncate(len);
    }

    fn resume(&mut self, tokens: &[TokenId]) {
        self.seen = tokens.to_vec();
    }
}
