//! A toy model with a workload, and what a calm machine makes of it.

#![allow(dead_code, reason = "every test file uses its own part")]

pub(crate) mod wrong;

use std::sync::Arc;

use bytes::Bytes;
use forerun_compute::Backend;
use forerun_sim::{Machine, Progress, Rig, ToyBackend, ToyModel, Workload};
use forerun_storage::Catalog;

pub(crate) struct World {
    pub(crate) model: ToyModel,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) file: Bytes,
    pub(crate) workload: Workload,
    /// What a calm machine with room for everything says.
    pub(crate) calm: Progress,
}

impl World {
    /// A prompt and 24 steps.
    pub(crate) fn new() -> Self {
        Self::of_steps(24)
    }

    /// A prompt and so many steps.
    pub(crate) fn of_steps(n_steps: usize) -> Self {
        Self::with(n_steps, |toy| Box::new(toy))
    }

    /// A world whose calm machine computes with another backend than the toy.
    pub(crate) fn with(n_steps: usize, make: impl FnOnce(ToyBackend) -> Box<dyn Backend>) -> Self {
        let model = ToyModel::small();
        let catalog = Arc::new(model.catalog().unwrap());
        let workload = Workload::random(42, model.n_vocab, n_steps);
        let mut world = Self { model, catalog, file: model.file(), workload, calm: Progress::default() };
        let machine = Machine::calm(model.n_experts_total());
        let mut backend = make(ToyBackend::new(model, 1));
        world.calm = world.run_on(&machine, world.rig(&machine), &mut *backend).0;
        assert!(world.calm.logits_bits.iter().any(|&bits| bits != world.calm.logits_bits[0]));
        world
    }

    pub(crate) fn rig(&self, machine: &Machine) -> Rig {
        machine.rig(&self.catalog, vec![self.file.clone()]).unwrap()
    }

    /// All of the workload, on a toy.
    pub(crate) fn run(&self, machine: &Machine) -> (Progress, Rig) {
        self.run_on(machine, self.rig(machine), &mut ToyBackend::new(self.model, 1))
    }

    /// All of the workload on `rig`, which was built of `machine`.
    pub(crate) fn run_on(
        &self,
        machine: &Machine,
        mut rig: Rig,
        backend: &mut dyn Backend,
    ) -> (Progress, Rig) {
        let mut progress = Progress::default();
        let result = rig.run(backend, &self.workload, &mut progress);
        result.unwrap_or_else(|error| panic!("seed {}: {error}; {machine:?}", machine.seed));
        (progress, rig)
    }

    /// The check of all lossless tests: every bit is a calm machine's.
    pub(crate) fn assert_calm(&self, progress: &Progress, machine: &Machine) {
        assert_eq!(progress.n_steps, self.calm.n_steps, "seed {}", machine.seed);
        let differs =
            (0..self.calm.logits_bits.len()).find(|&i| progress.logits_bits[i] != self.calm.logits_bits[i]);
        assert_eq!(differs, None, "seed {}: first logit that differs; {machine:?}", machine.seed);
        assert_eq!(progress, &self.calm, "seed {}", machine.seed);
    }
}
