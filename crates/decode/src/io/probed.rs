//! Settings from a probe of the model's disk: one that was made before, or one that is made now.

use std::sync::Arc;

use forerun_model::Clock;
use forerun_storage::probe::{Access, Cached, Device, Method, ProbeConfig, ProbeReport, record_bytes};
use forerun_storage::{Catalog, Gguf, MergeLimits, ProbeCache, probe};

use crate::DecodeError;
use crate::config::DiskProbe;
use crate::telemetry::Decision;

const DAY_SECONDS: u64 = 24 * 3600;

/// How to read from a disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probed {
    pub(super) direct: bool,
    pub(super) uring: bool,
    pub(super) depth: usize,
    pub(super) merge: MergeLimits,
    pub(super) bytes_per_second: Option<u64>,
}

impl Default for Probed {
    /// Of a disk that wasn't measured.
    fn default() -> Self {
        // Of direct reads, two fill the disk that was measured, and a demand waits for fewer guesses than with more.
        let depth = 2;
        Self { direct: true, uring: false, depth, merge: MergeLimits::default(), bytes_per_second: None }
    }
}

/// Settings for the disk of `gguf`, with a reason each.
pub(super) fn settings(
    config: &DiskProbe,
    gguf: &Gguf,
    catalog: &Catalog,
    clock: &Arc<dyn Clock>,
    decisions: &mut Vec<Decision>,
) -> Result<Probed, DecodeError> {
    let record_bytes = record_bytes(catalog);
    let (report, origin) = report(config, gguf, record_bytes, clock)?;
    let choice = &report.choice;
    for reason in &choice.reasons {
        decisions.push(Decision::new(reason.what.clone(), &reason.choice, reason.reason.clone()));
    }
    decisions.push(Decision::new("probe", disk_name(&report.device), origin));
    Ok(Probed {
        direct: choice.access == Access::Direct,
        uring: choice.method == Method::Uring,
        depth: choice.depth,
        merge: choice.merge(record_bytes as u64),
        bytes_per_second: choice.bytes_per_second,
    })
}

/// A report, and where it is from.
fn report(
    config: &DiskProbe,
    gguf: &Gguf,
    record_bytes: usize,
    clock: &Arc<dyn Clock>,
) -> Result<(ProbeReport, String), DecodeError> {
    let cache = config.folder.as_ref().map(ProbeCache::new);
    let known =
        cache.as_ref().map(|cache| cache.load(&Device::of(gguf.files()), record_bytes, config.unix_seconds));
    let mut note = String::new();
    match known {
        Some(Cached::Report { report, age_seconds }) => {
            let days = age_seconds / DAY_SECONDS;
            let age = if days == 0 { "today".to_owned() } else { format!("{days} days ago") };
            return Ok((*report, format!("measured {age}; `forerun probe` measures anew")));
        }
        Some(Cached::Useless { note: why }) => note = format!("; {why}"),
        Some(Cached::Nothing) | None => {}
    }
    let setting = ProbeConfig { record_bytes, seed: config.seed, limit: None };
    let report = probe(gguf.files(), setting, clock)?;
    let kept = cache.map(|cache| cache.store(&report, config.unix_seconds));
    if let Some(Err(error)) = kept {
        note.push_str(&format!("; it can't be kept ({error})"));
    }
    let origin = format!("measured now, in {:.1} s{note}", report.took_ms / 1e3);
    Ok((report, origin))
}

/// A disk for people.
fn disk_name(device: &Device) -> String {
    let words = [&device.file_system, &device.id].map(String::as_str);
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    if words.is_empty() { "a disk without a name".into() } else { words.join(" on ") }
}
