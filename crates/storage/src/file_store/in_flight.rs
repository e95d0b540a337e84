//! A read that isn't over: which expert each of its windows belongs to, and what arrived of it.

use std::collections::VecDeque;

use forerun_arena::Window;

use super::{FetchId, INTERRUPTIONS_MAX, RETRIES_MAX};
use crate::placement::Placed;
use crate::{Read, Tag};

/// A part of a fetch that one read brings.
pub(super) struct Piece {
    pub(super) fetch: FetchId,
    pub(super) placed: Placed,
    /// The block at its front that the piece before it ends with, when that piece's read brings both.
    pub(super) head: Option<Window>,
    /// What arrived.
    pub(super) done: Vec<Window>,
    /// Windows of the read that are still to be filled.
    pub(super) n_left: usize,
    /// Bytes that never arrived, of a piece that is over.
    pub(super) left_bytes: u64,
}

/// Whom a window of a read belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The piece of that index.
    Of(usize),
    /// What lies between two pieces, and nobody wants.
    Gap,
}

/// What is known of a read that was submitted.
pub(super) struct InFlight {
    pub(super) pieces: Vec<Piece>,
    /// One for each window that the read still has.
    pub(super) roles: VecDeque<Role>,
    pub(super) n_retries: u32,
    pub(super) n_interruptions: u32,
    /// Bytes of the last reads that brought less than a block, and how many in a row brought as many.
    stuck: (u64, u32),
    is_counted: bool,
}

/// How far a read has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advance {
    /// Every wanted byte arrived.
    Whole,
    /// There is more to read, and something arrived for good.
    Part,
    /// There is more to read, and less than a block arrived.
    Nothing,
}

impl Piece {
    /// Where a window of this piece lies in the file.
    fn offset_bytes(&self, window: &Window) -> u64 {
        self.placed.range.offset_bytes + (window.start() as u64 - u64::from(self.placed.slot_offset_bytes))
    }

    /// Whether all of it arrived.
    fn is_whole(&self) -> bool {
        self.n_left == 0 && self.head.is_none()
    }

    /// Bytes of it that arrived, of a piece that is over.
    pub(super) fn read_bytes(&self) -> u64 {
        u64::from(self.placed.range.len_bytes).saturating_sub(self.left_bytes)
    }
}

impl InFlight {
    pub(super) fn new(pieces: Vec<Piece>, roles: VecDeque<Role>) -> Self {
        Self { pieces, roles, n_retries: 0, n_interruptions: 0, stuck: (0, 0), is_counted: false }
    }

    /// Whether this is the first time that a read for several fetches came back.
    pub(super) fn takes_count(&mut self) -> bool {
        let first = self.pieces.first().map(|piece| piece.fetch);
        let is_merged = self.pieces.iter().any(|piece| Some(piece.fetch) != first);
        is_merged && !std::mem::replace(&mut self.is_counted, true)
    }

    /// Takes in that less than a block arrived; says whether that is all there is. A file that was cut inside a block
    /// gives the same bytes each time.
    pub(super) fn is_stuck(&mut self, n_bytes: u64) -> bool {
        let in_a_row = if self.stuck.0 == n_bytes { self.stuck.1 + 1 } else { 1 };
        self.stuck = (n_bytes, in_a_row);
        self.n_interruptions += 1;
        n_bytes == 0 || in_a_row > RETRIES_MAX || self.n_interruptions > INTERRUPTIONS_MAX
    }

    /// Takes in that the first `n_bytes` of `read` arrived. What is left of `read` is what must still be read.
    pub(super) fn advance(&mut self, read: &mut Read, n_bytes: u64, align_bytes: u32) -> Advance {
        let end_bytes = read.offset_bytes + n_bytes;
        let last = self.pieces.last().expect("a read has a piece");
        if end_bytes >= last.placed.range.offset_bytes + u64::from(last.placed.need_bytes) {
            for window in std::mem::take(&mut read.windows) {
                self.arrived(window);
            }
            return Advance::Whole;
        }
        // A direct read goes on at a block's start, so a part of a block counts for nothing.
        let end_bytes = end_bytes / u64::from(align_bytes) * u64::from(align_bytes);
        let mut left = end_bytes.saturating_sub(read.offset_bytes);
        if left == 0 {
            return Advance::Nothing;
        }
        read.offset_bytes = end_bytes;
        let n_full = read.windows.iter().take_while(|window| {
            let full = window.len() as u64 <= left;
            left -= if full { window.len() as u64 } else { 0 };
            full
        });
        let n_full = n_full.count();
        for window in read.windows.drain(..n_full).collect::<Vec<_>>() {
            self.arrived(window);
        }
        let rest = usize::try_from(left).expect("less than a window");
        read.windows.first_mut().expect("the last wanted byte is still to come").advance(rest);
        Advance::Part
    }

    /// Takes in a window that was filled.
    fn arrived(&mut self, mut window: Window) {
        let Some(Role::Of(idx)) = self.roles.pop_front() else { return };
        self.pieces[idx].n_left -= 1;
        if self.pieces[idx].n_left == 0
            && let Some(next) = self.pieces.get_mut(idx + 1)
            && let Some(mut head) = next.head.take()
        {
            let from = window.len() - head.len();
            head.bytes_mut().copy_from_slice(&window.bytes_mut()[from..]);
            next.done.push(head);
        }
        self.pieces[idx].done.push(window);
    }

    /// Takes out the pieces that are whole.
    pub(super) fn take_whole(&mut self) -> Vec<Piece> {
        let n = self.pieces.iter().take_while(|piece| piece.is_whole()).count();
        for role in &mut self.roles {
            if let Role::Of(idx) = role {
                *idx -= n;
            }
        }
        self.pieces.drain(..n).collect()
    }

    /// Splits a read that failed into one for each piece, so that a bad place in the file costs the experts that lie
    /// there and no others. `next_tag` names them.
    pub(super) fn apart(self, read: Read, mut next_tag: impl FnMut() -> Tag) -> Vec<(Read, Self)> {
        let Self { pieces, roles, n_interruptions, .. } = self;
        let mut windows: Vec<Vec<Window>> = pieces.iter().map(|_| Vec::new()).collect();
        let Read { windows: left, priority, file, .. } = read;
        for (window, role) in left.into_iter().zip(roles) {
            if let Role::Of(idx) = role {
                windows[idx].push(window);
            }
        }
        let reads = pieces.into_iter().zip(windows).map(|(mut piece, windows)| {
            let windows: Vec<Window> = piece.head.take().into_iter().chain(windows).collect();
            piece.n_left = windows.len();
            let offset_bytes = windows.first().map_or(0, |first| piece.offset_bytes(first));
            let roles = windows.iter().map(|_| Role::Of(0)).collect();
            let in_flight = Self { n_interruptions, ..Self::new(vec![piece], roles) };
            (Read { tag: next_tag(), priority, file, offset_bytes, windows }, in_flight)
        });
        reads.collect()
    }

    /// Ends it: every piece with all of its windows, filled or not.
    pub(super) fn into_pieces(mut self, windows: Vec<Window>) -> Vec<Piece> {
        for (window, role) in windows.into_iter().zip(self.roles) {
            if let Role::Of(idx) = role {
                self.pieces[idx].left_bytes += window.len() as u64;
                self.pieces[idx].done.push(window);
            }
        }
        for piece in &mut self.pieces {
            piece.left_bytes += piece.head.as_ref().map_or(0, |head| head.len() as u64);
            piece.done.extend(piece.head.take());
        }
        self.pieces
    }
}
