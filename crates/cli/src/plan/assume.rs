//! What a plan takes for granted, each with its reason.

use std::error::Error;
use std::path::Path;

use forerun_decode::{ModelSource, Outlook, TokenTraffic, bytes_text};
use forerun_model::Nanos;
use forerun_sim::{Compute, Disk, Shares, Trace};
use forerun_storage::probe::{Cached, Device, ProbeReport, record_bytes};
use forerun_storage::{Catalog, Gguf, ProbeCache};
use serde::Serialize;

use crate::args::{DiskWish, PlanArgs};
use crate::embedded;
use crate::probe::{cache_folder, unix_seconds};

/// Bytes of weights that one thread goes through in a second; measured on current cores with Q4_K.
const THREAD_BYTES_PER_SECOND: f64 = 8e9;
/// What the memory of usual machines gives all threads together.
const MEMORY_BYTES_PER_SECOND: f64 = 60e9;

/// Something that the plan assumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Assumption {
    pub(super) what: &'static str,
    pub(super) value: String,
    pub(super) reason: String,
}

/// What every row of the plan is made from.
pub(super) struct Assumed {
    pub(super) trace: Trace,
    /// Of one of the trace's experts: as many of them as a token uses weigh what the model's weigh.
    pub(super) record_bytes: u64,
    pub(super) disk: Disk,
    pub(super) compute: Compute,
    pub(super) said: Vec<Assumption>,
}

impl Assumed {
    pub(super) fn new(args: &PlanArgs, outlook: &Outlook) -> Result<Self, Box<dyn Error>> {
        let mut said = Vec::new();
        let disk = disk(args, &mut said)?;
        let compute = compute(args, outlook, &mut said);
        let trace = trace(args, outlook, &mut said)?;
        let TokenTraffic { experts, .. } = outlook.token_traffic();
        let uses = (outlook.shape().n_layers() * trace.top_k).max(1);
        Ok(Self { record_bytes: experts / uses as u64, trace, disk, compute, said })
    }
}

fn disk(args: &PlanArgs, said: &mut Vec<Assumption>) -> Result<Disk, Box<dyn Error>> {
    let limit = args.model.disk_limit.map_or(u64::MAX, std::num::NonZeroU64::get);
    let mut say = |disk: Disk, reason: String| {
        let disk = Disk { bytes_per_second: disk.bytes_per_second.min(limit), ..disk };
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = disk.bytes_per_second as f64 / 1e9;
        let value = format!("{rate:.2} GB/s, {:.0} us", disk.latency.as_millis_f64() * 1e3);
        said.push(Assumption { what: "disk", value, reason });
        Ok(disk)
    };
    match args.disk {
        Some(DiskWish::Named(disk)) => {
            return say(disk, format!("what a disk like `{}` sustains", disk.name));
        }
        Some(DiskWish::Rate(rate)) => return say(Disk::of_rate(rate), "as asked for".to_owned()),
        None => {}
    }
    let path = match embedded::source(args.model.model.as_ref())? {
        ModelSource::Path(path) => path,
        ModelSource::Embedded { .. } => {
            return Err("the model is inside the program, so there is no disk; name one with --disk".into());
        }
    };
    match probed(&path)? {
        Some(disk) => say(disk, "this file's disk, as it was probed".to_owned()),
        None => {
            let path = path.display();
            Err(format!("the disk of {path} wasn't measured yet: run `forerun probe -m {path}` first, or name one with --disk").into())
        }
    }
}

/// The disk of the model at `path`, if it was probed before.
fn probed(path: &Path) -> Result<Option<Disk>, Box<dyn Error>> {
    let Some(folder) = cache_folder() else { return Ok(None) };
    let gguf = Gguf::open(path)?;
    let shape = forerun_model::ModelShape::from_metadata(&gguf.metadata)?;
    let record_bytes = record_bytes(&Catalog::new(&shape, &gguf)?);
    let cached = ProbeCache::new(folder).load(&Device::of(gguf.files()), record_bytes, unix_seconds());
    Ok(match cached {
        Cached::Report { report, .. } => of_report(&report),
        Cached::Nothing | Cached::Useless { .. } => None,
    })
}

