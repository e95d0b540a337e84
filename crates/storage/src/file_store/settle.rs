//! Reads that come back: resumed, repeated, given up or joined; full slots are checked and handed out.

use std::io;

use forerun_arena::{Window, WriteLease};
use forerun_model::ExpertKey;

use super::in_flight::{Advance, InFlight, Piece};
use super::{Fetch, FetchId, FileStore, INTERRUPTIONS_MAX, RETRIES_MAX, Verify};
use crate::placement::Placement;
use crate::{Completed, Fetched, FileSet, Filled, Read, StoreError, Tag};

impl FileStore {
    /// Decides about a read that came back, and acts.
    pub(super) fn settle(&mut self, Completed { mut read, result }: Completed) {
        let mut state =
            self.in_flight.remove(&read.tag).expect("a backend returns reads that were submitted, once");
        self.stats.n_reads += 1;
        self.stats.n_merged += u64::from(state.takes_count());
        let given_up = state.pieces.iter().all(|piece| self.fetches[&piece.fetch].given_up);
        match result {
            Ok(n_bytes) => {
                assert!(n_bytes <= read.len_bytes(), "a backend read more than it was asked for");
                self.stats.read_bytes += n_bytes;
                let advance = state.advance(&mut read, n_bytes, self.port.limits().align_bytes);
                for piece in state.take_whole() {
                    self.end_piece(piece);
                }
                match advance {
                    Advance::Whole => {}
                    Advance::Part | Advance::Nothing if given_up => self.end_read(read, state),
                    Advance::Nothing if state.is_stuck(n_bytes) => {
                        let at = read.offset_bytes + n_bytes;
                        self.fail(read, state, |fetch, piece, files| StoreError::Truncated {
                            key: fetch.key,
                            path: files.path(piece.placed.range.file),
                            offset_bytes: at,
                            end_bytes: fetch.placement.end_bytes(&piece.placed),
                        });
                    }
                    Advance::Part | Advance::Nothing => {
                        self.stats.n_resumed += 1;
                        self.submit(read, state);
                    }
                }
            }
            Err(_) if given_up => self.end_read(read, state),
            Err(source) => self.judge(read, state, source),
        }
    }

    /// Leaves what is left of a read that nobody wants any more, whatever became of it.
    fn end_read(&mut self, read: Read, state: InFlight) {
        for piece in state.into_pieces(read.windows) {
            self.end_piece(piece);
        }
    }

    /// Repeats a read that failed, or lets it fail for good.
    fn judge(&mut self, read: Read, mut state: InFlight, source: io::Error) {
        let is_interruption = matches!(source.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock);
        let repeat = if is_interruption {
            state.n_interruptions += 1;
            state.n_interruptions <= INTERRUPTIONS_MAX
        } else {
            state.n_retries += 1;
            StoreError::may_pass(&source) && state.n_retries <= RETRIES_MAX
        };
        if repeat && (is_interruption || state.pieces.len() == 1) {
            self.stats.n_retries += 1;
            self.submit(read, state);
        } else if state.pieces.len() > 1 {
            let mut next_id = self.next_id;
            let reads = state.apart(read, || {
                next_id += 1;
                Tag(next_id)
            });
            self.next_id = next_id;
            for (read, state) in reads {
                self.stats.n_retries += 1;
                self.submit(read, state);
            }
        } else {
            let (kind, text, at) = (source.kind(), source.to_string(), read.offset_bytes);
            let mut source = Some(source);
            self.fail(read, state, |fetch, piece, files| StoreError::Io {
                key: fetch.key,
                path: files.path(piece.placed.range.file),
                offset_bytes: at,
                source: source.take().unwrap_or_else(|| io::Error::new(kind, text.clone())),
            });
        }
    }

    /// Leaves what is left of a read for good.
    fn fail(
        &mut self,
        read: Read,
        state: InFlight,
        mut error: impl FnMut(&Fetch, &Piece, &FileSet) -> StoreError,
    ) {
        for piece in state.into_pieces(read.windows) {
            let fetch = self.fetches.get_mut(&piece.fetch).expect("a piece's fetch isn't over");
            if fetch.error.is_none() {
                fetch.error = Some(error(fetch, &piece, &self.files));
            }
            self.end_piece(piece);
        }
    }

