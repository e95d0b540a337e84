//! What the user chose, before anything is opened.

use std::fmt;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use bytes::Bytes;
use forerun_compute::{DeviceName, KvType, Rounding};
use forerun_scheduler::PolicyName;

use crate::input_sums::Collect;
use crate::memory_plan::SlotWish;
use crate::step::Schedule;

/// Where the model is.
#[derive(Clone, Debug)]
pub enum ModelSource {
    /// A file, any shard of a split set, or a folder that holds one model.
    Path(PathBuf),
    /// In memory, such as inside the program.
    Embedded {
        /// A name for messages.
        name: &'static str,
        /// The file's bytes.
        bytes: Bytes,
    },
}

/// How experts are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoChoice {
    /// The engine chooses and says why.
    Auto,
    /// Linux's io_uring, past the system's page cache; positioned reads where that can't be had.
    Uring,
    /// Positioned reads on a few threads, past the system's page cache where the file system allows it.
    Pread,
    /// Positioned reads on a few threads through the page cache.
    Cached,
    /// A mapping of the file.
    Mmap,
    /// The whole file in memory.
    Memory,
}

impl IoChoice {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Pread => "pread",
            Self::Cached => "cached",
            Self::Mmap => "mmap",
            Self::Memory => "memory",
        }
    }
}

/// Who guesses which experts to read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictorChoice {
    /// The routers of the layers to come (LES).
    RouterAhead,
    /// What the token before wanted.
    Recent,
    /// Both.
    Blend,
    /// Nobody.
    None,
}

/// Who guesses the tokens to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DraftChoice {
    /// What the model's file offers: its prediction block, else prompt lookup; nobody where the budget has no room for it.
    Auto,
    /// Nobody.
    None,
    /// Prompt lookup: what followed the same tokens before.
    Ngram,
    /// The model's own prediction block (MTP).
    Mtp,
    /// A DSpark drafter in a file of its own.
    File(PathBuf),
}

/// Where a sequence can be cut back to without reading it anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointConfig {
    /// Most checkpoints that are kept at once; each takes the memory of the recurrent states.
    pub n_max: usize,
    /// Tokens from one to the next, at least; `None`: only where a prompt says.
    pub every: Option<NonZeroUsize>,
    /// Whether somebody asked for them: others give way to a budget that hasn't room for them.
    pub is_asked: bool,
}

/// How many conversations are kept at once, each with caches for the whole context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceConfig {
    /// So many, at most.
    pub n: NonZeroUsize,
    /// Whether somebody asked for them: if nobody did, there are fewer where they would take many slots from experts.
    pub is_asked: bool,
}

impl Default for SequenceConfig {
    fn default() -> Self {
        Self { n: NonZeroUsize::MIN, is_asked: true }
    }
}

/// Whether a memory plan has room for grammars that answers must keep to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GrammarRoom {
    /// None.
    #[default]
    Off,
    /// Where a budget doesn't lose many slots to it.
    Auto,
    /// Always.
    On,
}

/// How a model's disk is measured.
#[derive(Clone, Debug)]
pub struct DiskProbe {
    /// Where results are kept for later; `None`: nowhere.
    pub folder: Option<PathBuf>,
    /// Seconds since 1970, for the age of results.
    pub unix_seconds: u64,
    /// Decides where to read: another one each time, since a device may remember what it read.
    pub seed: u64,
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendChoice {
    /// Kernels on the stored blocks.
    Cpu,
    /// The definition of right: slow, exact.
    Reference(Rounding),
    /// A device of candle's, in a build with the feature `candle`, or `cuda` or `metal` for GPUs.
    Candle(DeviceName),
}

impl BackendChoice {
    /// The reference with f32 activations: exact products of the decoded weights.
    pub const EXACT: Self = Self::Reference(Rounding::None);

    /// How keys and values are stored.
    pub fn kv_type(self) -> KvType {
        match self {
            Self::EXACT => KvType::F32,
            Self::Cpu | Self::Candle(_) | Self::Reference(Rounding::LikeQuantised) => KvType::F16,
        }
    }
}

/// As on the command line.
impl fmt::Display for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("--backend cpu"),
            Self::Reference(_) => f.write_str("--backend reference"),
            Self::Candle(device) => write!(f, "--backend candle --device {device}"),
        }
    }
}

