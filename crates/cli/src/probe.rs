//! `forerun probe`: how fast the model's disk is, and how its experts are best read.
//!
//! Always measures anew, and keeps what it found for the commands that run models.

mod folder;
mod table;

use std::error::Error;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use forerun_decode::ModelSource;
use forerun_model::{Clock, ModelShape, SystemClock};
use forerun_storage::probe::{ProbeConfig, record_bytes};
use forerun_storage::{Catalog, Gguf, ProbeCache, ProbeReport, probe};

use crate::Outcome;
use crate::args::ProbeArgs;
use crate::embedded;
use crate::say::say;
pub(crate) use folder::cache_folder;

/// Measures when the file says of no experts.
const RECORD_BYTES_DEFAULT: usize = 1 << 20;

/// Measures a model's disk.
pub(crate) fn run(args: &ProbeArgs) -> Result<Outcome, Box<dyn Error>> {
    let path = args.model.as_ref().or(args.file.as_ref());
    let gguf = match embedded::source(path)? {
        ModelSource::Path(path) => Gguf::open(&path)?,
        ModelSource::Embedded { .. } => return no_disk(args.json),
    };
    let record = args.record.map(usize::try_from).transpose()?.unwrap_or_else(|| usual_read(&gguf));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let config =
        ProbeConfig { record_bytes: record, seed: crate::load::random_seed(), limit: args.disk_limit };
    let report = probe(gguf.files(), config, &clock)?;
    let mut stdout = io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut stdout, &report)?;
        stdout.write_all(b"\n")?;
    } else {
        table::write(&mut stdout, &gguf, &report)?;
    }
    drop(stdout);
    // What a limited disk gives is not what the disk gives.
    if !args.no_cache && args.disk_limit.is_none() {
        keep(&report);
    }
    Ok(Outcome::Done)
}

/// The embedded model is read from the program itself.
fn no_disk(json: bool) -> Result<Outcome, Box<dyn Error>> {
    let reason = "the model is inside the program, so there is no disk to measure; name a file with -m";
    let mut stdout = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut stdout, &serde_json::json!({ "device": null, "reason": reason }))?;
        stdout.write_all(b"\n")?;
    } else {
        writeln!(stdout, "{reason}")?;
    }
    Ok(Outcome::Done)
}

/// Bytes of a usual read of the model's experts.
fn usual_read(gguf: &Gguf) -> usize {
    let shape = ModelShape::from_metadata(&gguf.metadata).ok();
    let catalog = shape.and_then(|shape| Catalog::new(&shape, gguf).ok());
    let bytes = catalog.map_or(0, |catalog| record_bytes(&catalog));
    if bytes == 0 { RECORD_BYTES_DEFAULT } else { bytes }
}

/// Stores the report; a disk that is full, or a home that isn't there, is no reason to fail.
fn keep(report: &ProbeReport) {
    let Some(folder) = cache_folder() else {
        return say!("the result is not kept: no folder for caches is known; set XDG_CACHE_HOME");
    };
    match ProbeCache::new(folder).store(report, unix_seconds()) {
        Ok(Some(path)) => say!("kept in {}", path.display()),
        Ok(None) => say!("the result is not kept: this disk can't be told from another"),
        Err(error) => say!("the result is not kept: {}", crate::chain(&error)),
    }
}

/// Seconds since 1970; 0 if the machine's clock is before that.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
