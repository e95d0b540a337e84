//! Which drafter a model gets, before any memory is spent on it.

use forerun_compute::workers::Workers;
use forerun_compute::{Taps, Weights};
use forerun_model::{ModelShape, QuantType};
use forerun_scheduler::{DraftConfig, DraftRule};
use forerun_storage::{Catalog, Gguf};

use super::drafting::Drafting;
use crate::DecodeError;
use crate::config::{DraftChoice, EngineConfig};
use crate::draft::{Drafter, DsparkFile, MtpBlock, Ngram, VERIFIED_ROWS_MAX};
use crate::io::Disk;
use crate::memory_plan::{DraftInput, MemoryPlan};
use crate::telemetry::Decision;

/// Every slot is as large as the largest expert: a prediction block whose experts are larger than this share of the others'
/// would cost slots, so it isn't chosen unasked.
const SLOT_GROWTH_MAX: f64 = 1.05;

/// Reads that go past the page cache begin and end at multiples of this on most disks.
const BLOCK_BYTES: u32 = 4096;

/// A drafter that was chosen.
pub(super) enum PlannedDrafter {
    /// None.
    None,
    /// Prompt lookup.
    Ngram,
    /// The model's prediction block.
    Mtp(Box<MtpBlock>),
    /// A file's.
    Dspark(Box<DsparkFile>),
    /// The caller's.
    Own(Box<dyn Drafter>),
}

impl PlannedDrafter {
    /// The drafter of `choice` for a model of `shape`, and the experts of the model with those of a prediction block that
    /// is used.
    pub(super) fn choose(
        choice: &DraftChoice,
        shape: &ModelShape,
        gguf: &Gguf,
        decisions: &mut Vec<Decision>,
    ) -> Result<(Self, Catalog), DecodeError> {
        let drafter = match choice {
            DraftChoice::None => Self::None,
            DraftChoice::Ngram => Self::Ngram,
            DraftChoice::File(path) => {
                let file = DsparkFile::open(path, shape)?;
                warn_of(file.coarse(), "dspark", decisions);
                Self::Dspark(Box::new(file))
            }
            DraftChoice::Mtp if shape.n_mtp == 0 => return Err(DecodeError::NoPredictionBlock),
            DraftChoice::Mtp => {
                let block = MtpBlock::open(shape, gguf)?;
                warn_of(block.coarse(), "mtp", decisions);
                return Ok((Self::Mtp(Box::new(block)), Catalog::with_blocks(shape, gguf, 1)?));
            }
            DraftChoice::Auto => return Self::offered(shape, gguf, decisions),
        };
        Ok((drafter, Catalog::new(shape, gguf)?))
    }

    /// What the model's file offers.
    fn offered(
        shape: &ModelShape,
        gguf: &Gguf,
        decisions: &mut Vec<Decision>,
    ) -> Result<(Self, Catalog), DecodeError> {
        let plain = Catalog::new(shape, gguf)?;
        let reason = if shape.n_mtp == 0 {
            "the file has no prediction block, and looking back costs next to nothing".to_owned()
        } else {
            match (MtpBlock::open(shape, gguf), Catalog::with_blocks(shape, gguf, 1)) {
                (Ok(block), Ok(catalog)) if !is_larger(&catalog, &plain) => {
                    let reason = "the file has a prediction block".to_owned();
                    decisions.push(Decision::new("draft", "mtp", reason));
                    warn_of(block.coarse(), "mtp", decisions);
                    return Ok((Self::Mtp(Box::new(block)), catalog));
                }
                (Ok(_), Ok(_)) => {
                    "the experts of the file's prediction block are larger than the others, and every slot would \
                     have to be; --draft mtp takes it"
                        .to_owned()
                }
                (Err(error), _) => format!("the file's prediction block can't be used: {error}"),
                (_, Err(error)) => format!("the file's prediction block can't be used: {error}"),
            }
        };
        decisions.push(Decision::new("draft", "ngram", reason));
        Ok((Self::Ngram, plain))
    }

