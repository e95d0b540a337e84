//! What must hold at every step of a scheduler, whatever the seed.

use std::collections::{HashSet, VecDeque};

use forerun_arena::ReadLease;
use forerun_model::{ExpertKey, Routing};
use forerun_scheduler::{Ready, Scheduler, SchedulerStats};

use crate::rng::hash;

/// Watches a scheduler from the outside. Panics, with the reason, when something doesn't hold.
///
/// It keeps some of the leases that pass by for a while, as a device would that is still computing, and looks at
/// their bytes again before it lets go.
#[derive(Debug)]
pub struct Checker {
    /// Most leases that are kept.
    n_kept_max: usize,
    kept: VecDeque<Kept>,
    /// Experts that the open turn has still to hand out.
    left: HashSet<ExpertKey>,
    n_wanted: u64,
    n_turns: u64,
    last: SchedulerStats,
}

#[derive(Debug)]
struct Kept {
    key: ExpertKey,
    lease: ReadLease,
    digest: u64,
}

impl Checker {
    /// A checker that keeps up to `n_kept_max` leases; a turn needs one slot at least that nobody keeps.
    pub fn new(n_kept_max: usize) -> Self {
        Self {
            n_kept_max,
            kept: VecDeque::new(),
            left: HashSet::new(),
            n_wanted: 0,
            n_turns: 0,
            last: SchedulerStats::default(),
        }
    }

    /// A turn was asked for.
    pub fn opening(&mut self, layer: forerun_model::LayerId, routing: &Routing) {
        self.left = routing.experts().map(|expert| ExpertKey { layer, expert }).collect();
        self.n_wanted += self.left.len() as u64;
        self.n_turns += 1;
    }

    /// The turn has handed something out.
    ///
    /// # Panics
    /// When it wasn't wanted, came twice, or the bytes of an earlier lease have changed.
    pub fn handed_out(&mut self, ready: &Ready) {
        assert!(self.left.remove(&ready.key), "{} wasn't wanted or came twice", ready.key);
        let lease = ready.lease.clone();
        self.kept.push_back(Kept { key: ready.key, digest: digest(&lease), lease });
        while self.kept.len() > self.n_kept_max {
            self.let_go();
        }
    }

    /// The turn says that everything was handed out.
    ///
    /// # Panics
    /// When that isn't so, or one of the counts doesn't add up.
    pub fn turn_over(&mut self, scheduler: &Scheduler) {
        assert!(self.left.is_empty(), "{:?} never came", self.left);
        self.check(scheduler);
    }

    /// Lets go of all leases that are kept.
    ///
    /// # Panics
    /// When the bytes of one have changed.
    pub fn let_all_go(&mut self) {
        while !self.kept.is_empty() {
            self.let_go();
        }
    }

    fn let_go(&mut self) {
        let Some(Kept { key, lease, digest: before }) = self.kept.pop_front() else { return };
        assert_eq!(digest(&lease), before, "{lease:?} was overwritten while {key} was leased");
    }

    /// Checks what holds between any two calls.
    ///
    /// # Panics
    /// When it doesn't.
    pub fn check(&mut self, scheduler: &Scheduler) {
        let (mut slots, mut keys) = (HashSet::new(), HashSet::new());
        for (slot, key) in scheduler.residents() {
            assert!(slots.insert(slot) && keys.insert(key), "{key} or slot {} is there twice", slot.0);
        }
        let n_used = slots.len() + scheduler.n_loading();
        assert!(n_used <= scheduler.n_slots(), "{n_used} experts in {} slots", scheduler.n_slots());

        let (now, store) = (scheduler.stats(), scheduler.store_stats());
        assert_eq!((now.turns, now.wanted()), (self.n_turns, self.n_wanted), "turns and wanted experts");
        assert!(now.guesses_used <= now.guesses, "{} of {} guesses used", now.guesses_used, now.guesses);
        assert!(now.bytes_wasted <= now.bytes_guess, "more bytes were wasted than guessed: {now:?}");
        assert!(now.failures <= store.n_failed, "failures that the store didn't report: {now:?} {store:?}");
        assert!(
            now.bytes_demand + now.bytes_guess <= store.read_bytes,
            "bytes from nowhere: {now:?} {store:?}"
        );
        assert!(now.evictions <= now.fetches + now.guesses, "evicted more than read: {now:?}");
        assert!(
            now.stall >= self.last.stall && now.fetches >= self.last.fetches,
            "a count went back: {now:?}"
        );
        self.last = now;
    }
}

fn digest(lease: &ReadLease) -> u64 {
    let word = |bytes: &[u8]| bytes.iter().fold(0u64, |word, &byte| (word << 8) | u64::from(byte));
    lease.bytes().chunks(8).fold(0, |h, bytes| hash(&[h, word(bytes)]))
}
