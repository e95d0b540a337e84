//! Why a layer's experts can't be had.

use forerun_model::ExpertKey;
use forerun_storage::StoreError;

/// A turn that can't go on, or a scheduler that can't be made. The scheduler stays usable after each of them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchedulerError {
    /// The store couldn't read an expert. Asking the same turn again reads again.
    #[error("expert {key} can't be had")]
    Fetch {
        /// The expert.
        key: ExpertKey,
        /// The store's reason.
        source: StoreError,
    },
    /// The experts that a pass used where they lie aren't what they were. Nothing is lent from now on.
    #[error("experts that were used where they lie have changed")]
    Lent {
        /// The store's reason, with one of them.
        source: StoreError,
    },
    /// The caller keeps every slot. The turn goes on when a lease was given back.
    #[error("no slot for expert {key}: the caller holds leases of all {n_slots} slots; give one back first")]
    AllSlotsLeased {
        /// The next expert to fetch.
        key: ExpertKey,
        /// Slots of the arena.
        n_slots: usize,
    },
    /// The store neither finishes a fetch nor takes one.
    #[error(
        "the expert store makes no progress: {n_loading} fetches in flight, none finishes and none is taken"
    )]
    StoreStuck {
        /// Fetches that were begun and didn't come back.
        n_loading: usize,
    },
    /// An arena that is too small to read one expert while another computes.
    #[error("{n_slots} slots are too few; a scheduler needs at least {n_slots_min}")]
    TooFewSlots {
        /// Slots of the arena.
        n_slots: usize,
        /// Fewest that work.
        n_slots_min: usize,
    },
}