/// How to open a model.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The model.
    pub model: ModelSource,
    /// Peak memory of the process, without the program's text and an embedded model; `None`: what it takes.
    pub budget_bytes: Option<u64>,
    /// Tokens of context; `None`: the model's own, at most [`Self::context_default`].
    pub context: Option<usize>,
    /// Most tokens of context when none are asked for.
    pub context_default: usize,
    /// Experts that stay in memory.
    pub slots: SlotWish,
    /// How experts are read.
    pub io: IoChoice,
    /// How the disk is measured when the choice is the engine's; `None`: not at all.
    pub probe: Option<DiskProbe>,
    /// Most bytes of experts a second, to stand for another device's flash.
    pub disk_limit: Option<NonZeroU64>,
    /// Who guesses which experts to read ahead.
    pub predictor: PredictorChoice,
    /// Who says which experts stay.
    pub policy: PolicyName,
    /// When experts are computed.
    pub schedule: Schedule,
    /// Most guesses of a layer that are read, 0 for none; `None`: the scheduler decides.
    pub lookahead: Option<usize>,
    /// Whether every expert that is read is compared with its checksum, which packed files have.
    pub verify_reads: bool,
    /// What computes.
    pub backend: BackendChoice,
    /// Whether slots are page-locked for a CUDA device, which then reads them by itself. Their memory can't be given back: a
    /// budget can't be [lowered](crate::Engine::lower_budget) then.
    pub pin_slots: bool,
    /// Whether the memory of slots is made resident when the model is opened, not piece by piece as they are first filled.
    pub touch_slots: bool,
    /// Threads that compute; `None`: one per core.
    pub n_threads: Option<usize>,
    /// Most rows of a step whose logits are wanted; each costs memory for a whole vocabulary.
    pub logit_rows: usize,
    /// Who guesses the tokens to come.
    pub draft: DraftChoice,
    /// Tokens that are drafted for each step, at most [`VERIFIED_ROWS_MAX`](crate::draft::VERIFIED_ROWS_MAX) less one;
    /// `None`: as many as pay.
    pub draft_length: Option<usize>,
    /// Conversations that are kept at once.
    pub sequences: SequenceConfig,
    /// Where each sequence can be cut back to.
    pub checkpoints: CheckpointConfig,
    /// Bytes for conversations that a [`Batch`](crate::Batch) keeps when others need their sequences; 0: none are kept.
    pub prefix_bytes: u64,
    /// Whether answers may have to keep to grammars.
    pub grammars: GrammarRoom,
    /// Bytes that a server around the engine takes.
    pub server_bytes: u64,
    /// Whose inputs are added up while steps run; `None`: nobody's.
    pub collects: Option<Collect>,
}

impl EngineConfig {
    /// Context when nobody asks for one, or for another default, and the model knows more.
    pub const CONTEXT_DEFAULT: usize = 4096;

    /// Whether experts may be read ahead.
    pub fn looks_ahead(&self) -> bool {
        self.predictor != PredictorChoice::None && self.lookahead != Some(0)
    }

    /// Everything left to the engine; drafts and checkpoints, which only conversations use, are off.
    pub fn new(model: ModelSource) -> Self {
        Self {
            model,
            budget_bytes: None,
            context: None,
            context_default: Self::CONTEXT_DEFAULT,
            slots: SlotWish::Fill,
            io: IoChoice::Auto,
            probe: None,
            disk_limit: None,
            predictor: PredictorChoice::RouterAhead,
            policy: PolicyName::default(),
            schedule: Schedule::default(),
            lookahead: None,
            verify_reads: false,
            backend: BackendChoice::Cpu,
            pin_slots: false,
            touch_slots: false,
            n_threads: None,
            logit_rows: 1,
            draft: DraftChoice::None,
            draft_length: None,
            sequences: SequenceConfig::default(),
            checkpoints: CheckpointConfig::default(),
            prefix_bytes: 0,
            grammars: GrammarRoom::Off,
            server_bytes: 0,
            collects: None,
        }
    }
}
