//! What requests need to know of the engine without asking its thread.

use std::sync::Arc;

use forerun_decode::prefix::PrefixConfig;
use forerun_decode::text::{ChatTemplate, Thinking, Tokenizer};
use forerun_decode::{Decision, Engine, Grammar, GrammarError, GrammarSpec, MemoryPlan, SamplerConfig};

use super::grammars::Grammars;

/// What a desk is told when it starts.
#[derive(Clone, Debug)]
pub struct DeskConfig {
    /// The model's name in answers.
    pub model_id: String,
    /// Other names by which it may be asked for.
    pub aliases: Vec<String>,
    /// Jobs that may wait.
    pub queue_max: usize,
    /// Where conversations are kept that lose their seat, beyond the memory that the engine's plan has for them.
    pub prefixes: PrefixConfig,
    /// What holds where a request says nothing.
    pub defaults: Defaults,
    /// What was decided before the desk started, beyond the engine's decisions.
    pub decisions: Vec<Decision>,
    /// When the server started, in seconds since 1970.
    pub created: u64,
}

/// What holds where a request says nothing.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// How tokens are drawn; its seed counts only if [`Self::seed`] says so.
    pub sampler: SamplerConfig,
    /// The seed of every request; `None`: another one each time.
    pub seed: Option<u64>,
    /// Most tokens of an answer; `None`: what the context holds.
    pub max_tokens: Option<usize>,
    /// Texts that end every answer.
    pub stops: Vec<String>,
    /// Whether the model thinks.
    pub thinking: Thinking,
    /// Instructions for conversations that bring none.
    pub system: Option<String>,
}

/// What is known of the model; it doesn't change while the server runs.
#[derive(Debug)]
pub struct Facts {
    /// What the desk was told.
    pub config: DeskConfig,
    /// Jobs that are answered at once, at most: the engine's sequences.
    pub n_parallel: usize,
    /// Tokens of context.
    pub context: usize,
    /// Entries of the vocabulary.
    pub n_vocab: usize,
    /// Bytes of text that no longer fit the context, whatever their tokens are.
    pub prompt_bytes_max: usize,
    /// Trunk layers.
    pub n_layers: usize,
    /// Experts of a layer.
    pub n_experts: usize,
    /// Experts of a layer that a token uses.
    pub top_k: usize,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Conversations to text; `None` when the file has no template.
    pub template: Option<Arc<ChatTemplate>>,
    /// What was decided until the server started.
    pub decisions: Vec<Decision>,
    /// Where the memory goes.
    pub plan: MemoryPlan,
    grammars: Grammars,
}

impl Facts {
    pub(super) fn of(engine: &Engine, config: DeskConfig) -> Self {
        let shape = engine.shape();
        let mut decisions = engine.decisions();
        decisions.extend(config.decisions.iter().cloned());
        Self {
            n_parallel: engine.n_sequences(),
            context: engine.plan().context,
            n_vocab: shape.n_vocab,
            prompt_bytes_max: engine.prompt_bytes_max(),
            n_layers: shape.layers.len(),
            n_experts: shape.moe.n_experts,
            top_k: shape.moe.top_k,
            tokenizer: engine.shared_tokenizer(),
            template: engine.shared_template(),
            decisions,
            plan: engine.plan().clone(),
            grammars: Grammars::default(),
            config,
        }
    }

    /// The model's name in answers.
    pub fn model_id(&self) -> &str {
        &self.config.model_id
    }

    /// Compiles a grammar for the model's vocabulary and lends it to `work`, one at a time. The first call takes as long as
    /// building a tree of all tokens.
    ///
    /// # Errors
    /// [`GrammarError::NoRoom`] in the memory plan, and those of [`GrammarFactory::compile`](forerun_decode::GrammarFactory).
    pub(crate) fn with_grammar<T>(
        &self,
        spec: &Arc<GrammarSpec>,
        work: impl FnOnce(&Grammar) -> T,
    ) -> Result<T, GrammarError> {
        if self.plan.grammars == 0 {
            return Err(GrammarError::NoRoom);
        }
        self.grammars.with(self.tokenizer.vocabulary(), spec, work)
    }

    /// Whether `name` is one of the model's.
    pub fn is_called(&self, name: &str) -> bool {
        name == self.config.model_id || self.config.aliases.iter().any(|alias| alias == name)
    }
}
