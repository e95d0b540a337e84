//! A scheduler and a loop over one fixture, for tests that look at the parts themselves.

use std::sync::Arc;

use forerun_arena::Arena;
use forerun_compute::{Backend, KvType, Row, StackConfig, Step, StepOutput, Weights};
use forerun_decode::engine::bind_weights;
use forerun_decode::step::StepLoop;
use forerun_model::{ModelShape, Position, SystemClock, TokenId};
use forerun_scheduler::{LookaheadConfig, NoPredictor, PolicyName, Scheduler, SchedulerConfig};
use forerun_storage::{Catalog, FileStore, Gguf, MmapBackend, Resident, ResidentMode};

use super::fixture;

/// A scheduler and a loop over one file.
pub(crate) struct Rig {
    pub(crate) shape: ModelShape,
    pub(crate) scheduler: Scheduler,
    steps: StepLoop,
    /// What the last step left.
    pub(crate) output: StepOutput,
}

/// Room for every case of the goldens.
pub(crate) const CONFIG: StackConfig =
    StackConfig { n_sequences: 2, context: 200, rows_max: 160, log_rows: 16, aside_rows: 8, kv: KvType::F32 };

/// Opens a fixture: what runs its steps, and its weights.
pub(crate) fn rig(model: &str) -> (Rig, Weights) {
    let gguf = Gguf::open(&fixture(model)).unwrap();
    let shape = ModelShape::from_metadata(&gguf.metadata).unwrap();
    let catalog = Arc::new(Catalog::new(&shape, &gguf).unwrap());
    let resident = Resident::load(&shape, &gguf, ResidentMode::Owned).unwrap();
    let weights = bind_weights(&shape, &catalog, &resident).unwrap();
    assert_eq!(resident.unknown(), [] as [String; 0], "prediction blocks are known and left out");
    let backend = Box::new(MmapBackend::new(gguf.files()).unwrap());
    let arena = Arena::new(4, catalog.slot_bytes(1)).unwrap();
    let store = Box::new(FileStore::new(catalog, gguf.files().clone(), backend));
    let scheduler = Scheduler::new(SchedulerConfig {
        arena,
        store,
        predictor: Box::new(NoPredictor),
        lookahead: LookaheadConfig::open(),
        policy: PolicyName::Lru.into(),
        clock: Arc::new(SystemClock::new()),
    });
    let steps = StepLoop::new(&shape);
    (Rig { shape, scheduler: scheduler.unwrap(), steps, output: StepOutput::default() }, weights)
}

impl Rig {
    /// The logits of a step's rows.
    pub(crate) fn run(&mut self, backend: &mut dyn Backend, step: &Step<'_>) -> Vec<f32> {
        self.steps.run(backend, &mut self.scheduler, step, &mut self.output).unwrap();
        self.output.logits.clone()
    }
}

/// Rows of a text whose first token has position `first`; all want logits.
pub(crate) fn text_rows(first: usize, tokens: &[TokenId]) -> Vec<Row> {
    let positions = (u32::try_from(first).unwrap()..).map(Position::text);
    let rows = tokens.iter().zip(positions);
    rows.map(|(&token, position)| Row { token, position, wants_logits: true }).collect()
}
