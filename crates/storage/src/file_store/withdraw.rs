//! Which guesses can still be taken back, and which are given up half-way.

use forerun_model::LayerId;

use super::in_flight::Piece;
use super::{Fetch, FileStore};
use crate::{Priority, Read, Tag, Withdrawn};

impl Fetch {
    /// Whether it is a guess that is to be taken back, those of `layer` or all with `None`.
    fn leaves(&self, layer: Option<LayerId>) -> bool {
        self.priority == Priority::Guess
            && !self.given_up
            && layer.is_none_or(|layer| self.key.layer == layer)
    }
}

impl FileStore {
    /// Takes back guesses that weren't started.
    pub(super) fn withdraw_batched(&mut self, layer: Option<LayerId>, withdrawn: &mut Vec<Withdrawn>) {
        let Self { batch, fetches, n_batch_reads, .. } = self;
        batch.retain(|id| {
            let leaves = fetches[id].leaves(layer);
            if leaves {
                let fetch = fetches.remove(id).expect("it was there a moment ago");
                *n_batch_reads -= fetch.placement.ranges.len();
                let lease = fetch.lease.expect("a fetch of the batch has its slot");
                withdrawn.push(Withdrawn { key: fetch.key, lease, read_bytes: 0 });
            }
            !leaves
        });
    }

    /// Takes back what hasn't begun of the guesses that were started: of each guess all that can be had when they are
    /// read in bites, else only of those none of whose reads has begun.
    pub(super) fn withdraw_started(&mut self, layer: Option<LayerId>, withdrawn: &mut Vec<Withdrawn>) {
        let in_bites = self.config.bite_bytes.is_some();
        let leaves = |piece: &Piece| {
            let fetch = &self.fetches[&piece.fetch];
            fetch.leaves(layer) && (in_bites || fetch.n_pieces == fetch.placement.ranges.len())
        };
        let reads = self.in_flight.iter().filter(|(_, state)| state.pieces.iter().all(leaves));
        let mut tags: Vec<Tag> = reads.map(|(&tag, _)| tag).collect();
        // Last things first: what the backend begins meanwhile is then what it would have begun anyway.
        tags.sort_unstable_by(|a, b| b.cmp(a));
        let mut taken: Vec<Read> = tags.into_iter().filter_map(|tag| self.port.withdraw(tag)).collect();
        taken.sort_unstable_by_key(|read| read.tag);
        // A fetch of which another read has begun is read to its end, and so is what shares a read with it.
        while !in_bites && let Some(at) = taken.iter().position(|read| self.is_partial(read, &taken)) {
            let read = taken.remove(at);
            self.port.submit(read);
        }
        for read in taken {
            let state = self.in_flight.remove(&read.tag).expect("a read of ours");
            for piece in state.into_pieces(read.windows) {
                self.forget(piece, withdrawn);
            }
        }
    }

    /// Whether a fetch that `read` serves needs a read that isn't among `taken`.
    fn is_partial(&self, read: &Read, taken: &[Read]) -> bool {
        let serves = |read: &Read, id| {
            self.in_flight[&read.tag].pieces.iter().filter(|piece| piece.fetch == id).count()
        };
        self.in_flight[&read.tag].pieces.iter().any(|piece| {
            let n: usize = taken.iter().map(|read| serves(read, piece.fetch)).sum();
            n < self.fetches[&piece.fetch].n_pieces
        })
    }

    /// Ends a piece that was taken back. Until its fetch has ended too, which is with the last one at the disk, that is
    /// given up.
    fn forget(&mut self, piece: Piece, withdrawn: &mut Vec<Withdrawn>) {
        let id = piece.fetch;
        match self.take_piece(piece) {
            Some((Fetch { key, read_bytes, .. }, lease)) => {
                withdrawn.push(Withdrawn { key, lease, read_bytes });
            }
            None => self.fetches.get_mut(&id).expect("it has a piece left").given_up = true,
        }
    }
}
