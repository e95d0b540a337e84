//! Packs a model's experts into records of their own, unpacks them again, writes copies with other types, and compares
//! files.
//!
//! A packed file keeps each expert in one piece, so that a miss is one read. [`pack`], [`unpack`] and [`recode()`] give a
//! [`Job`], which the caller pulls: nothing but one step's bytes is in memory. The target appears under its name when it is whole;
//! until then it is a part and a journal beside it, with which a later run goes on.
//!
//! `docs/packed-format.md` is the format.

mod compare;
mod disk;
mod hints;
mod identity;
mod job;
mod journal;
mod order;
mod output;
mod plan;
mod recipe;
mod recode;
#[cfg(test)]
mod tests;
mod verify;

use std::fs;
use std::path::Path;

pub use compare::Comparison;
pub use identity::identity;
pub use job::{Job, Progress, Summary};
pub use order::{co_firing_order, n_runs};
pub use recode::{Experts, Recode, RecodeError, Recoding, Rows};
pub use verify::{Checked, Difference, Verification};

use crate::files::DataFile;
use crate::{Catalog, Gguf, PackError};
use disk::DiskOutput;
use output::Output;
use recipe::{Recipe, Source};

/// Fewest bytes that are moved at once: steps are kept in a list, and smaller ones would fill it.
const STEP_BYTES_MIN: u64 = 4096;

/// How experts follow each other in a packed file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// As their ids do.
    #[default]
    File,
    /// For each layer the position of each expert: a permutation.
    Given(Vec<Vec<u32>>),
}

/// What to do with a target that is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// Leave it, and fail.
    #[default]
    Refuse,
    /// Replace it, once the new one is whole.
    Replace,
}

/// How a copy is made.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How experts follow each other; unpacking takes no notice.
    pub order: Order,
    /// What to do with a target that is there.
    pub existing: Existing,
    /// Most bytes that are moved at once, at least 4096; a single expert may be larger.
    pub step_bytes: u64,
    /// Bytes between two moments at which everything is made safe.
    pub checkpoint_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            order: Order::File,
            existing: Existing::Refuse,
            step_bytes: 16 << 20,
            checkpoint_bytes: 256 << 20,
        }
    }
}

/// Begins to pack the model `source` into the file `target`. A packed source is packed anew.
///
/// # Errors
/// [`PackError`] when the source is no model that runs here, or the target can't be made.
pub fn pack<'a>(source: &'a Gguf, target: &Path, settings: &Settings) -> Result<Job<'a>, PackError> {
    begin(source, target, settings, Direction::Pack, &open_disk)
}

/// Begins to unpack the packed model `source` into the file `target`: the tensors that its source had.
///
/// # Errors
/// [`PackError`] when the source isn't packed, or the target can't be made.
pub fn unpack<'a>(source: &'a Gguf, target: &Path, settings: &Settings) -> Result<Job<'a>, PackError> {
    begin(source, target, settings, Direction::Unpack, &open_disk)
}

/// Begins to write the model `source` into the file `target` with other types. A source that is split becomes one file.
///
/// # Errors
/// [`PackError`] when the source is packed or no model that runs here, or the target can't be made.
pub fn recode<'a>(
    source: &'a Gguf,
    target: &Path,
    settings: &Settings,
    recoding: &Recoding<'a>,
) -> Result<Job<'a>, PackError> {
    begin(source, target, settings, Direction::Recode(recoding), &open_disk)
}

/// Bytes that the file has which [`recode`] writes. Nothing is read but headers, and nothing written.
///
/// # Errors
/// As [`recode`], but for what is wrong with the target's place.
pub fn recoded_bytes(source: &Gguf, target: &Path, recoding: &Recoding<'_>) -> Result<u64, PackError> {
    check_apart(source, target)?;
    let (_, recipe) = plan(source, target, &Settings::default(), Direction::Recode(recoding))?;
    Ok(recipe.header.file_bytes())
}

#[derive(Clone, Copy)]
enum Direction<'r, 'a> {
    Pack,
    Unpack,
    Recode(&'r Recoding<'a>),
}

type OpenOutput<'o> = &'o dyn Fn(&Path, Existing) -> Result<Box<dyn Output>, PackError>;

fn open_disk(target: &Path, existing: Existing) -> Result<Box<dyn Output>, PackError> {
    Ok(Box::new(DiskOutput::open(target, existing)?))
}

/// Plans the copy; `open` makes the target, once everything else is known to be right.
fn begin<'a>(
    gguf: &'a Gguf,
    target: &Path,
    settings: &Settings,
    direction: Direction<'_, 'a>,
    open: OpenOutput<'_>,
) -> Result<Job<'a>, PackError> {
    check_apart(gguf, target)?;
    let step_bytes = settings.step_bytes.max(STEP_BYTES_MIN);
    let settings = &Settings { step_bytes, ..settings.clone() };
    let (catalog, recipe) = plan(gguf, target, settings, direction)?;
    let recode = match direction {
        Direction::Recode(recoding) => Some(recoding.recode),
        Direction::Pack | Direction::Unpack => None,
    };
    let output = open(target, settings.existing)?;
    let target = target.to_owned();
    Job::new(job::Parts { gguf, catalog, recipe, target, output, recode }, settings)
}

/// What is to be written.
fn plan(
    gguf: &Gguf,
    target: &Path,
    settings: &Settings,
    direction: Direction<'_, '_>,
) -> Result<(Catalog, Recipe), PackError> {
    let (shape, catalog) = recipe::describe(gguf)?;
    let recoding = match direction {
        Direction::Recode(recoding) => Some(recoding),
        Direction::Pack | Direction::Unpack => None,
    };
    let source = Source { gguf, shape: &shape, catalog: &catalog, recoding };
    let recipe = match direction {
        Direction::Recode(Recoding { experts: Experts::AsSource, .. }) => {
            recipe::recode(&source, target, settings)?
        }
        Direction::Pack | Direction::Recode(_) => {
            recipe::pack(&source, target, settings, identity::describe(gguf)?)?
        }
        Direction::Unpack => recipe::unpack(&source, target, settings)?,
    };
    Ok((catalog, recipe))
}

/// Refuses a target that is one of the source's files, under whatever name.
fn check_apart(gguf: &Gguf, target: &Path) -> Result<(), PackError> {
    let Ok(target_path) = fs::canonicalize(target) else { return Ok(()) };
    let is_target = |file: &DataFile| {
        fs::canonicalize(&file.path).is_ok_and(|path| path == target_path || same_file(&path, &target_path))
    };
    if gguf.files().files().iter().any(is_target) {
        return Err(PackError::TargetIsSource { path: target.to_owned() });
    }
    Ok(())
}

/// Whether two paths name one file, as hard links do.
#[cfg(unix)]
fn same_file(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    id(a).is_some() && id(a) == id(b)
}

#[cfg(not(unix))]
fn same_file(_: &Path, _: &Path) -> bool {
    false
}

/// Fills `buffer` from `file`.
fn read(file: &DataFile, buffer: &mut [u8], offset_bytes: u64) -> Result<(), PackError> {
    let len_bytes = buffer.len();
    file.read_exact_at(buffer, offset_bytes).map_err(|source| PackError::Read {
        path: file.path.clone(),
        offset_bytes,
        len_bytes,
        source,
    })
}
