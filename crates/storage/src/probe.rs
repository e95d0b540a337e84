//! Measures the disk that a model lies on, in less than two seconds, and says which settings follow.
//!
//! [`probe`] reads places all over the model's own files, none of them twice and none from memory: past the page cache
//! through each [`Method`] at several depths, and through it where pages are proven to be out of it. What to choose is a
//! pure function of the rates, and every choice has a reason in words. [`ProbeCache`] keeps reports, one per disk and
//! size of records, so that a start needs no probe.
//!
//! Unproven on macOS: a direct read there takes what the page cache has, and nothing says whether it did.

mod cache;
mod choose;
mod cold;
mod device;
mod measure;
mod places;
mod report;
mod run;
mod ways;

pub use cache::{CACHED_SECONDS_MAX, Cached, ProbeCache};
pub use device::Device;
pub use report::{
    Access, Choice, DEPTH_MAX, GAP_BYTES_MAX, MERGED_BYTES_MAX, Method, Missing, ProbeReport, Rate, Reason,
    VERSION,
};

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;

use forerun_arena::{Arena, SlotIdx, WriteLease};
use forerun_model::{Clock, ExpertKey, LayerId, Nanos};

use crate::{Catalog, Content, DirectFiles, FileSet, OpenError};
use places::Places;
use run::{PLACE_ALIGN_BYTES, Runner};

/// When the last measurement must be over; what a read may take beyond it is in the order of one read.
const SPAN: Nanos = Nanos::from_millis(1900);

/// Longest read that is measured; longer ones are no faster.
const READ_BYTES_MAX: usize = 8 << 20;

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeConfig {
    /// Bytes of a usual read; [`record_bytes`] says it of a model.
    pub record_bytes: usize,
    /// Decides where to read: another one each time, since a device may remember what it read.
    pub seed: u64,
    /// Most bytes a second that the disk is let give.
    pub limit: Option<NonZeroU64>,
}

/// Bytes of the longest range that must be read for one expert: a part, or the whole record where parts lie together.
/// 0 for a model without experts.
pub fn record_bytes(catalog: &Catalog) -> usize {
    let layers = (0..catalog.n_layers()).filter_map(|layer| u16::try_from(layer).ok()).map(LayerId);
    let ranges = layers
        .filter_map(|layer| catalog.placement(ExpertKey::new(layer.0, 0), 1))
        .flat_map(|placement| placement.ranges)
        .map(|placed| placed.range.len_bytes as usize);
    ranges.max().unwrap_or(0)
}

/// Measures the disk of `files`. Takes memory for [`DEPTH_MAX`] records while it does.
///
/// `clock` must pass as the machine's time does.
///
/// # Errors
/// [`OpenError::Backend`] when there is no disk, or too little on it; [`OpenError::Io`] when there is no memory. What a
/// disk or a system refuses is no error: it is in the report.
pub fn probe(files: &FileSet, config: ProbeConfig, clock: &Arc<dyn Clock>) -> Result<ProbeReport, OpenError> {
    let start = clock.now();
    let read_bytes = read_bytes(files, config.record_bytes)?;
    let device = Device::of(files);
    let direct = DirectFiles::open(files).map_err(|why| match &device.file_system[..] {
        "" => why,
        kind => format!("{why}, on {kind}"),
    });
    let ways = ways::ways(files, &direct, read_bytes as u64, config.limit, clock);
    let places = Places::new(files, read_bytes as u64, config.seed);
    let slots = slots(files, read_bytes)?;
    let runner = Runner::new(&**clock, start + SPAN, places, slots, read_bytes);
    let found = runner.run(&ways);
    Ok(ProbeReport {
        version: VERSION,
        device,
        record_bytes: config.record_bytes as u64,
        align_bytes: direct.ok().map(|direct| direct.align_bytes()),
        rates: found.rates,
        small: found.small,
        missing: found.missing,
        choice: found.choice,
        took_ms: (clock.now() - start).as_millis_f64(),
    })
}

/// What to read at once: a record, in whole blocks, if there is one in the files.
fn read_bytes(files: &FileSet, record_bytes: usize) -> Result<usize, OpenError> {
    let refused =
        |reason| OpenError::Backend { path: files.path(0), backend: "a disk that can be measured", reason };
    let files = files.files();
    if files.iter().any(|file| matches!(file.content, Content::Bytes(_))) {
        return Err(refused("it is in memory already"));
    }
    let longest = files.iter().map(|file| file.len_bytes).max().unwrap_or(0);
    let longest = usize::try_from(longest).unwrap_or(usize::MAX) / PLACE_ALIGN_BYTES * PLACE_ALIGN_BYTES;
    let wanted = record_bytes.clamp(1, READ_BYTES_MAX).next_multiple_of(PLACE_ALIGN_BYTES);
    match wanted.min(longest) {
        0 => Err(refused("it is shorter than a block")),
        read_bytes => Ok(read_bytes),
    }
}

fn slots(files: &FileSet, read_bytes: usize) -> Result<Vec<WriteLease>, OpenError> {
    let refused = |error| OpenError::Io {
        doing: "get memory to measure the disk of",
        path: files.path(0),
        source: io::Error::other(error),
    };
    let arena = Arena::new(DEPTH_MAX, read_bytes).map_err(refused)?;
    let slots = (0..).take(DEPTH_MAX).map(SlotIdx);
    Ok(slots.filter_map(|slot| arena.try_write(slot)).collect())
}

#[cfg(test)]
mod tests;
