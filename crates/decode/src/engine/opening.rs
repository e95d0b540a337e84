//! A model file that was opened, before any memory is spent on running it.

use std::path::PathBuf;
use std::sync::Arc;

use forerun_arena::SLOT_ALIGN_BYTES;
use forerun_compute::Weights;
use forerun_model::{Clock, ModelShape};
use forerun_storage::{Catalog, Gguf, Resident};

use super::{TokenTraffic, parts};
use crate::DecodeError;
use crate::config::EngineConfig;
use crate::input_sums::InputSums;
use crate::io::{self, Io};
use crate::memory_plan::PlanInput;
use crate::telemetry::Decision;
use crate::text::{ChatTemplate, Tokenizer};

/// What a file says, and what was decided from it.
pub(super) struct Opening {
    pub(super) gguf: Gguf,
    pub(super) path: PathBuf,
    pub(super) shape: ModelShape,
    pub(super) catalog: Arc<Catalog>,
    pub(super) tokenizer: Tokenizer,
    pub(super) template: Option<ChatTemplate>,
    pub(super) resident: Resident,
    pub(super) weights: Weights,
    pub(super) traffic: TokenTraffic,
    pub(super) context: usize,
    pub(super) n_threads: usize,
    pub(super) io: Io,
}

impl Opening {
    /// Opens the model of `config`: maps it, reads its header and its vocabulary.
    pub(super) fn new(
        config: &EngineConfig,
        clock: &Arc<dyn Clock>,
        decisions: &mut Vec<Decision>,
    ) -> Result<Self, DecodeError> {
        let (mut gguf, path) = parts::open(&config.model)?;
        let (shape, catalog) = parts::experts(&gguf)?;
        let (tokenizer, template) = parts::text(&mut gguf)?;
        let (resident, weights) = parts::weights(&shape, &catalog, &gguf)?;
        let traffic = parts::token_traffic(&shape, &catalog, &resident, &weights);
        let context = parts::context(config, &shape, decisions)?;
        let n_threads = parts::threads(config, decisions);
        let io = io::choose(config, &gguf, &catalog, clock, decisions)?;
        Ok(Self {
            gguf,
            path,
            shape,
            catalog,
            tokenizer,
            template,
            resident,
            weights,
            traffic,
            context,
            n_threads,
            io,
        })
    }

    /// What a plan for it is made from.
    pub(super) fn plan_input(&self, config: &EngineConfig) -> PlanInput<'_> {
        let slot_bytes = self.catalog.slot_bytes(self.io.align_bytes);
        PlanInput {
            shape: &self.shape,
            slot_bytes: slot_bytes.next_multiple_of(SLOT_ALIGN_BYTES) as u64,
            dense_bytes: parts::dense_bytes(&self.resident, &config.model, &self.weights)
                + parts::guess_router_bytes(config, &self.weights),
            text_bytes: self.tokenizer.estimated_bytes() as u64 + parts::header_bytes(&self.gguf),
            io_bytes: self.io.bytes,
            n_threads: self.n_threads,
            context: self.context,
            kv: parts::kv_type(config.backend),
            token_bytes_max: self.tokenizer.vocabulary().token_bytes_max(),
            budget_bytes: config.budget_bytes,
            slots: config.slots,
            lendable: self.io.lendable,
            logit_rows: config.logit_rows,
            sums_bytes: config.collects.map_or(0, |collect| InputSums::bytes(&self.shape, collect)),
        }
    }
}
