//! Experts used where they lie in a mapping of their file: no slot, no copy.
//!
//! For a model whose experts all fit in memory, beside the page cache that holds them already. What is mapped is the
//! whole file, so an expert's matrices may lie anywhere in it; one whose matrices lie in different files has no bytes
//! that hold it all, and goes through a slot.
//!
//! A file that somebody writes to is noticed at the end of the pass through the layers that used it, before its result
//! counts: the pass fails, and from then on nothing is lent, so that the reads of the store say what they find. It is
//! noticed by its length and time, so a write that the system hasn't given a time yet (of another mapping, or within
//! one tick of its clock) isn't. Unproven, as with the `mmap` backend: a file that is truncated while an expert is
//! computed with ends the program with a signal.

#![expect(unsafe_code, reason = "a file mapping's bytes change when somebody else writes the file")]

use std::sync::Arc;

use bytes::Bytes;
use forerun_arena::ReadLease;
use forerun_model::{ExpertId, ExpertKey, LayerId, PartOffsets};
use memmap2::{Mmap, MmapOptions};

use crate::catalog::{ByteRange, Record};
use crate::files::{Content, DataFile};
use crate::{Catalog, FileSet, Lent, OpenError, StoreError};

/// A touch of a mapped file makes more resident than the page: at most what lies in the same window of this size, which
/// is a huge page.
const WINDOW_BYTES: u64 = 2 << 20;

/// What could be lent of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lendable {
    /// Experts that can be lent.
    pub n_experts: usize,
    /// Most bytes that are resident when all of them are in use.
    pub bytes: u64,
}

impl Lendable {
    /// What could be lent of `catalog`'s experts, which lie in `files`.
    pub fn of(catalog: &Catalog, files: &FileSet) -> Self {
        let n_windows = |file: &DataFile| usize::try_from(file.len_bytes.div_ceil(WINDOW_BYTES)).unwrap_or(0);
        let mut touched: Vec<Vec<bool>> =
            files.files().iter().map(|file| vec![false; n_windows(file)]).collect();
        let mut n_experts = 0;
        for record in keys(catalog).filter_map(|key| catalog.record(key)) {
            let Some(windows) = file_of(&record).and_then(|file| touched.get_mut(file)) else { continue };
            n_experts += 1;
            for ByteRange { offset_bytes, len_bytes, .. } in record.parts {
                let end = (offset_bytes + u64::from(len_bytes)).div_ceil(WINDOW_BYTES);
                let ours = (offset_bytes / WINDOW_BYTES..end).filter_map(|i| usize::try_from(i).ok());
                ours.for_each(|i| windows.get_mut(i).into_iter().for_each(|touched| *touched = true));
            }
        }
        let bytes = touched.iter().zip(files.files()).map(|(windows, file)| {
            let starts =
                (0..).step_by(1 << WINDOW_BYTES.ilog2()).zip(windows).filter(|(_, touched)| **touched);
            starts.map(|(start, _)| WINDOW_BYTES.min(file.len_bytes - start)).sum::<u64>()
        });
        Self { n_experts, bytes: bytes.sum() }
    }
}

/// Mappings of a model's files, and the right to lend from them.
#[derive(Debug)]
pub struct Mapped {
    files: FileSet,
    /// By file; none when lending is over.
    mappings: Vec<Mapping>,
    /// Experts whose pages the system was asked for, by layer, then by expert.
    asked_for: Vec<bool>,
    /// The expert that was lent last, unless there was a look since.
    unchecked: Option<ExpertKey>,
}

/// The bytes of one file.
#[derive(Debug)]
struct Mapping {
    bytes: Bytes,
    /// The map that `bytes` keep; `None` for bytes in memory, and for an empty file, which can't be mapped.
    map: Option<Arc<Mmap>>,
}

impl Mapped {
    /// Maps the files of `catalog`'s experts; bytes in memory are shared.
    ///
    /// # Errors
    /// [`OpenError::Io`] when the system refuses.
    pub fn new(catalog: &Catalog, files: &FileSet) -> Result<Self, OpenError> {
        let mappings = files.files().iter().map(Mapping::new).collect::<Result<_, _>>()?;
        let n_experts = catalog.n_layers() * catalog.n_experts();
        Ok(Self { files: files.clone(), mappings, asked_for: vec![false; n_experts], unchecked: None })
    }

