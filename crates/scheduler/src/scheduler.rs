//! The owner of table, arena, store and predictor: carries out what `plan` decides.
//!
//! # Why a turn always ends
//! A wanted expert that the store lends is in `lent` until it is handed out. Each other one is in one of four places:
//! in `queue` (no read begun), loading, in `ready`, or handed out; it moves forward only, but for a failed read,
//! which ends the call with an error (or, when it was begun before the turn, is begun once more). A pull hands out
//! from `lent`, then from `ready`; if both are empty it sleeps for a read in flight, which the store finishes. With
//! `ready` empty and nothing in flight, no slot is loading and none is promised, so each slot is free or leased by
//! the caller: a free one is taken by the front of `queue` at once, and if there is none the caller holds them all
//! and gets [`SchedulerError::AllSlotsLeased`]. Guesses never hold a slot for longer than their own read, and none is
//! begun while `queue` isn't empty.

mod guesses;
mod landing;
mod pass;
mod shrink;
mod sweep;

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use forerun_arena::{Arena, SlotIdx, WriteLease};
use forerun_model::{Clock, ExpertKey, LayerId, Nanos, Routing};
use forerun_storage::{
    ExpertStore, Fetched, Lent, Priority, Refused, RefusedReason, StoreError, StoreStats, Withdrawn,
};

use crate::lookahead::{Lookahead, LookaheadConfig};
use crate::plan::{Move, plan};
use crate::policy::lru::Lru;
use crate::rank::Ranking;
use crate::slots::{Content, Origin, Slots};
use crate::{CachePolicy, Guess, Keep, Predictor, Ready, SchedulerError, SchedulerStats, Turn};
use sweep::Sweep;

/// Fewest slots with which a scheduler works: one is computed with while the other is read.
pub const N_SLOTS_MIN: usize = 2;

/// Queued experts that are planned for at once, so that a pull costs the same however long the queue is.
const WINDOW: usize = 16;

/// Most rows of a pass in which guesses are made: the experts of more rows are most of a layer, and are read without asking
/// anybody ([`Scheduler::announce`]).
pub const ROWS_GUESSED_MAX: usize = 8;

/// The parts of a [`Scheduler`].
pub struct SchedulerConfig {
    /// The slots, at least [`N_SLOTS_MIN`]; nobody else may take write leases of them.
    pub arena: Arena,
    /// Where experts come from.
    pub store: Box<dyn ExpertStore>,
    /// Who guesses.
    pub predictor: Box<dyn Predictor>,
    /// What is kept; [`PolicyName`](crate::PolicyName) has those that come with the crate.
    pub policy: Keep,
    /// Which guesses are read.
    pub lookahead: LookaheadConfig,
    /// For stalls and for what a guess may save; the scheduler has no time of its own.
    pub clock: Arc<dyn Clock>,
}

/// Which expert sits in which slot. Owned by one thread, which opens one layer at a time.
pub struct Scheduler {
    arena: Arena,
    store: Box<dyn ExpertStore>,
    predictor: Box<dyn Predictor>,
    /// Whether experts stay after use.
    keeps: bool,
    clock: Arc<dyn Clock>,
    slots: Slots,
    /// Rows of the pass under way.
    n_rows: usize,
    ranking: Ranking,
    /// Slots beyond these are retired when they are free.
    n_slots_max: usize,
    /// Keeps retired slots from everybody.
    retired: Vec<WriteLease>,
    /// Wanted experts whose read isn't begun, ascending.
    queue: VecDeque<ExpertKey>,
    /// Slots whose promised experts can be handed out.
    ready: VecDeque<SlotIdx>,
    /// Wanted experts that the store lends, to be handed out first.
    lent: VecDeque<Ready>,
    /// Promised experts that are loading.
    n_awaited: usize,
    /// The first failed read of this turn that wasn't reported yet.
    failure: Option<SchedulerError>,
    /// What is guessed of the layers to come.
    lookahead: Lookahead,
    /// Experts that the turn under way wants.
    n_wanted: usize,
    /// The next layer's experts, in a pass that wants most of a layer.
    sweep: Option<Sweep>,
    /// The guesses of an offer, and those that are to be read.
    guesses: Vec<Guess>,
    /// When the disk had last nothing to do, or brought something that was waited for, and what it has brought since.
    disk_busy_since: Option<(Nanos, u64)>,
    /// Stalls before the turn under way.
    stall_before: Nanos,
    /// Whether the store refused a read since the last completion.
    store_full: bool,
    /// Reads in flight when the store last refused one: guesses don't try beyond, for a try costs a slot.
    depth_seen: usize,
    /// Experts whose bytes came at least once.
    seen: HashSet<ExpertKey>,
    stats: SchedulerStats,
    // Buffers that are reused from turn to turn.
    wanted: Vec<ExpertKey>,
    moves: Vec<Move>,
    done: Vec<Fetched>,
    withdrawn: Vec<Withdrawn>,
}

