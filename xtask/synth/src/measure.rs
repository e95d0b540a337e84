//! Walks a written model's script with the real engine and writes down what its routers say, and what they would have
//! said earlier.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use forerun_arena::Arena;
use forerun_compute::{Backend, Cpu, ExpertJob, KvType, Part, Row, Scores, StackConfig, Step, StepOutput};
use forerun_decode::engine::bind_weights;
use forerun_model::{Clock, ExpertId, LayerId, ModelShape, Position, Routing, Stage, SystemClock, TokenId};
use forerun_scheduler::{LookaheadConfig, N_SLOTS_MIN, NoPredictor, PolicyName, Scheduler, SchedulerConfig};
use forerun_sim::recording::best;
use forerun_sim::{Document, Guesses, Recording, TraceShape};
use forerun_storage::{Catalog, FileStore, Gguf, PreadBackend, PreadConfig, Resident, ResidentMode};

use crate::args::Args;
use crate::error::SynthError;
use crate::model::{FIRST_TOKEN, N_SCRIPT};

/// Most memory for experts; hits and misses change no routing.
const SLOTS_BYTES_MAX: usize = 3 << 30;

/// Most experts whose ids fit a trace.
const EXPERTS_MAX: usize = 256;

/// Why writing down can't fail.
const IN_MEMORY: &str = "a vector takes all that is written";

/// What a walk leaves.
#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) recording: Recording,
    /// The router two layers ahead, after the mixer; for layers 0 and 1 on the embedding.
    pub(crate) two_ahead: Guesses,
    /// Steps whose best token was the script's next, before the first that wasn't.
    pub(crate) n_followed: usize,
    pub(crate) n_tokens: usize,
    pub(crate) tokens_per_second: f64,
}

/// Walks `n_tokens` tokens of the script of the model at `args.out`.
///
/// # Errors
/// [`SynthError`]: no model of this tool, too many tokens, or what the engine says.
pub(crate) fn walk(args: &Args, n_tokens: usize) -> Result<Walk, SynthError> {
    let mut rig = Rig::open(&args.out, n_tokens, args.threads)?;
    let begin = rig.clock.now();
    for position in 0..n_tokens {
        rig.token(position)?;
    }
    let seconds = (rig.clock.now() - begin).as_millis_f64() / 1e3;
    #[expect(clippy::cast_precision_loss, reason = "few tokens")]
    let tokens_per_second = n_tokens as f64 / seconds;
    Ok(Walk { tokens_per_second, ..rig.walk })
}

/// Keeps the trace of a walk in `path` with `.json` and `.bin`.
///
/// # Errors
/// [`SynthError::Io`].
pub(crate) fn save(walk: &Walk, path: &Path) -> Result<(), SynthError> {
    let documents = [Document { source: "synth".into(), first: 0, count: walk.n_tokens }];
    let header = walk.recording.header("synth", &documents);
    let arrays = walk.recording.clone().into_columns().concat();
    for (ending, bytes) in [("json", header), ("bin", arrays)] {
        let path = path.with_added_extension(ending);
        fs::write(&path, bytes).map_err(|source| SynthError::Io { doing: "write", path, source })?;
    }
    Ok(())
}

/// The engine's parts around one model.
struct Rig {
    backend: Cpu,
    scheduler: Scheduler,
    clock: Arc<dyn Clock>,
    layers: Vec<LayerId>,
    n_predicted: usize,
    first_token: u32,
    n_script: usize,
    routing: Routing,
    scores: Scores,
    output: StepOutput,
    walk: Walk,
    /// The tensors that the backend borrows.
    _resident: Resident,
}