    /// `key` where it lies; `None` when it isn't in one file, there is no such expert, or a file was changed.
    pub(crate) fn lend(&mut self, catalog: &Catalog, key: ExpertKey) -> Option<Lent> {
        let (record, file) = self.find(catalog, key)?;
        let mapping = self.mappings.get(file)?;
        let first = !std::mem::replace(
            self.asked_for.get_mut(key.layer.idx() * catalog.n_experts() + key.expert.idx())?,
            true,
        );
        if first {
            record.parts.iter().for_each(|part| mapping.ask_for(part));
        }
        let [gate, up, down] = record.parts.map(|part| usize::try_from(part.offset_bytes).ok());
        let parts = PartOffsets { gate: gate?, up: up?, down: down? };
        self.unchecked = Some(key);
        Some(Lent { lease: ReadLease::from(mapping.bytes.clone()), parts })
    }
}

impl Mapped {
    /// Whether [`Self::lend`] would lend `key`.
    pub(crate) fn can_lend(&self, catalog: &Catalog, key: ExpertKey) -> bool {
        self.find(catalog, key).is_some()
    }

    /// Looks at the files if anything was lent since the last look. A look is a call of the system, so there is one a
    /// pass rather than one an expert.
    ///
    /// # Errors
    /// [`StoreError::Changed`], with the expert that was lent last; from then on nothing is lent.
    pub(crate) fn check(&mut self) -> Result<(), StoreError> {
        let Some(key) = self.unchecked.take() else { return Ok(()) };
        let Some(file) = self.files.files().iter().find(|file| file.is_changed()) else { return Ok(()) };
        self.mappings.clear();
        Err(StoreError::Changed { key, path: file.path.clone() })
    }

    /// Where `key` lies, and in which mapped file.
    fn find(&self, catalog: &Catalog, key: ExpertKey) -> Option<(Record, usize)> {
        let record = catalog.record(key)?;
        let file = file_of(&record).filter(|&file| file < self.mappings.len())?;
        Some((record, file))
    }
}

impl Mapping {
    fn new(file: &DataFile) -> Result<Self, OpenError> {
        let content = match &file.content {
            Content::Bytes(bytes) => return Ok(Self { bytes: bytes.clone(), map: None }),
            Content::File(content) => content,
        };
        let refused = |source| OpenError::Io { doing: "map", path: file.path.clone(), source };
        let too_large = |_| refused(std::io::ErrorKind::OutOfMemory.into());
        let len = usize::try_from(file.len_bytes).map_err(too_large)?;
        if len == 0 {
            return Ok(Self { bytes: Bytes::new(), map: None });
        }
        // SAFETY: nobody of this program writes the file. Another program that does changes weights under us, which
        // makes wrong numbers until the next look at the file, or truncates it: see the module's docs. The bytes have
        // no invalid values, and no reference into them outlives the mapping, which every lease keeps.
        let map = unsafe { MmapOptions::new().len(len).map(&**content) };
        let map = Arc::new(map.map_err(refused)?);
        Ok(Self { bytes: Bytes::from_owner(Kept(Arc::clone(&map))), map: Some(map) })
    }

    /// Has the system read a part as a whole, rather than a few pages with every touch.
    #[cfg(unix)]
    fn ask_for(&self, part: &ByteRange) {
        let Some(map) = &self.map else { return };
        let Ok(start) = usize::try_from(part.offset_bytes) else { return };
        // A system that doesn't read ahead reads when the pages are touched.
        let _ = map.advise_range(memmap2::Advice::WillNeed, start, part.len_bytes as usize);
    }

    /// Systems without that advice read when the pages are touched.
    #[cfg(not(unix))]
    fn ask_for(&self, _part: &ByteRange) {
        let _ = &self.map;
    }
}

/// A share of a map that is bytes.
struct Kept(Arc<Mmap>);

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The file that holds all of a record.
fn file_of(record: &Record) -> Option<usize> {
    let [gate, up, down] = record.parts.map(|part| part.file);
    (gate == up && up == down).then_some(usize::from(gate))
}

fn keys(catalog: &Catalog) -> impl Iterator<Item = ExpertKey> + use<> {
    let (n_layers, n_experts) = (catalog.n_layers(), catalog.n_experts());
    let ids = |n: usize| 0..u16::try_from(n).unwrap_or(u16::MAX);
    ids(n_layers).flat_map(move |layer| {
        ids(n_experts).map(move |expert| ExpertKey { layer: LayerId(layer), expert: ExpertId(expert) })
    })
}

#[cfg(test)]
mod tests;
