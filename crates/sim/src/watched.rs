//! The contract between scheduler and store, watched while it is used.

use std::collections::HashMap;

use forerun_arena::{SlotIdx, WriteLease};
use forerun_model::{ExpertKey, LayerId, Nanos};
use forerun_storage::{
    ExpertStore, Fetched, Lent, Priority, Refused, RefusedReason, StoreError, StoreStats, Withdrawn,
};

/// Passes everything on to a store, and panics, with the reason, when one of both sides breaks the contract of
/// [`ExpertStore`]:
///
/// - no expert is begun while its last fetch is in flight;
/// - a lease that went in comes back once, with the expert that it was given for, and a guess that was taken back was one;
/// - no guess is begun while a demand waits that was refused, so none that isn't on the wire goes before a demand.
pub struct Watched {
    inner: Box<dyn ExpertStore>,
    in_flight: HashMap<ExpertKey, Flight>,
    /// A demand for which the store had no room.
    refused: Option<ExpertKey>,
    /// What the store brought, before it is passed on.
    done: Vec<Fetched>,
    withdrawn: Vec<Withdrawn>,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    slot: SlotIdx,
    /// As it was begun.
    origin: Priority,
    /// As it is now.
    priority: Priority,
}

impl Watched {
    /// Watches `inner`.
    pub fn new(inner: Box<dyn ExpertStore>) -> Self {
        Self { inner, in_flight: HashMap::new(), refused: None, done: Vec::new(), withdrawn: Vec::new() }
    }

    fn check_refused(&mut self, key: ExpertKey, slot: SlotIdx, priority: Priority, refused: &Refused) {
        let back = refused.lease.slot();
        assert_eq!(back, slot, "{key} was refused, and another slot came back than was given for it");
        if priority == Priority::Demand {
            self.refused = matches!(refused.reason, RefusedReason::QueueFull).then_some(key);
        }
    }

    fn landed(&mut self, Fetched { key, result }: &Fetched) {
        let flight = self.in_flight.remove(key);
        let flight = flight.unwrap_or_else(|| panic!("{key} came back twice, or was never begun"));
        match result {
            Ok(filled) => {
                let slot = filled.lease.slot();
                assert_eq!(slot, Some(flight.slot), "{key} came back in another slot than was given for it");
            }
            Err(StoreError::GivenUp { .. }) => {
                assert_eq!(flight.origin, Priority::Guess, "{key} was a demand, and was given up");
            }
            // The turn may end with it.
            Err(_) => self.refused = None,
        }
    }

    fn taken_back(&mut self, layer: Option<LayerId>, Withdrawn { key, lease, .. }: &Withdrawn) {
        let flight = self.in_flight.remove(key);
        let flight = flight.unwrap_or_else(|| panic!("{key} was taken back, but not in flight"));
        assert_eq!(flight.priority, Priority::Guess, "{key} was a demand, and was taken back");
        assert!(layer.is_none_or(|layer| layer == key.layer), "{key} was taken back for {layer:?}");
        assert_eq!(lease.slot(), flight.slot, "{key} came back in another slot than was given for it");
    }
}

#[deny(clippy::missing_trait_methods, reason = "who watches must see everything")]
impl ExpertStore for Watched {
    fn begin(&mut self, key: ExpertKey, slot: WriteLease, priority: Priority) -> Result<(), Refused> {
        assert!(!self.in_flight.contains_key(&key), "{key} is begun while its last fetch is in flight");
        if let (Priority::Guess, Some(refused)) = (priority, self.refused) {
            panic!("a guess of {key} is begun while the demand for {refused} waits for room");
        }
        let flight = Flight { slot: slot.slot(), origin: priority, priority };
        match self.inner.begin(key, slot, priority) {
            Ok(()) => {
                self.in_flight.insert(key, flight);
                self.refused = self.refused.filter(|_| priority == Priority::Guess);
                Ok(())
            }
            Err(refused) => {
                self.check_refused(key, flight.slot, priority, &refused);
                Err(refused)
            }
        }
    }

    fn start(&mut self) {
        self.inner.start();
    }

    fn promote(&mut self, key: ExpertKey) {
        let flight = self.in_flight.get_mut(&key);
        flight.unwrap_or_else(|| panic!("{key} is made a demand, but isn't in flight")).priority =
            Priority::Demand;
        self.inner.promote(key);
    }

    fn withdraw_guesses(&mut self, layer: Option<LayerId>, withdrawn: &mut Vec<Withdrawn>) {
        // A layer is opened: what the turn before had still to begin is forgotten.
        self.refused = self.refused.filter(|_| layer.is_none());
        let mut back = std::mem::take(&mut self.withdrawn);
        self.inner.withdraw_guesses(layer, &mut back);
        back.iter().for_each(|one| self.taken_back(layer, one));
        withdrawn.append(&mut back);
        self.withdrawn = back;
    }

    fn wait(&mut self, until: Nanos, done: &mut Vec<Fetched>) {
        let mut back = std::mem::take(&mut self.done);
        self.inner.wait(until, &mut back);
        back.iter().for_each(|one| self.landed(one));
        done.append(&mut back);
        self.done = back;
    }

    fn lend(&mut self, key: ExpertKey) -> Option<Lent> {
        self.inner.lend(key)
    }

    fn can_lend(&self, key: ExpertKey) -> bool {
        self.inner.can_lend(key)
    }

    fn check_lent(&mut self) -> Result<(), StoreError> {
        self.inner.check_lent()
    }

    fn stop_lending(&mut self) {
        self.inner.stop_lending();
    }

    fn stats(&self) -> StoreStats {
        self.inner.stats()
    }
}