impl Rig {
    fn open(path: &Path, n_tokens: usize, n_threads: Option<usize>) -> Result<Self, SynthError> {
        let gguf = Gguf::open(path)?;
        let key = |key: &str| {
            let number = gguf.metadata.value(key).and_then(|value| value.integer());
            let number = number.and_then(|number| u32::try_from(number).ok());
            number.ok_or_else(|| SynthError::NotSynthetic { path: path.to_path_buf(), key: key.to_owned() })
        };
        let (first_token, n_script) = (key(FIRST_TOKEN)?, key(N_SCRIPT)? as usize);
        let shape = ModelShape::from_metadata(&gguf.metadata)?;
        if n_tokens > n_script.min(shape.context_max) {
            let context = shape.context_max;
            return Err(SynthError::TooLong { wanted: n_tokens, n_script, context });
        }
        if shape.moe.n_experts > EXPERTS_MAX {
            return Err(SynthError::TooManyExperts { found: shape.moe.n_experts, max: EXPERTS_MAX });
        }
        let catalog = Arc::new(Catalog::new(&shape, &gguf)?);
        let resident = Resident::load(&shape, &gguf, ResidentMode::Mapped)?;
        let weights = bind_weights(&shape, &catalog, &resident)?;
        let stack = StackConfig {
            n_sequences: 1,
            context: n_tokens,
            rows_max: 1,
            log_rows: 0,
            aside_rows: 0,
            kv: KvType::F16,
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let backend = Cpu::cpu(weights, stack, n_threads.unwrap_or(cores))?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let scheduler = scheduler(&shape, &gguf, catalog, &clock)?;
        let moe = &shape.moe;
        let n_layers = shape.n_layers();
        let trace = TraceShape { n_layers, n_experts: moe.n_experts, top_k: moe.top_k };
        Ok(Self {
            backend,
            scheduler,
            clock,
            layers: shape.layer_ids().collect(),
            n_predicted: trace.n_predicted(),
            first_token,
            n_script,
            routing: Routing::default(),
            scores: Scores::default(),
            output: StepOutput::default(),
            walk: Walk {
                recording: Recording::new(trace),
                two_ahead: Guesses::new(n_layers, trace.n_predicted()),
                n_followed: 0,
                n_tokens,
                tokens_per_second: 0.0,
            },
            _resident: resident,
        })
    }

    /// One token of the script, whatever the logits before said: a deviation is counted once.
    fn token(&mut self, position: usize) -> Result<(), SynthError> {
        let place = u32::try_from(position).unwrap_or(u32::MAX);
        let token = TokenId(self.first_token + place);
        let row = Row { token, position: Position::text(place), wants_logits: true };
        let part = Part { past: position, n_rows: 1, ..Part::default() };
        let step = Step::of(&part, std::slice::from_ref(&row));
        self.backend.begin(&step)?;
        self.walk.recording.begin(token).expect(IN_MEMORY);
        let from_embedding = self.guess(Stage::Begin, LayerId(0))?;
        self.walk.recording.push_prev_mid(&from_embedding).expect(IN_MEMORY);
        self.walk.recording.push_prev_out(&from_embedding).expect(IN_MEMORY);
        self.walk.two_ahead.push(&from_embedding);
        if self.layers.len() > 1 {
            let guess = self.guess(Stage::Begin, LayerId(1))?;
            self.walk.two_ahead.push(&guess);
        }
        for i in 0..self.layers.len() {
            self.layer(i)?;
        }
        self.backend.finish(&mut self.output)?;
        self.backend.accept(0, 1)?;
        let next = (position + 1) % self.n_script;
        let best = self.output.row(0).iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        let follows = best.is_some_and(|(best, _)| best == self.first_token as usize + next);
        self.walk.n_followed += usize::from(follows && self.walk.n_followed == position);
        Ok(())
    }

    fn layer(&mut self, i: usize) -> Result<(), SynthError> {
        let layer = self.layers[i];
        let (next, after) = (self.layers.get(i + 1).copied(), self.layers.get(i + 2).copied());
        self.backend.mix_route(layer, &mut self.routing)?;
        self.walk.recording.push(self.routing.row(0)).expect(IN_MEMORY);
        if let Some(next) = next {
            let guess = self.guess(Stage::Early, next)?;
            self.walk.recording.push_prev_mid(&guess).expect(IN_MEMORY);
        }
        if let Some(after) = after {
            let guess = self.guess(Stage::Early, after)?;
            self.walk.two_ahead.push(&guess);
        }
        self.backend.run_shared(layer)?;
        let mut turn = self.scheduler.open_layer(layer, &self.routing)?;
        while let Some(ready) = turn.next_ready()? {
            let uses = self.routing.uses(ready.key.expert);
            self.backend.run_expert(ExpertJob { layer, weights: ready.lease, parts: ready.parts, uses })?;
        }
        drop(turn);
        self.backend.close_layer(layer)?;
        if let Some(next) = next {
            let guess = self.guess(Stage::Closed, next)?;
            self.walk.recording.push_prev_out(&guess).expect(IN_MEMORY);
        }
        Ok(())
    }

    /// The best experts of `layer` by its router now, twice as many as it will choose.
    fn guess(&mut self, stage: Stage, layer: LayerId) -> Result<Vec<ExpertId>, SynthError> {
        self.backend.scores(stage, layer, &mut self.scores)?;
        Ok(best(&self.scores.probabilities, self.n_predicted))
    }
}

fn scheduler(
    shape: &ModelShape,
    gguf: &Gguf,
    catalog: Arc<Catalog>,
    clock: &Arc<dyn Clock>,
) -> Result<Scheduler, SynthError> {
    let slot_bytes = catalog.slot_bytes(1);
    let n_experts = shape.n_layers() * shape.moe.n_experts;
    let n_slots = (SLOTS_BYTES_MAX / slot_bytes).max(2 * shape.moe.top_k).max(N_SLOTS_MIN).min(n_experts);
    let files = gguf.files();
    let reader = PreadBackend::new(files, PreadConfig::default(), Arc::clone(clock))?;
    Ok(Scheduler::new(SchedulerConfig {
        arena: Arena::new(n_slots, slot_bytes)?,
        store: Box::new(FileStore::new(catalog, files.clone(), Box::new(reader))),
        predictor: Box::new(NoPredictor),
        lookahead: LookaheadConfig::default(),
        policy: PolicyName::Lru.into(),
        clock: Arc::clone(clock),
    })?)
}
