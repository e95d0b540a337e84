//! What running a model would take, without running it.

use std::sync::Arc;

use forerun_model::{Clock, ModelShape, Nanos, SystemClock};
use forerun_scheduler::{LookaheadConfig, PolicyName, Predictor};

use super::opening::Opening;
use super::{Engine, Parts, TokenTraffic, parts};
use crate::DecodeError;
use crate::config::EngineConfig;
use crate::memory_plan::MemoryPlan;
use crate::telemetry::Decision;

/// A model file that was looked at: its header was read, its weights were not.
pub struct Outlook {
    opening: Opening,
    config: EngineConfig,
    clock: Arc<dyn Clock>,
    decisions: Vec<Decision>,
}

impl Outlook {
    /// Looks at the model of `config`.
    ///
    /// # Errors
    /// As [`super::Engine::open`], but for budgets.
    pub fn new(config: EngineConfig) -> Result<Self, DecodeError> {
        let (clock, mut decisions): (Arc<dyn Clock>, _) = (Arc::new(SystemClock::new()), Vec::new());
        let opening = Opening::new(&config, &clock, &mut decisions)?;
        Ok(Self { opening, config, clock, decisions })
    }

    /// The engine that runs it within `budget_bytes`.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open(self, budget_bytes: Option<u64>) -> Result<Engine, DecodeError> {
        let Self { opening, config, clock, decisions } = self;
        let config = EngineConfig { budget_bytes, ..config };
        Engine::build(&config, opening, Parts { clock, ..Parts::default() }, decisions)
    }

    /// Bytes of the smallest plan that works, and of the one that holds everything.
    ///
    /// # Errors
    /// [`DecodeError`] when the model can't be planned for at all.
    pub fn range(&self) -> Result<(u64, u64), DecodeError> {
        let smallest = match self.plan(Some(0)) {
            Err(DecodeError::Budget { smallest_bytes, .. }) => smallest_bytes,
            Err(error) => return Err(error),
            Ok(plan) => plan.total(),
        };
        Ok((smallest, self.plan(None)?.total().max(smallest)))
    }

    /// The memory plan that an engine would make with `budget_bytes`; with `None`, for a system that has all it takes.
    ///
    /// # Errors
    /// [`DecodeError::Budget`].
    pub fn plan(&self, budget_bytes: Option<u64>) -> Result<MemoryPlan, DecodeError> {
        let config = EngineConfig { budget_bytes, ..self.config.clone() };
        MemoryPlan::new(&self.opening.plan_input(&config))
    }

    /// The model's shape.
    pub fn shape(&self) -> &ModelShape {
        &self.opening.shape
    }

    /// Bytes of weights that one token of plain decoding reads.
    pub fn token_traffic(&self) -> TokenTraffic {
        self.opening.traffic
    }

    /// Threads that would compute.
    pub fn n_threads(&self) -> usize {
        self.opening.n_threads
    }

    /// What was decided automatically, and why.
    pub fn decisions(&self) -> &[Decision] {
        &self.decisions
    }

    /// Who would guess.
    pub fn predictor(&self) -> Box<dyn Predictor> {
        parts::predictor(self.config.predictor)
    }

    /// Which guesses would be read from a disk that takes `read` for an expert.
    pub fn lookahead(&self, read: Nanos) -> LookaheadConfig {
        parts::lookahead(&self.config, (Some(read), None), &mut Vec::new())
    }

    /// What happens to an expert that was used.
    pub fn policy(&self) -> PolicyName {
        parts::policy(&self.config)
    }
}
