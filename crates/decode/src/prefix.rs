//! Conversations that are kept when others need their sequences, and go on later without being read again.
//!
//! A conversation is kept with its tokens, the keys and values of all of them, and recurrent states: those at the end of its
//! last prompt, where the next one most likely goes on otherwise, and those at its end. They come back bit for bit. They lie
//! in memory, [as much](crate::EngineConfig::prefix_bytes) as the memory plan says, and what was used longest ago makes
//! room: it goes to a folder on disk if there is one, or is forgotten. A prompt that goes on from what is kept copies the most
//! that can be used into a sequence.
//!
//! Copies run in one go, between two layers of others' steps: for n tokens, n rows and up to three copies of a state. See
//! `docs/measurements.md` for what that takes.

mod format;
#[cfg(fuzzing)]
pub mod fuzzing;
mod memory;
mod pool;
mod source;
mod store;
#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use forerun_compute::Checkpoint;
use forerun_model::TokenId;

use crate::DecodeError;
use crate::engine::{Engine, SavedShape};
use crate::session::Session;
use format::ROWS_PER_SUM;
pub use format::Unusable;
use memory::{EntryId, Memory};
use source::{InSequence, Source};
pub use store::DiskStats;
use store::Store;

/// A conversation of fewer tokens is read again sooner than it is kept.
pub(crate) const TOKENS_MIN: usize = 64;
/// Bytes per token of the context: of a file's header, and of hashes of a prompt's beginnings.
const TOKEN_BYTES: usize = 24;

/// Where conversations are kept, but for memory, which the plan has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefixConfig {
    /// The disk; `None`: only memory.
    pub disk: Option<PrefixDisk>,
}

/// A folder for conversations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixDisk {
    /// The folder; it is made if there is none, for its owner alone.
    pub folder: PathBuf,
    /// Most bytes of its files.
    pub bytes_max: u64,
    /// Most bytes that this process writes: flash wears out by what is written.
    pub write_bytes_max: u64,
}

/// What is kept, and what came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixStats {
    /// Conversations in memory.
    pub entries: usize,
    /// Bytes that they take.
    pub bytes: u64,
    /// Conversations that went on from memory.
    pub hits: u64,
    /// Tokens that needn't be read again, from memory or disk.
    pub tokens_restored: u64,
    /// On disk; all zero without one.
    pub disk: DiskStats,
}

/// What the owner of a folder should know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrefixWarning {
    /// A file isn't used; one that is damaged was removed.
    #[error("{} isn't used: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: Unusable,
    },
    /// No more is written; said once.
    #[error(
        "no more conversations are written to disk: {} of {} were, and the next doesn't fit",
        crate::memory_plan::bytes_text(*written),
        crate::memory_plan::bytes_text(*most)
    )]
    WriteBudget {
        /// Bytes written.
        written: u64,
        /// Most bytes.
        most: u64,
    },
    /// A file can't be written.
    #[error("can't write {}: {kind}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        kind: ErrorKind,
    },
}

/// Where a prompt can go on from.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    place: Place,
    /// Tokens that needn't be read; on disk probably.
    pub(crate) len: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Memory(EntryId),
    Disk(PathBuf),
}

impl Found {
    fn entry(&self) -> Option<EntryId> {
        if let Place::Memory(id) = self.place { Some(id) } else { None }
    }

    fn file(&self) -> Option<&std::path::Path> {
        if let Place::Disk(path) = &self.place { Some(path) } else { None }
    }
}

/// All conversations that are kept for an engine.
#[derive(Debug)]
pub(crate) struct Prefixes {
    shape: SavedShape,
    memory: Memory,
    store: Option<Store>,
    /// What a state passes through.
    scratch: Checkpoint,
    hits: u64,
    tokens_restored: u64,
}

/// Bytes that whatever is kept passes through: a state, rows with one checksum, and the tokens of a file.
fn working_bytes(shape: &SavedShape) -> u64 {
    let rows = shape.row_bytes.saturating_mul(ROWS_PER_SUM);
    let bytes = 4 * shape.state_values + rows + TOKEN_BYTES * shape.context;
    bytes as u64 + (1 << 20)
}

