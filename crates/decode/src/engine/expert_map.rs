//! What the experts do at a moment, for those who want to see a machine at work.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forerun_compute::Row;
use forerun_model::{ExpertKey, LayerId, Routing};
use forerun_scheduler::{GuessInput, View};

use super::Engine;
use crate::observe::RoutingObserver;

/// What an expert does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExpertState {
    /// It is on the disk.
    Away,
    /// It is in memory.
    Resident,
    /// It is being read.
    Reading,
    /// The last step computed with it.
    Used,
}

/// Which experts the last step used: hears of routings, and is looked at by whoever has a clone.
#[derive(Clone, Debug)]
pub struct UseMap {
    uses: Arc<Mutex<Uses>>,
}

#[derive(Debug)]
struct Uses {
    n_experts: usize,
    /// The number of the step that used each expert last, `[layers, experts]`; 0: none did.
    last: Vec<u64>,
    step: u64,
}

impl UseMap {
    /// A map for a model with so many layers of experts.
    pub fn new(n_layers: usize, n_experts: usize) -> Self {
        let uses = Uses { n_experts, last: vec![0; n_layers * n_experts], step: 0 };
        Self { uses: Arc::new(Mutex::new(uses)) }
    }

    /// A map for the model of `engine`.
    pub fn of(engine: &Engine) -> Self {
        Self::new(engine.shape().n_layers(), engine.shape().moe.n_experts)
    }

    /// Whoever panicked held the lock between two whole entries.
    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RoutingObserver for UseMap {
    fn begin(&mut self, _: &[Row]) {
        self.uses().step += 1;
    }

    fn asks(&self, _: View) -> bool {
        false
    }

    fn routed(&mut self, layer: LayerId, routing: &Routing) {
        let mut uses = self.uses();
        let (step, n_experts) = (uses.step, uses.n_experts);
        for expert in routing.experts() {
            if let Some(last) = uses.last.get_mut(layer.idx() * n_experts + expert.idx()) {
                *last = step;
            }
        }
    }

    fn told(&mut self, _: &GuessInput<'_>) {}
}

impl Engine {
    /// What every expert does now, `[layers, experts]`, into `out`, with what `uses` heard.
    pub fn expert_states(&self, uses: &UseMap, out: &mut Vec<ExpertState>) {
        let n_experts = self.shape().moe.n_experts;
        let all = if self.plan().mapped > 0 { ExpertState::Resident } else { ExpertState::Away };
        out.clear();
        out.resize(self.shape().n_layers() * n_experts, all);
        let mut set = |key: ExpertKey, state| {
            // A prediction block's experts are those of one more layer.
            if let Some(place) = out.get_mut(key.layer.idx() * n_experts + key.expert.idx()) {
                *place = state;
            }
        };
        for (_, key) in self.scheduler.residents() {
            set(key, ExpertState::Resident);
        }
        for key in self.scheduler.reading() {
            set(key, ExpertState::Reading);
        }
        let uses = uses.uses();
        for (place, last) in out.iter_mut().zip(&uses.last) {
            if *last == uses.step && uses.step > 0 {
                *place = ExpertState::Used;
            }
        }
    }
}
