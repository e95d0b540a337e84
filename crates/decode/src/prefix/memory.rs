//! Conversations that are kept in memory, as many as a pool of blocks holds.

use std::io::{self, Read, Write};

use forerun_compute::Checkpoint;
use forerun_model::TokenId;

use super::pool::{Pool, Segment};
use super::source::{Source, alike, read_values, usable};
use crate::engine::SavedShape;

/// A block has at least so many bytes, or those of one row.
const BLOCK_BYTES: usize = 32 << 10;
/// What is known of a block, wherever it is.
const BLOCK_ENTRY_BYTES: usize = 16;
/// Most states of one entry; the last is the one at its end.
const STATES_MAX: usize = 4;

/// Names an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryId(u64);

#[derive(Debug)]
struct Entry {
    id: EntryId,
    tokens: Vec<TokenId>,
    rows: Segment,
    /// Length and values of each state, ascending by length.
    states: Vec<(usize, Segment)>,
    /// When it was used last, in uses.
    used: u64,
}

impl Entry {
    fn lens(&self) -> impl Iterator<Item = usize> {
        self.states.iter().map(|(len, _)| *len)
    }
}

/// All entries.
#[derive(Debug)]
pub(super) struct Memory {
    shape: SavedShape,
    pool: Pool,
    entries: Vec<Entry>,
    n_uses: u64,
    n_made: u64,
}

impl Memory {
    /// Room for entries of `shape` in `bytes`, with what is known of them.
    pub(super) fn new(shape: SavedShape, bytes: u64) -> Self {
        let row_bytes = shape.row_bytes.max(1);
        let rows = (BLOCK_BYTES / row_bytes).max(1);
        // Every block of rows has its tokens beside it.
        let per_block = rows * (row_bytes + size_of::<TokenId>()) + BLOCK_ENTRY_BYTES;
        let n_blocks = usize::try_from(bytes).unwrap_or(usize::MAX) / per_block;
        Self { shape, pool: Pool::new(n_blocks, rows * row_bytes), entries: Vec::new(), n_uses: 0, n_made: 0 }
    }

    pub(super) fn n_entries(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of blocks that hold something.
    pub(super) fn used_bytes(&self) -> u64 {
        self.pool.used_bytes()
    }

    fn state_bytes(&self) -> usize {
        self.shape.state_values * size_of::<f32>()
    }

    /// Blocks that an entry of so many tokens and states takes.
    fn n_blocks(&self, n_tokens: usize, n_states: usize) -> usize {
        self.pool.blocks_of(n_tokens * self.shape.row_bytes)
            + n_states * self.pool.blocks_of(self.state_bytes())
    }

    /// Whether an entry like `source` fits when nothing else is there.
    pub(super) fn could_hold(&self, source: &dyn Source) -> bool {
        self.n_blocks(source.tokens().len(), source.lens().len()) <= self.pool.n_blocks()
    }

    /// The entry of which the most can be used for `prompt`, and how many tokens.
    pub(super) fn find(&self, prompt: &[TokenId]) -> Option<(EntryId, usize)> {
        let is_recurrent = self.shape.state_values > 0;
        let found = self
            .entries
            .iter()
            .map(|entry| (entry.id, usable(alike(&entry.tokens, prompt), entry.lens(), is_recurrent)));
        found.filter(|(_, len)| *len > 0).max_by_key(|(_, len)| *len)
    }

    /// The entry that begins with `tokens`, or is them.
    pub(super) fn holder(&self, tokens: &[TokenId]) -> Option<EntryId> {
        self.entries.iter().find(|entry| entry.tokens.starts_with(tokens)).map(|entry| entry.id)
    }

    /// Counts a use.
    pub(super) fn touch(&mut self, id: EntryId) {
        self.n_uses += 1;
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) {
            entry.used = self.n_uses;
        }
    }

    /// The entry that must go, if there is to be room for `source`: the one that was used longest ago, `spared` apart.
    pub(super) fn in_the_way(&self, source: &dyn Source, spared: Option<EntryId>) -> Option<EntryId> {
        let (mut free, mut oldest) = (self.pool.n_free(), None::<&Entry>);
        for entry in self.entries.iter().filter(|entry| Some(entry.id) != spared) {
            if source.tokens().starts_with(&entry.tokens) {
                // It makes room as part of what is kept.
                free += self.n_blocks(entry.tokens.len(), entry.states.len());
            } else if oldest.is_none_or(|oldest| entry.used < oldest.used) {
                oldest = Some(entry);
            }
        }
        let is_short = free < self.n_blocks(source.tokens().len(), source.lens().len());
        oldest.filter(|_| is_short).map(|entry| entry.id)
    }

    /// Gives an entry up.
    pub(super) fn remove(&mut self, id: EntryId) {
        let Some(i) = self.entries.iter().position(|entry| entry.id == id) else { return };
        let Entry { rows, states, .. } = self.entries.remove(i);
        self.pool.give_back(rows);
        states.into_iter().for_each(|(_, state)| self.pool.give_back(state));
    }