impl Prefixes {
    /// None yet; in as much memory as the plan of `engine` says.
    pub(crate) fn new(engine: &Engine) -> Self {
        let shape = engine.saved_shape();
        let bytes = engine.plan().prefixes.saturating_sub(working_bytes(&shape));
        let memory = Memory::new(shape, bytes);
        Self { shape, memory, store: None, scratch: Checkpoint::default(), hits: 0, tokens_restored: 0 }
    }

    /// The same with those of a folder.
    ///
    /// # Errors
    /// [`DecodeError`] when the folder can't be used, or memory isn't planned for.
    pub(crate) fn open(self, engine: &Engine, disk: PrefixDisk) -> Result<Self, DecodeError> {
        let (found_bytes, need_bytes) = (engine.plan().prefixes, working_bytes(&self.shape));
        if found_bytes < need_bytes {
            return Err(DecodeError::PrefixMemory { found_bytes, need_bytes });
        }
        if self.shape.key.is_none() {
            return Err(DecodeError::PrefixModel);
        }
        let path = disk.folder.clone();
        let store = Store::open(disk, self.shape);
        let store = store.map_err(|source| DecodeError::PrefixFolder { path, source })?;
        Ok(Self { store: Some(store), ..self })
    }

    pub(crate) fn stats(&self) -> PrefixStats {
        PrefixStats {
            entries: self.memory.n_entries(),
            bytes: self.memory.used_bytes(),
            hits: self.hits,
            tokens_restored: self.tokens_restored,
            disk: self.store.as_ref().map(Store::stats).unwrap_or_default(),
        }
    }

    /// What was said since it was asked last.
    pub(crate) fn take_warnings(&mut self) -> Vec<PrefixWarning> {
        self.store.as_mut().map(Store::take_warnings).unwrap_or_default()
    }

    /// Where `prompt` can go on from with the most tokens held, more than `held`.
    pub(crate) fn find(&self, prompt: &[TokenId], held: usize) -> Option<Found> {
        // One must be read for the next logits.
        let (_, prompt) = prompt.split_last()?;
        let memory = self.memory.find(prompt).map(|(id, len)| Found { place: Place::Memory(id), len });
        let least = memory.as_ref().map_or(held, |found| found.len.max(held));
        let disk = self.store.as_ref().and_then(|store| store.find(prompt));
        let disk = disk.filter(|(_, len)| *len > least);
        let disk = disk.map(|(path, len)| Found { place: Place::Disk(path), len });
        disk.or(memory).filter(|found| found.len > held)
    }

    /// Keeps what `session` holds, since it is about to be overwritten; what `spared` has stays.
    pub(crate) fn keep(&mut self, engine: &Engine, session: &Session, spared: Option<&Found>) {
        let tokens = session.held(engine);
        if tokens.len() < TOKENS_MIN || self.holds(tokens) || !self.save_state(engine, session) {
            return;
        }
        let Self { memory, store, scratch, .. } = self;
        let source = InSequence::new(engine, session.sequence(), tokens, scratch);
        let (entry, file) = (spared.and_then(Found::entry), spared.and_then(Found::file));
        if memory.could_hold(&source) {
            while let Some(id) = memory.in_the_way(&source, entry) {
                if let (Some(store), Some(old)) = (&mut *store, memory.source(id)) {
                    store.keep(&old, file);
                }
                memory.remove(id);
            }
            if memory.keep(&source, entry) {
                return;
            }
        }
        if let Some(store) = store {
            store.keep(&source, file);
        }
    }

    /// Whether memory holds these tokens already; counts as a use.
    fn holds(&mut self, tokens: &[TokenId]) -> bool {
        let holder = self.memory.holder(tokens);
        holder.inspect(|id| self.memory.touch(*id)).is_some()
    }

    /// Takes the state that the session's sequence is in; `false` when it can't be had.
    fn save_state(&mut self, engine: &Engine, session: &Session) -> bool {
        let saved = engine.save_state(session.sequence(), &mut self.scratch);
        saved.is_ok() && self.scratch.len == session.tokens().len()
    }