/// A read alone takes its latency and its bytes; many at once take their bytes.
fn of_report(report: &ProbeReport) -> Option<Disk> {
    let choice = &report.choice;
    let bytes_per_second = choice.bytes_per_second?;
    let alone = report
        .rates
        .iter()
        .find(|rate| rate.depth == 1 && rate.method == choice.method && rate.access == choice.access);
    let nanos =
        |rate: u64, bytes: u64| u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1)));
    let latency = alone.and_then(|rate| {
        let (alone, shared) =
            (nanos(rate.bytes_per_second, rate.read_bytes), nanos(bytes_per_second, rate.read_bytes));
        Some(alone.ok()?.saturating_sub(shared.ok()?))
    });
    Some(Disk {
        bytes_per_second,
        latency: latency.map_or(Disk::of_rate(1).latency, Nanos),
        depth: choice.depth,
        ..Disk::of_rate(bytes_per_second)
    })
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a token")]
fn compute(args: &PlanArgs, outlook: &Outlook, said: &mut Vec<Assumption>) -> Compute {
    let TokenTraffic { dense, experts } = outlook.token_traffic();
    let n_threads = outlook.n_threads();
    let (rate, reason) = match args.compute {
        Some(rate) => (rate, "as asked for".to_owned()),
        None => {
            let bytes_per_second = (n_threads as f64 * THREAD_BYTES_PER_SECOND).min(MEMORY_BYTES_PER_SECOND);
            let reason = format!(
                "{} of weights a token, at {:.0} GB/s for {n_threads} threads; `forerun bench` measures it, --compute says it",
                bytes_text(dense + experts),
                bytes_per_second / 1e9
            );
            (bytes_per_second / (dense + experts).max(1) as f64, reason)
        }
    };
    said.push(Assumption {
        what: "compute",
        value: format!("{rate:.1} tok/s with everything in memory"),
        reason,
    });
    // Time goes where the bytes are.
    let usual = Shares::default();
    let share = experts as f64 / (dense + experts).max(1) as f64;
    let scale = (1.0 - share) / (usual.mixer + usual.shared + usual.head);
    let shares = Shares {
        mixer: usual.mixer * scale,
        experts: share,
        shared: usual.shared * scale,
        head: usual.head * scale,
        ..usual
    };
    Compute { shares, ..Compute::of_rate(rate) }
}

fn trace(args: &PlanArgs, outlook: &Outlook, said: &mut Vec<Assumption>) -> Result<Trace, Box<dyn Error>> {
    let (shape, moe) = (outlook.shape(), &outlook.shape().moe);
    let (trace, name) = match &args.trace {
        Some(path) => (read(path)?, path.display().to_string()),
        None => recorded(moe.n_experts)?,
    };
    let mut reasons = Vec::new();
    if trace.n_layers != shape.n_layers() {
        reasons.push(format!(
            "its {} layers are stretched to the model's {}",
            trace.n_layers,
            shape.n_layers()
        ));
    }
    if (trace.n_experts, trace.top_k) != (moe.n_experts, moe.top_k) {
        reasons.push(format!(
            "its {} of {} experts stand for {} of {}: the same share of slots hits as often, a token reads as many bytes",
            trace.top_k, trace.n_experts, moe.top_k, moe.n_experts
        ));
    }
    if args.trace.is_none() {
        reasons.push("`forerun trace` records the model's own, --trace uses it".to_owned());
    }
    let reason = if reasons.is_empty() { "of a model of this shape".to_owned() } else { reasons.join("; ") };
    said.push(Assumption { what: "routing", value: name, reason });
    Ok(trace)
}

fn read(path: &Path) -> Result<Trace, Box<dyn Error>> {
    let is_ours = path.extension().is_some_and(|ending| ending == "json" || ending == "bin");
    let stem = if is_ours { path.with_extension("") } else { path.to_path_buf() };
    let bytes = |ending| {
        let path = stem.with_added_extension(ending);
        std::fs::read(&path).map_err(|error| format!("cannot read the trace {}: {error}", path.display()))
    };
    Ok(Trace::parse(&bytes("json")?, &bytes("bin")?)?)
}

/// A trace that the program carries: of the model that is as sparse as one of `n_experts`.
#[cfg(feature = "embed")]
fn recorded(n_experts: usize) -> Result<(Trace, String), Box<dyn Error>> {
    /// Models with fewer experts are more like the small one.
    const FEW: usize = 64;
    macro_rules! fixture {
        ($name:literal) => {
            (
                include_bytes!(concat!("../../../../fixtures/traces/", $name, ".json")).as_slice(),
                include_bytes!(concat!("../../../../fixtures/traces/", $name, ".bin")).as_slice(),
            )
        };
    }
    let few = n_experts < FEW;
    let (header, arrays) = if few { fixture!("pico-chat") } else { fixture!("trace-chat") };
    let trace = Trace::parse(header, arrays)?;
    let name = format!("chat answers of a model with {} of {} experts", trace.top_k, trace.n_experts);
    Ok((trace, name))
}

#[cfg(not(feature = "embed"))]
fn recorded(_n_experts: usize) -> Result<(Trace, String), Box<dyn Error>> {
    Err("this build carries no trace (feature `embed`); record one with `forerun trace` and name it with --trace".into())
}
