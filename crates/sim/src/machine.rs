//! The real store and the real scheduler between simulated flash and any backend.

mod rig;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use forerun_arena::Arena;
use forerun_model::Nanos;
use forerun_scheduler::{
    GUESSES_MAX, Gate, LookaheadConfig, N_SLOTS_MIN, PolicyName, Scheduler, SchedulerConfig,
};
use forerun_storage::{Catalog, DataFile, ExpertStore, FileSet, FileStore, StoreConfig, Verify};

pub use rig::{Progress, Rig};

use crate::{Faults, FlashProfile, Guessing, Rng, RunError, SimFlash, VirtualClock, Watched};

/// The policies under which experts stay.
const KEEPING: [PolicyName; 3] = [PolicyName::Alike, PolicyName::Lfu, PolicyName::Lru];

/// Everything about a machine that must not change a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Decides orders, faults and guesses.
    pub seed: u64,
    /// Slots of the arena.
    pub n_slots: usize,
    /// What is kept.
    pub policy: PolicyName,
    /// How fast the flash is.
    pub profile: FlashProfile,
    /// What goes wrong.
    pub faults: Faults,
    /// Who guesses.
    pub guessing: Guessing,
    /// Which guesses are read.
    pub lookahead: LookaheadConfig,
    /// How long an expert computes.
    pub compute: Nanos,
    /// How long a router takes that is asked ahead of its turn.
    pub asking: Nanos,
    /// Offers, of 1,000, whose scores are those of other experts.
    pub misled_permille: u32,
    /// Whether reads are compared with checksums.
    pub verify: Verify,
    /// Longest read for a guess, as in [`StoreConfig::bite_bytes`].
    pub bite_bytes: Option<u32>,
    /// Leases that are kept for a while after they were handed out; below `n_slots`.
    pub n_kept: usize,
}

impl Machine {
    /// A machine on which nothing goes wrong and nothing overlaps.
    pub fn calm(n_slots: usize) -> Self {
        Self {
            seed: 0,
            n_slots: n_slots.max(N_SLOTS_MIN),
            policy: PolicyName::default(),
            profile: FlashProfile::calm(),
            faults: Faults::none(),
            guessing: Guessing::None,
            lookahead: LookaheadConfig::open(),
            compute: Nanos(0),
            asking: Nanos(0),
            misled_permille: 0,
            verify: Verify::default(),
            bite_bytes: None,
            n_kept: 0,
        }
    }

    /// A machine without faults for a model of `n_experts_total` experts; all else is up to the seed.
    pub fn from_seed(seed: u64, n_experts_total: usize) -> Self {
        let mut rng = Rng::new(seed);
        let n_slots = N_SLOTS_MIN + rng.index(n_experts_total.saturating_sub(1));
        let policy = if rng.happens(150) { PolicyName::KeepNone } else { KEEPING[rng.index(KEEPING.len())] };
        let guessing = Guessing::random(&mut rng);
        // Small numbers are where it hurts: half of the machines have few slots.
        let n_slots = if rng.happens(500) { n_slots.min(N_SLOTS_MIN + rng.index(8)) } else { n_slots };
        Self {
            seed,
            n_slots,
            policy,
            profile: FlashProfile::random(&mut rng),
            faults: Faults::none(),
            guessing,
            lookahead: lookahead(&mut rng),
            compute: Nanos::from_micros(rng.below(2_000)),
            asking: Nanos::from_micros(rng.below(300)),
            misled_permille: [0, 300, 1000][rng.index(3)],
            verify: Verify::default(),
            n_kept: rng.index(n_slots),
            // From a few of the toy's rows to most of its records.
            bite_bytes: (!rng.happens(250)).then(|| 64 << rng.below(6)),
        }
    }

    /// The same machine with these faults.
    #[must_use]
    pub fn faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// The same machine with another number of slots; 0 keeps nothing in the fewest slots that work.
    #[must_use]
    pub fn slots(self, n_slots: usize) -> Self {
        let keeping = if self.policy == PolicyName::KeepNone { PolicyName::default() } else { self.policy };
        let policy = if n_slots == 0 { PolicyName::KeepNone } else { keeping };
        let n_slots = n_slots.max(N_SLOTS_MIN);
        Self { n_slots, policy, n_kept: self.n_kept.min(n_slots - 1), ..self }
    }

    /// The same machine with another predictor.
    #[must_use]
    pub fn guessing(self, guessing: Guessing) -> Self {
        Self { guessing, ..self }
    }

    /// Builds flash, store and scheduler over `files`, in which `catalog` finds the experts. What passes between store
    /// and scheduler is [`Watched`].
    ///
    /// # Errors
    /// [`RunError`] when the slots can't be allocated or are too few.
    pub fn rig(&self, catalog: &Arc<Catalog>, files: Vec<Bytes>) -> Result<Rig, RunError> {
        self.rig_with(catalog, files, |store| Box::new(Watched::new(store)))
    }

    /// As [`Self::rig`], but the scheduler gets what `wrap` makes of the store, which nobody watches.
    ///
    /// # Errors
    /// [`RunError`] when the slots can't be allocated or are too few.
    pub fn rig_with(
        &self,
        catalog: &Arc<Catalog>,
        files: Vec<Bytes>,
        wrap: impl FnOnce(Box<dyn ExpertStore>) -> Box<dyn ExpertStore>,
    ) -> Result<Rig, RunError> {
        let clock = VirtualClock::new();
        let data = |file: &Bytes| DataFile::from_bytes(Path::new("simulated flash"), file.clone());
        let set = FileSet::new(files.iter().map(data).collect());
        let flash = SimFlash::new(files, self.profile, self.faults, self.seed, clock.clone());
        let handle = flash.handle();
        let Self { verify, bite_bytes, .. } = *self;
        let store = StoreConfig { verify, bite_bytes, ..StoreConfig::default() };
        let store = FileStore::with_config(Arc::clone(catalog), set, Box::new(flash), store);
        let scheduler = Scheduler::new(SchedulerConfig {
            arena: Arena::new(self.n_slots, catalog.slot_bytes(self.profile.align_bytes))?,
            store: wrap(Box::new(store)),
            predictor: self.guessing.predictor(self.seed),
            policy: self.policy.into(),
            lookahead: self.lookahead,
            clock: Arc::new(clock.clone()),
        })?;
        Ok(Rig::new(self, catalog, scheduler, handle, clock))
    }
}

/// Any setting that a scheduler takes.
fn lookahead(rng: &mut Rng) -> LookaheadConfig {
    let time = |rng: &mut Rng| rng.happens(500).then(|| Nanos::from_micros(1 + rng.below(3_000)));
    LookaheadConfig {
        gate: if rng.happens(400) { Gate::Open } else { Gate::Paying },
        // None, all, and mostly some.
        width_max: if rng.happens(50) { 0 } else { 1 + rng.index(GUESSES_MAX) },
        extra_permille: u32::try_from(rng.below(1001)).unwrap_or(0),
        read: time(rng),
        hold: time(rng),
    }
}
