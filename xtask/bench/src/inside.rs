//! Runs that no flag of the program asks for: the engine in this process, with parts that know what will come.
//!
//! What comes is learned in a run of its own, on an engine of its own, before the run that is measured.

mod drafts;
mod oracle;

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Parser, Subcommand};
use forerun_decode::{
    DecodeError, DiskProbe, Engine, EngineConfig, Generation, GenerationConfig, IoChoice, ModelSource, Parts,
    Session, Telemetry, parse_bytes,
};
use forerun_model::TokenId;
use serde::Serialize;

use crate::error::BenchError;
use drafts::Scripted;
use oracle::{Oracle, Record, Recorder};

/// The first argument of such a run.
pub(crate) const INSIDE: &str = "inside";

/// The command line of such a run, which [`crate::run`] writes.
#[derive(Debug, Parser)]
#[command(name = INSIDE)]
pub(crate) struct InsideArgs {
    #[arg(long)]
    model: PathBuf,
    #[arg(long)]
    prompt: String,
    #[arg(long)]
    tokens: usize,
    #[arg(long)]
    ctx: usize,
    #[arg(long, value_parser = parse_bytes)]
    memory: Option<u64>,
    /// Bytes a second.
    #[arg(long)]
    disk_limit: Option<NonZeroU64>,
    #[arg(long)]
    threads: Option<usize>,
    /// Where the program keeps what a probe found.
    #[arg(long)]
    probes: PathBuf,
    #[command(subcommand)]
    part: Part,
}

/// The part that knows what will come.
#[derive(Debug, Subcommand)]
enum Part {
    /// Experts where the file is mapped, every page of them seen before.
    Resident,
    /// Names the next layer's experts when a layer is opened.
    Oracle,
    /// Drafts that are right as often as said, behind blocks of a drafter with random weights.
    Drafts {
        /// How many of a thousand are right, if those before them are.
        #[arg(long)]
        permille: u64,
        /// Always so many; otherwise as many as pay.
        #[arg(long)]
        length: Option<usize>,
    },
}

/// As `forerun run --json` prints.
#[derive(Debug, Serialize)]
struct Output {
    tokens: Vec<u32>,
    #[serde(flatten)]
    telemetry: Telemetry,
}

/// Runs, and returns the figures as JSON.
///
/// # Errors
/// [`BenchError`] when the engine fails, or when the part that knows changed the answer.
pub(crate) fn run(args: &InsideArgs) -> Result<String, BenchError> {
    let failed = |source| BenchError::Engine { source };
    let mut config = args.config();
    if matches!(args.part, Part::Resident) {
        return json(args.again(&config).map_err(failed)?);
    }
    let record = Record::default();
    let recorder: Parts =
        Parts { predictor: Some(Box::new(Recorder::new(record.clone()))), ..Parts::default() };
    let first = args.answer(&config, recorder).map_err(failed)?;
    let parts = if let Part::Drafts { permille, length } = args.part {
        config.draft_length = length;
        let drafter = Scripted::new(&first, args.ctx, args.threads, permille);
        // The drafter is memory of ours.
        config.budget_bytes = config.budget_bytes.map(|budget| budget.saturating_sub(drafter.bytes()));
        Parts { drafter: Some(Box::new(drafter)), ..Parts::default() }
    } else {
        Parts { predictor: Some(Box::new(Oracle::new(record.taken()))), ..Parts::default() }
    };
    let answered = args.answer(&config, parts).map_err(failed)?;
    if answered.said != first.said {
        return Err(BenchError::Changed);
    }
    json(answered)
}

fn json(Answered { said, telemetry, .. }: Answered) -> Result<String, BenchError> {
    let output = Output { tokens: said.iter().map(|token| token.0).collect(), telemetry };
    serde_json::to_string(&output).map_err(|source| BenchError::Write { source })
}

/// An answer, and of which model it is.
#[derive(Debug)]
struct Answered {
    prompt: Vec<TokenId>,
    said: Vec<TokenId>,
    telemetry: Telemetry,
    hidden: usize,
    n_vocab: usize,
}

impl InsideArgs {
    fn config(&self) -> EngineConfig {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let unix_seconds = since.map_or(0, |since| since.as_secs());
        EngineConfig {
            budget_bytes: self.memory,
            context: Some(self.ctx),
            disk_limit: self.disk_limit,
            n_threads: self.threads,
            touch_slots: true,
            probe: Some(DiskProbe { folder: Some(self.probes.clone()), unix_seconds, seed: unix_seconds }),
            ..EngineConfig::new(ModelSource::Path(self.model.clone()))
        }
    }

    /// An answer of an engine that is gone again.
    fn answer(&self, config: &EngineConfig, parts: Parts) -> Result<Answered, DecodeError> {
        self.answer_of(&mut Engine::open_with(config, parts)?)
    }

    /// The second of two answers of one engine.
    fn again(&self, config: &EngineConfig) -> Result<Answered, DecodeError> {
        let mut engine = Engine::open(&EngineConfig { io: IoChoice::Mmap, ..config.clone() })?;
        self.answer_of(&mut engine)?;
        self.answer_of(&mut engine)
    }

    fn answer_of(&self, engine: &mut Engine) -> Result<Answered, DecodeError> {
        engine.warm_up().for_each(drop);
        let prompt = engine.tokenizer().encode_special(&self.prompt)?;
        let how = GenerationConfig { max_tokens: Some(self.tokens), ..GenerationConfig::default() };
        let mut session = Session::new();
        let mut generation = Generation::new(engine, &mut session, prompt.clone(), &how)?;
        while generation.next()?.is_some() {}
        let report = generation.finish();
        let (hidden, n_vocab) = (engine.shape().hidden, engine.shape().n_vocab);
        Ok(Answered { prompt, said: report.tokens, telemetry: report.telemetry, hidden, n_vocab })
    }
}