impl Scheduler {
    /// A scheduler with empty slots.
    ///
    /// # Errors
    /// [`SchedulerError::TooFewSlots`].
    pub fn new(config: SchedulerConfig) -> Result<Self, SchedulerError> {
        let SchedulerConfig { arena, store, predictor, policy, lookahead, clock } = config;
        let n_slots = arena.n_slots();
        if n_slots < N_SLOTS_MIN {
            return Err(SchedulerError::TooFewSlots { n_slots, n_slots_min: N_SLOTS_MIN });
        }
        let (keeps, policy) = match policy {
            Keep::Worthiest(policy) => (true, policy),
            Keep::Nothing => (false, Box::new(Lru) as Box<dyn CachePolicy>),
        };
        Ok(Self {
            arena,
            store,
            predictor,
            keeps,
            clock,
            slots: Slots::new(n_slots),
            n_rows: 0,
            ranking: Ranking::new(policy, n_slots),
            n_slots_max: n_slots,
            retired: Vec::new(),
            queue: VecDeque::new(),
            ready: VecDeque::new(),
            lent: VecDeque::new(),
            n_awaited: 0,
            failure: None,
            lookahead: Lookahead::new(lookahead),
            n_wanted: 0,
            sweep: None,
            guesses: Vec::new(),
            disk_busy_since: None,
            stall_before: Nanos(0),
            store_full: false,
            depth_seen: usize::MAX,
            seen: HashSet::new(),
            stats: SchedulerStats::default(),
            wanted: Vec::new(),
            moves: Vec::new(),
            done: Vec::new(),
            withdrawn: Vec::new(),
        })
    }