    /// Makes `session` hold what `found` has of `prompt`; `false` when that failed, and it holds nothing.
    pub(crate) fn restore(
        &mut self,
        found: &Found,
        engine: &mut Engine,
        session: &mut Session,
        prompt: &[TokenId],
    ) -> bool {
        let restored = match &found.place {
            Place::Memory(id) => self.load_entry(*id, found.len, engine, session, prompt),
            Place::Disk(path) => self.load_file(path, engine, session, prompt),
        };
        self.tokens_restored += restored.unwrap_or(0) as u64;
        restored.is_some()
    }

    fn load_entry(
        &mut self,
        id: EntryId,
        len: usize,
        engine: &mut Engine,
        session: &mut Session,
        prompt: &[TokenId],
    ) -> Option<usize> {
        self.memory.touch(id);
        let mut rows = self.memory.open(id, len, &mut self.scratch).ok()?;
        session.load(engine, &prompt[..len], &self.scratch, &mut rows).ok()?;
        self.hits += 1;
        Some(len)
    }

    fn load_file(
        &mut self,
        path: &std::path::Path,
        engine: &mut Engine,
        session: &mut Session,
        prompt: &[TokenId],
    ) -> Option<usize> {
        let store = self.store.as_mut()?;
        let (_, before_last) = prompt.split_last()?;
        let (len, mut rows) = match store.open_file(path, before_last, &mut self.scratch) {
            // Hashes may lie.
            Ok((0, _)) => return None,
            Ok(opened) => opened,
            Err(reason) => {
                store.give_up(path, reason);
                return None;
            }
        };
        match session.load(engine, &prompt[..len], &self.scratch, &mut rows) {
            Ok(()) => {
                store.used(path, rows.n_read);
                Some(len)
            }
            Err(error) => {
                if let Some(reason) = of_the_file(error) {
                    store.give_up(path, reason);
                }
                None
            }
        }
    }

    /// Writes what `idle` sessions and memory hold to disk, as far as there is one and it has room, the newest of it if not
    /// all.
    pub(crate) fn close(&mut self, engine: &Engine, idle: &[&Session]) {
        let Some(mut room) = self.store.as_ref().map(Store::room) else { return };
        let mut sessions = Vec::new();
        for session in idle {
            let tokens = session.held(engine);
            if tokens.len() >= TOKENS_MIN && self.save_state(engine, session) {
                let source = InSequence::new(engine, session.sequence(), tokens, &self.scratch);
                if self.take_room(&source, &mut room) {
                    sessions.push(*session);
                }
            }
        }
        let mut entries = Vec::new();
        for id in self.memory.newest_first() {
            if let Some(source) = self.memory.source(id)
                && !sessions.iter().any(|session| session.tokens().starts_with(source.tokens()))
                && self.take_room(&source, &mut room)
            {
                entries.push(id);
            }
        }
        // The newest last, so that it is the last to go.
        for id in entries.into_iter().rev() {
            if let (Some(store), Some(source)) = (&mut self.store, self.memory.source(id)) {
                store.keep(&source, None);
            }
        }
        for session in sessions.into_iter().rev() {
            if self.save_state(engine, session)
                && let Some(store) = &mut self.store
            {
                let source = InSequence::new(engine, session.sequence(), session.held(engine), &self.scratch);
                store.keep(&source, None);
            }
        }
    }

    /// Whether a file of `source` is worth a part of `room`, which then is smaller.
    fn take_room(&self, source: &dyn Source, room: &mut u64) -> bool {
        let Some(bytes) = self.store.as_ref().and_then(|store| store.would_write(source)) else {
            return false;
        };
        let rest = room.checked_sub(bytes);
        *room = rest.unwrap_or(*room);
        rest.is_some()
    }
}

/// What was wrong with a file, if that is why it couldn't be loaded.
fn of_the_file(error: DecodeError) -> Option<Unusable> {
    match error {
        DecodeError::Compute(forerun_compute::ComputeError::SavedBytes { source }) => {
            Some(io::Error::into(source))
        }
        _ => None,
    }
}