    /// Which of the model's states it reads.
    pub(super) fn taps(&self) -> Taps {
        match self {
            Self::None | Self::Ngram => Taps::default(),
            Self::Mtp(_) => Taps { layers: Vec::new(), normed: true },
            Self::Dspark(file) => Taps { layers: file.shape().taps.clone(), normed: false },
            Self::Own(drafter) => drafter.taps(),
        }
    }

    /// Whether its drafts are computed, on threads of the engine's.
    pub(super) fn computes(&self) -> bool {
        matches!(self, Self::Mtp(_) | Self::Dspark(_))
    }

    /// What it takes.
    pub(super) fn input(&self, config: &EngineConfig, shape: &ModelShape, context: usize) -> DraftInput {
        let bytes = match self {
            Self::None => return DraftInput::default(),
            Self::Ngram => Ngram::bytes(context),
            Self::Mtp(block) => block.bytes(shape, context, config.backend),
            Self::Dspark(file) => file.bytes(context, config.backend).total(),
            Self::Own(_) => 0,
        };
        let taps = self.taps();
        let tapped = (taps.layers.len() + usize::from(taps.normed)) * shape.hidden;
        DraftInput { bytes, tapped, rows: VERIFIED_ROWS_MAX }
    }

    /// Starts one for each sequence, as `plan` allows; the caller's own is the first one's.
    pub(super) fn build(
        self,
        config: &EngineConfig,
        plan: &MemoryPlan,
        (weights, catalog, workers): (&Weights, &Catalog, &Workers),
        disk: &Disk,
    ) -> Result<Vec<Option<Drafting>>, DecodeError> {
        let (context, backend, n) = (plan.context, config.backend, plan.n_sequences);
        let mut drafters: Vec<Option<Box<dyn Drafter>>> = Vec::with_capacity(n);
        for _ in 0..n {
            drafters.push(match &self {
                Self::None | Self::Own(_) => None,
                Self::Ngram => Some(Box::new(Ngram::new(context))),
                Self::Mtp(block) => {
                    let is_resident = plan.mapped > 0 || plan.n_slots >= plan.n_experts;
                    Some(block.start(weights, (catalog, is_resident), context, backend, workers)?)
                }
                Self::Dspark(file) => Some(file.start(weights, context, backend, workers)?),
            });
        }
        if let Self::Own(drafter) = self {
            drafters[0] = Some(drafter);
        }
        let n_max = plan.draft_rows.saturating_sub(1);
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 53 bits")]
        let disk_bytes_per_second = disk.rate().map(|rate| rate as f64);
        let rule = || DraftRule::new(DraftConfig { n_max, disk_bytes_per_second, ..DraftConfig::default() });
        let drafting = |drafter| Drafting::new(drafter, rule(), n_max, config.draft_length);
        Ok(drafters.into_iter().map(|drafter| drafter.map(drafting)).collect())
    }
}

/// Says so when a drafter has a matrix that is too coarse.
fn warn_of(coarse: Option<(&str, QuantType)>, drafter: &str, decisions: &mut Vec<Decision>) {
    if let Some((name, quant)) = coarse {
        let what = format!("its `{name}` is stored as {}", quant.name());
        let reason = format!("warning: {what}, and drafts of so few bits are seldom right; Q8_0 is enough");
        decisions.push(Decision::new("draft", drafter, reason));
    }
}

/// Whether slots for the experts of `with` would be much larger than for those of `plain`.
#[expect(clippy::cast_precision_loss, reason = "a share needs no more than 53 bits")]
fn is_larger(with: &Catalog, plain: &Catalog) -> bool {
    let of = |catalog: &Catalog| catalog.slot_bytes(BLOCK_BYTES) as f64;
    of(with) > SLOT_GROWTH_MAX * of(plain)
}
