//! Whether a file is whole: each record against its checksum. What is found, here and by a comparison.

use std::fmt;
use std::path::PathBuf;

use super::compare::places;
use super::job::Progress;
use super::plan::Plan;
use super::{hints, read, recipe};
use crate::{Catalog, Gguf, PackError, packed};

/// Bytes that are read at once, of each file.
pub(super) const STEP_BYTES: u64 = 16 << 20;
/// Differences that are kept; more are only counted.
const DIFFERENCES_MAX: usize = 1000;

/// Something that isn't as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The tensor, expert or key.
    pub name: String,
    /// The file that has it.
    pub path: PathBuf,
    /// Where in that file, if it is a matter of bytes.
    pub offset_bytes: Option<u64>,
    /// What is wrong.
    pub problem: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if let Some(offset_bytes) = self.offset_bytes {
            write!(f, ", byte {offset_bytes} of {}", self.path.display())?;
        }
        write!(f, ": {}", self.problem)
    }
}

/// What was looked at, and what was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Tensors of the file; the reader has checked the place of each.
    pub n_tensors: usize,
    /// Experts that were read and checked, or compared.
    pub n_experts: usize,
    /// Bytes of tensors and records that were read and checked, or compared.
    pub bytes: u64,
    /// The first of what was found.
    pub differences: Vec<Difference>,
    /// How many there are in all.
    pub n_differences: usize,
}

impl Checked {
    pub(super) fn push(&mut self, difference: Difference) {
        self.n_differences += 1;
        if self.differences.len() < DIFFERENCES_MAX {
            self.differences.push(difference);
        }
    }
}

/// Checks every record of one file against its checksum. A file that isn't packed has none.
pub struct Verification<'a> {
    gguf: &'a Gguf,
    model: Option<Model>,
    n_steps_done: usize,
    progress: Progress,
    checked: Checked,
    buffer: Vec<u8>,
}

/// A packed file's experts, and the steps in which they are read.
struct Model {
    catalog: Catalog,
    plan: Plan,
}

impl<'a> Verification<'a> {
    /// Begins with the header, which is all that can be checked of a file that isn't packed.
    ///
    /// # Errors
    /// [`PackError`] when the header of a packed file contradicts itself.
    pub fn new(gguf: &'a Gguf) -> Result<Self, PackError> {
        let mut model = None;
        if packed::is_packed(&gguf.metadata) {
            let (shape, catalog) = recipe::describe(gguf)?;
            let mut plan = Plan { layers: places(&shape, &catalog), steps: Vec::new() };
            shape.layer_ids().for_each(|layer| plan.push_experts(layer.0, STEP_BYTES));
            model = Some(Model { catalog, plan });
        }
        let record = |model: &Model, key| model.catalog.record(key).and_then(|record| record.whole);
        let total_bytes = model.iter().flat_map(|model| {
            let keys = (0..model.plan.steps.len()).flat_map(|idx| model.plan.step_experts(idx));
            keys.filter_map(|key| record(model, key)).map(|range| u64::from(range.len_bytes))
        });
        let progress = Progress { total_bytes: total_bytes.sum(), ..Progress::default() };
        let checked = Checked { n_tensors: gguf.tensors().len(), ..Checked::default() };
        Ok(Self { gguf, model, n_steps_done: 0, progress, checked, buffer: Vec::new() })
    }

    /// Whether the file has checksums.
    pub fn has_checksums(&self) -> bool {
        self.model.is_some()
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Checks some megabytes; `false` when nothing is left.
    ///
    /// # Errors
    /// [`PackError::Read`].
    pub fn step(&mut self) -> Result<bool, PackError> {
        let Some(model) = &self.model else { return Ok(false) };
        if self.n_steps_done == model.plan.steps.len() {
            return Ok(false);
        }
        for key in model.plan.step_experts(self.n_steps_done) {
            let Some(record) = model.catalog.record(key) else { continue };
            let Some((whole, expected)) = record.whole.zip(record.crc32c) else { continue };
            let file = &self.gguf.files().files()[usize::from(whole.file)];
            self.buffer.resize(whole.len_bytes as usize, 0);
            read(file, &mut self.buffer, whole.offset_bytes)?;
            hints::done_reading(file, whole.offset_bytes, u64::from(whole.len_bytes));
            let found = crc32c::crc32c(&self.buffer);
            if found != expected {
                self.checked.push(Difference {
                    name: format!("layer {}, expert {}", key.layer.0, key.expert.0),
                    path: file.path.clone(),
                    offset_bytes: Some(whole.offset_bytes),
                    problem: format!("its checksum is {found:#010x}, the header says {expected:#010x}"),
                });
            }
            self.checked.n_experts += 1;
            self.checked.bytes += u64::from(whole.len_bytes);
        }
        self.progress.done_bytes = self.checked.bytes;
        self.n_steps_done += 1;
        Ok(self.n_steps_done < model.plan.steps.len())
    }

    /// What was found so far.
    pub fn checked(&self) -> &Checked {
        &self.checked
    }
}