    /// Opens the turn of `layer`: finds the hits of the grouped `routing` and begins to read the others, in
    /// ascending order. Guesses that weren't begun are forgotten.
    ///
    /// # Errors
    /// [`SchedulerError::Fetch`] when the store knows that it can't read one of them.
    pub fn open_layer(&mut self, layer: LayerId, routing: &Routing) -> Result<Turn<'_>, SchedulerError> {
        self.close_turn();
        self.predictor.observe(layer, routing);
        self.ranking.observe(layer, routing);
        self.slots.next_turn(layer);
        self.stall_before = self.stats.stall;
        self.stats.turns += 1;
        self.poll();
        self.retire_excess();
        self.wanted.clear();
        self.wanted.extend(routing.experts().map(|expert| ExpertKey { layer, expert }));
        self.n_wanted = self.wanted.len();
        self.sweep = None;
        self.borrow();
        self.settle_guesses(layer);
        plan(&self.slots, &mut self.ranking, &self.wanted, &[], &mut self.moves);
        let opened = self.open_moves();
        let turn = Turn::new(self);
        opened.map(|()| turn)
    }

    /// What was counted so far.
    pub fn stats(&self) -> SchedulerStats {
        let unused: u64 = self.slots.all().map(|(_, slot)| slot.unused_bytes()).sum();
        SchedulerStats { bytes_wasted: self.stats.bytes_wasted + unused, ..self.stats }
    }

    /// What the store counted so far.
    pub fn store_stats(&self) -> StoreStats {
        self.store.stats()
    }

    /// What decides which experts stay: the name of the policy, or `none` when nothing stays.
    pub fn policy(&self) -> &'static str {
        if self.keeps { self.ranking.policy_name() } else { "none" }
    }

    /// Slots that are in use or may be.
    pub fn n_slots(&self) -> usize {
        self.slots.len()
    }

    /// Slots that are being filled.
    pub fn n_loading(&self) -> usize {
        self.slots.n_loading()
    }

    /// The experts that a router could hit now, with their slots, in no order.
    pub fn residents(&self) -> impl Iterator<Item = (SlotIdx, ExpertKey)> {
        self.slots.residents()
    }

    /// The experts that are being read now, in no order.
    pub fn reading(&self) -> impl Iterator<Item = ExpertKey> {
        self.slots.all().filter(|(_, slot)| slot.is_loading()).map(|(_, slot)| slot.key)
    }

    pub(crate) fn next_ready(&mut self) -> Result<Option<Ready>, SchedulerError> {
        loop {
            self.poll();
            if let Some(failure) = self.failure.take() {
                return Err(failure);
            }
            self.begin_queued()?;
            self.begin_guesses();
            self.begin_sweep();
            if let Some(lent) = self.lent.pop_front() {
                return Ok(Some(lent));
            }
            if let Some(slot) = self.ready.pop_front() {
                return Ok(Some(self.hand_out(slot)));
            }
            if self.queue.is_empty() && self.n_awaited == 0 {
                self.lookahead.closed(self.stats.stall - self.stall_before, self.busy_time());
                return Ok(None);
            }
            self.sleep()?;
        }
    }

    /// Ends the turn, however far it got.
    pub(crate) fn close_turn(&mut self) {
        if !self.ready.is_empty() || self.n_awaited > 0 {
            self.slots.break_promises();
        }
        self.queue.clear();
        self.ready.clear();
        self.lent.clear();
        self.n_awaited = 0;
        self.failure = None;
    }

    /// Takes the wanted experts that the store lends; the others stay wanted.
    fn borrow(&mut self) {
        let Self { wanted, store, lent, stats, .. } = self;
        wanted.retain(|&key| {
            let Some(Lent { lease, parts }) = store.lend(key) else { return true };
            lent.push_back(Ready { key, lease, parts });
            stats.hits += 1;
            stats.lent += 1;
            false
        });
    }

    /// Carries out the plan for a whole layer and counts what it found.
    fn open_moves(&mut self) -> Result<(), SchedulerError> {
        for i in 0..self.moves.len() {
            match self.moves[i] {
                Move::Hit { slot } => {
                    self.stats.hits += 1;
                    self.promise(slot);
                    self.ready.push_back(slot);
                }
                Move::Wait { slot } => {
                    self.stats.joins += 1;
                    self.promise(slot);
                    self.n_awaited += 1;
                }
                Move::Fetch { key, .. } | Move::Blocked { key } => {
                    self.stats.misses += 1;
                    self.queue.push_back(key);
                }
                Move::Guess { .. } => {}
            }
        }
        self.begin_queued()
    }

    fn promise(&mut self, slot: SlotIdx) {
        let row = self.slots.get(slot);
        // A guess that is still loading counts when it has landed: it may bring nothing.
        if row.origin.is_ahead() && !row.used && !row.is_loading() {
            self.stats.guesses_used += 1;
            let is_of_this_pass = row.turn + 2 >= self.slots.turn();
            if row.origin == Origin::Guess && !is_of_this_pass {
                self.lookahead.used_later(row.key.layer);
            }
        }
        self.slots.promise(slot);
    }

    /// Begins reads from the front of the queue while there are slots and the store takes them.
    fn begin_queued(&mut self) -> Result<(), SchedulerError> {
        let begun = self.begin_demands();
        self.store.start();
        begun
    }

    fn begin_demands(&mut self) -> Result<(), SchedulerError> {
        while !self.queue.is_empty() && !self.store_full {
            self.wanted.clear();
            self.wanted.extend(self.queue.iter().take(WINDOW));
            plan(&self.slots, &mut self.ranking, &self.wanted, &self.guesses, &mut self.moves);
            for i in 0..self.moves.len() {
                let Move::Fetch { key, slot } = self.moves[i] else { return Ok(()) };
                let failed = |source| SchedulerError::Fetch { key, source };
                let demand = (Origin::Demand, Priority::Demand);
                let mut begun = self.begin(key, slot, demand).map_err(failed)?;
                if !begun {
                    // Places may be free even if no guess came back at once.
                    self.withdraw_guesses(None);
                    begun = self.begin(key, slot, demand).map_err(failed)?;
                }
                if !begun {
                    return Ok(());
                }
                self.queue.pop_front();
                self.slots.promise(slot);
                self.n_awaited += 1;
            }
        }
        Ok(())
    }

    /// Empties `slot` and has the store fill it with `key`; `false` when the store's queue is full.
    fn begin(
        &mut self,
        key: ExpertKey,
        slot: SlotIdx,
        (origin, priority): (Origin, Priority),
    ) -> Result<bool, StoreError> {
        if self.slots.get(slot).resident().is_some() {
            self.stats.evictions += 1;
            self.stats.bytes_wasted += self.slots.get(slot).unused_bytes();
        }
        self.slots.vacate(slot);
        let lease = self.arena.try_write(slot).expect("a slot without readers is the scheduler's to write");
        match self.store.begin(key, lease, priority) {
            Ok(()) => {}
            Err(Refused { reason: RefusedReason::Never(error), .. }) => return Err(error),
            Err(Refused { reason: RefusedReason::QueueFull, .. }) => {
                // A guess may be refused for the sake of demands.
                self.store_full |= origin == Origin::Demand;
                self.depth_seen = self.slots.n_loading();
                return Ok(false);
            }
        }
        if self.slots.n_loading() == 0 {
            self.disk_busy_since = Some((self.clock.now(), 0));
        }
        self.slots.begin(slot, key, origin);
        match origin {
            Origin::Demand => self.stats.fetches += 1,
            Origin::Guess | Origin::Sweep => self.stats.guesses += 1,
        }
        Ok(true)
    }

    fn hand_out(&mut self, slot: SlotIdx) -> Ready {
        let row = self.slots.get(slot);
        let Content::Resident { lease, parts, .. } = &row.content else {
            unreachable!("only residents are ready, and promised ones stay");
        };
        let ready = Ready { key: row.key, lease: lease.clone(), parts: *parts };
        if self.keeps {
            self.slots.keep_promise(slot);
        } else {
            self.slots.spend(slot);
        }
        ready
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler")
            .field("n_slots", &self.n_slots())
            .field("n_loading", &self.n_loading())
            .field("policy", &self.policy())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}