    /// Keeps `source`; entries that it goes on from become part of it, with as many of their states as an entry has. `false`,
    /// and it isn't kept, when there is no room, or it can't be read.
    pub(super) fn keep(&mut self, source: &dyn Source, spared: Option<EntryId>) -> bool {
        let mut states = Vec::new();
        while let Some(i) = self
            .entries
            .iter()
            .position(|entry| Some(entry.id) != spared && source.tokens().starts_with(&entry.tokens))
        {
            let entry = self.entries.remove(i);
            self.pool.give_back(entry.rows);
            states.extend(entry.states);
        }
        let kept = self.write(source, &mut states);
        if kept.is_none() {
            states.into_iter().for_each(|(_, state)| self.pool.give_back(state));
        }
        kept.is_some()
    }

    fn write(&mut self, source: &dyn Source, states: &mut Vec<(usize, Segment)>) -> Option<()> {
        let lens = source.lens();
        states.sort_unstable_by_key(|(len, _)| *len);
        let known: Vec<usize> = states.iter().map(|(len, _)| *len).collect();
        // The newest of those that it takes over, and only while there is room for its own.
        let n_new = lens.iter().filter(|len| !known.contains(len)).count();
        let need = self.n_blocks(source.tokens().len(), n_new);
        while !states.is_empty() && (states.len() + n_new > STATES_MAX || self.pool.n_free() < need) {
            let (len, state) = states.remove(0);
            self.pool.give_back(state);
            if lens.contains(&len) {
                return self.write(source, states);
            }
        }
        let rows = self.pool.take(source.tokens().len() * self.shape.row_bytes)?;
        let written = source.write_rows(&mut self.pool.writer(&rows));
        if written.is_err() {
            self.pool.give_back(rows);
            return None;
        }
        for (i, len) in lens.into_iter().enumerate() {
            if states.iter().any(|(known, _)| *known == len) {
                continue;
            }
            let state = self.pool.take(self.state_bytes());
            let written = state.as_ref().map(|state| source.write_state(i, &mut self.pool.writer(state)));
            states.extend(state.map(|state| (len, state)));
            if !matches!(written, Some(Ok(()))) {
                self.pool.give_back(rows);
                return None;
            }
        }
        states.sort_unstable_by_key(|(len, _)| *len);
        self.n_uses += 1;
        self.n_made += 1;
        let (id, used) = (EntryId(self.n_made), self.n_uses);
        let (tokens, states) = (source.tokens().to_vec(), std::mem::take(states));
        self.entries.push(Entry { id, tokens, rows, states, used });
        Some(())
    }

    /// Copies the state after `len` tokens of an entry into `checkpoint`; returns what reads the rows.
    ///
    /// # Errors
    /// None that memory has; but the entry may be gone.
    pub(super) fn open<'a>(
        &'a self,
        id: EntryId,
        len: usize,
        checkpoint: &mut Checkpoint,
    ) -> io::Result<impl Read + 'a> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let entry = self.entries.iter().find(|entry| entry.id == id).ok_or_else(gone)?;
        checkpoint.len = len;
        if self.shape.state_values > 0 {
            let (_, state) = entry.states.iter().find(|(at, _)| *at == len).ok_or_else(gone)?;
            read_values(&mut self.pool.reader(state), self.shape.state_values, &mut checkpoint.values)?;
        }
        Ok(self.pool.reader(&entry.rows))
    }

    /// An entry, to be written elsewhere.
    pub(super) fn source(&self, id: EntryId) -> Option<impl Source + '_> {
        let entry = self.entries.iter().find(|entry| entry.id == id)?;
        Some(InMemory { pool: &self.pool, entry })
    }

    /// All entries, the one that was used last first.
    pub(super) fn newest_first(&self) -> Vec<EntryId> {
        let mut order: Vec<_> = self.entries.iter().map(|entry| (entry.used, entry.id)).collect();
        order.sort_unstable_by_key(|&(used, _)| std::cmp::Reverse(used));
        order.into_iter().map(|(_, id)| id).collect()
    }
}

/// An entry as a source.
struct InMemory<'a> {
    pool: &'a Pool,
    entry: &'a Entry,
}

impl Source for InMemory<'_> {
    fn tokens(&self) -> &[TokenId] {
        &self.entry.tokens
    }

    fn lens(&self) -> Vec<usize> {
        self.entry.lens().collect()
    }

    fn write_state(&self, i: usize, out: &mut dyn Write) -> io::Result<()> {
        io::copy(&mut self.pool.reader(&self.entry.states[i].1), out).map(|_| ())
    }

    fn write_rows(&self, out: &mut dyn Write) -> io::Result<()> {
        io::copy(&mut self.pool.reader(&self.entry.rows), out).map(|_| ())
    }
}