    /// Takes a piece's windows back; ends the fetch with its last piece.
    fn end_piece(&mut self, piece: Piece) {
        let id = piece.fetch;
        let Some((mut fetch, lease)) = self.take_piece(piece) else { return };
        match fetch.error.take() {
            _ if fetch.given_up => {
                // The slot is free again.
                drop(lease);
                self.stats.n_given_up += 1;
                let (key, read_bytes) = (fetch.key, fetch.read_bytes);
                self.done.push(Fetched { key, result: Err(StoreError::GivenUp { key, read_bytes }) });
            }
            Some(error) => self.end(fetch.key, Err(error)),
            None => self.check(id, fetch, lease),
        }
    }

    /// Joins a piece's windows with those of the pieces that are over; the last one brings the fetch, and its slot.
    pub(super) fn take_piece(&mut self, piece: Piece) -> Option<(Fetch, WriteLease)> {
        let id = piece.fetch;
        let fetch = self.fetches.get_mut(&id).expect("a piece's fetch isn't over");
        fetch.read_bytes += piece.read_bytes();
        let lease = piece.done.into_iter().filter_map(Window::join).last();
        fetch.n_pieces -= 1;
        if fetch.n_pieces > 0 {
            return None;
        }
        let fetch = self.fetches.remove(&id).expect("it was there a moment ago");
        Some((fetch, lease.expect("all windows of the slot were joined")))
    }

    /// Looks at a full slot, and hands it out or reads it again.
    fn check(&mut self, id: FetchId, mut fetch: Fetch, mut lease: WriteLease) {
        let (mut last, ranges) = (None, fetch.placement.ranges.iter());
        // Asked of each file once: they mostly are one.
        let files = ranges.map(|placed| placed.range.file).filter(|file| last.replace(*file) != Some(*file));
        let mut opened = files.filter_map(|file| self.files.files().get(usize::from(file)));
        let changed = opened.find(|file| file.is_changed());
        let record = self.catalog.record(fetch.key).expect("the key was in the catalog when it was begun");
        let checksum = record.whole.zip(record.crc32c);
        if let (Some(file), None) = (changed, checksum) {
            let error = StoreError::Changed { key: fetch.key, path: file.path.clone() };
            return self.end(fetch.key, Err(error));
        }
        let wanted = checksum.filter(|_| changed.is_some() || self.config.verify == Verify::Always);
        if let Some((whole, expected)) = wanted {
            // A packed record is placed as a whole, so it begins where its one range does.
            let start = fetch.placement.ranges[0];
            let before = whole.offset_bytes - start.range.offset_bytes;
            let skip = usize::try_from(before).expect("less than a block") + start.slot_offset_bytes as usize;
            let found = crc32c::crc32c(&lease.bytes_mut()[skip..skip + whole.len_bytes as usize]);
            if found != expected && fetch.n_repeats < RETRIES_MAX {
                self.stats.n_corrupt += 1;
                fetch.n_repeats += 1;
                fetch.lease = Some(lease);
                self.fetches.insert(id, fetch);
                return self.start_alone(id);
            }
            if found != expected {
                let (key, offset_bytes) = (fetch.key, whole.offset_bytes);
                let path = self.files.path(whole.file);
                return self.end(key, Err(StoreError::Corrupt { key, path, offset_bytes, found, expected }));
            }
        }
        let Placement { parts, .. } = fetch.placement;
        let read_bytes = fetch.placement.read_bytes();
        self.end(fetch.key, Ok(Filled { lease: lease.seal(), parts, read_bytes }));
    }

    fn end(&mut self, key: ExpertKey, result: Result<Filled, StoreError>) {
        self.stats.n_failed += u64::from(result.is_err());
        self.done.push(Fetched { key, result });
    }
}
