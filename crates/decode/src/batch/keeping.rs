//! What is kept of conversations that lose their seat, and how they get another.

use forerun_model::TokenId;

use super::Batch;
use crate::DecodeError;
use crate::engine::Engine;
use crate::prefix::{PrefixConfig, PrefixStats, PrefixWarning, TOKENS_MIN};

impl Batch {
    /// As [`Self::new`]; conversations are kept on disk too, as `config` says.
    ///
    /// # Errors
    /// [`DecodeError`] when the folder can't be used, or the plan has no memory for what passes to and from it.
    pub fn with_prefixes(engine: Engine, config: PrefixConfig) -> Result<Self, DecodeError> {
        let mut batch = Self::new(engine);
        if let Some(disk) = config.disk {
            batch.prefixes = batch.prefixes.open(&batch.engine, disk)?;
        }
        Ok(batch)
    }

    /// Conversations that are kept, and what came of them.
    pub fn prefix_stats(&self) -> PrefixStats {
        self.prefixes.stats()
    }

    /// What is to be said of the folder for conversations, since it was asked last.
    pub fn take_prefix_warnings(&mut self) -> Vec<PrefixWarning> {
        self.prefixes.take_warnings()
    }

    /// Writes conversations that nobody answers in at present to disk, if there is one for them: the last call before
    /// the program ends. Takes as long as the disk needs.
    pub fn close(&mut self) {
        let idle = self.seats.iter().filter(|seat| seat.is_free()).map(|seat| &seat.session);
        self.prefixes.close(&self.engine, &idle.collect::<Vec<_>>());
    }

    /// The free seat for an answer to `prompt`, which holds the most of it that there is; what it held is kept if most of it is
    /// about to be lost.
    pub(super) fn seat_for(&mut self, prompt: &[TokenId]) -> Option<usize> {
        let Self { engine, seats, prefixes, .. } = self;
        let (mut seat, held) = seats.best(engine, prompt)?;
        let found = prefixes.find(prompt, held);
        if found.is_some() {
            // Its own conversation isn't the one that goes on.
            seat = seats.oldest()?;
        }
        let session = &mut seats[seat].session;
        let n_held = session.held(engine).len();
        let n_lost = n_held - if found.is_some() { 0 } else { held.min(n_held) };
        if n_lost >= TOKENS_MIN && 2 * n_lost > n_held {
            prefixes.keep(engine, session, found.as_ref());
        }
        if let Some(found) = found {
            // What can't be restored is read.
            prefixes.restore(&found, engine, session, prompt);
        }
        Some(seat)
    }
}
