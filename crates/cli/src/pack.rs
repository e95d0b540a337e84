//! `forerun pack` and `forerun unpack`: a copy of a model with its experts laid out anew.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use forerun_model::{LayerId, ModelShape, Routing};
use forerun_sim::Trace;
use forerun_storage::Gguf;
use forerun_storage::repack::{self, Job, Order};

use crate::Outcome;
use crate::args::{OrderName, PackArgs, TalkArgs, UnpackArgs};
use crate::copying;
use crate::interrupt::Interrupt;
use crate::say::say;

/// Packs a model, or packs a packed one anew.
pub(crate) fn pack(args: &PackArgs) -> Result<Outcome, Box<dyn Error>> {
    let interrupt = Interrupt::install()?;
    let source = Gguf::open(&args.source)?;
    let target = match &args.target {
        Some(target) => target.clone(),
        None if args.source.is_dir() => return Err(no_target(&source, &args.source).into()),
        None => default_target(&source),
    };
    let mut settings = copying::settings(&args.copy);
    let mut runs = None;
    if let OrderName::Trace(path) = &args.order {
        let (order, saved) = trace_order(path, &source)?;
        (settings.order, runs) = (order, Some(saved));
    }
    let job = repack::pack(&source, &target, &settings)?;
    if let (Some(runs), false) = (runs, args.copy.talk.quiet) {
        let Runs { before, after } = runs;
        say!(
            "order: a token's experts lie in {after:.2} runs a layer, {before:.2} in the order of their ids"
        );
    }
    work(job, "packing", &target, &args.copy.talk, &interrupt)
}

/// Writes the file that a packed one was made from.
pub(crate) fn unpack(args: &UnpackArgs) -> Result<Outcome, Box<dyn Error>> {
    let interrupt = Interrupt::install()?;
    let source = Gguf::open(&args.source)?;
    let job = repack::unpack(&source, &args.target, &copying::settings(&args.copy))?;
    work(job, "unpacking", &args.target, &args.copy.talk, &interrupt)
}

/// Pulls the job to its end and says what it made.
fn work(
    job: Job<'_>,
    title: &'static str,
    target: &Path,
    talk: &TalkArgs,
    interrupt: &Interrupt,
) -> Result<Outcome, Box<dyn Error>> {
    let Some(copied) = copying::pull(job, title, target, talk, interrupt)? else {
        return Ok(Outcome::Interrupted);
    };
    if talk.json {
        let mut stdout = io::stdout().lock();
        serde_json::to_writer(&mut stdout, &copied)?;
        stdout.write_all(b"\n")?;
    } else if !talk.quiet {
        copied.say();
    }
    Ok(Outcome::Done)
}

/// `NAME-packed.gguf` beside the source; a shard's number isn't part of the name.
fn default_target(source: &Gguf) -> PathBuf {
    let path = &source.files().files()[0].path;
    let name = path.file_stem().unwrap_or(OsStr::new("model"));
    let name = match name.to_str().and_then(|name| name.split_once("-00001-of-")) {
        Some((prefix, _)) => OsString::from(prefix),
        None => name.to_owned(),
    };
    let mut name = name;
    name.push("-packed.gguf");
    path.with_file_name(name)
}

/// A folder stands for the one model in it, so another one doesn't go into it unasked.
fn no_target(source: &Gguf, folder: &Path) -> String {
    let (folder, name) = (folder.display(), default_target(source));
    let name = Path::new(name.file_name().unwrap_or(name.as_os_str())).display();
    format!(
        "{folder} is a folder, which holds one model: name the file to write, such as {name} in another one"
    )
}

/// Runs of neighbours that a token's experts make in a layer, on average.
#[derive(Clone, Copy, Debug)]
struct Runs {
    before: f64,
    after: f64,
}

/// The order that a recorded trace suggests.
fn trace_order(header: &Path, source: &Gguf) -> Result<(Order, Runs), Box<dyn Error>> {
    let shape = ModelShape::from_metadata(&source.metadata)?;
    let read = |path: &Path| {
        std::fs::read(path).map_err(|e| format!("cannot read the trace {}: {e}", path.display()))
    };
    let trace = Trace::parse(&read(header)?, &read(&header.with_extension("bin"))?)?;
    let (found, expected) = ((trace.n_layers, trace.n_experts), (shape.n_layers(), shape.moe.n_experts));
    if found != expected {
        let (path, (layers, experts)) = (header.display(), found);
        let words = format!(
            "{path} was recorded with {layers} layers of {experts} experts; the model has {} of {}",
            expected.0, expected.1
        );
        return Err(words.into());
    }
    let (mut rows, mut before, mut after) = (Vec::new(), 0, 0);
    let ids: Vec<u32> = (0..).take(shape.moe.n_experts).collect();
    for layer in shape.layer_ids() {
        let sets = sets(&trace, layer);
        let row = repack::co_firing_order(shape.moe.n_experts, &sets);
        before += repack::n_runs(&ids, &sets);
        after += repack::n_runs(&row, &sets);
        rows.push(row);
    }
    #[expect(clippy::cast_precision_loss, reason = "an average for people")]
    let average = |runs: usize| runs as f64 / (trace.n_tokens * trace.n_layers) as f64;
    Ok((Order::Given(rows), Runs { before: average(before), after: average(after) }))
}

/// The experts of each token in one layer.
fn sets(trace: &Trace, layer: LayerId) -> Vec<Vec<u16>> {
    let mut routing = Routing::default();
    let set = |token| {
        trace.routing(token, layer, &mut routing);
        routing.row(0).iter().map(|expert| expert.0.0).collect()
    };
    (0..trace.n_tokens).map(set).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counted on the trace that the fixtures hold.
    #[test]
    fn the_recorded_trace_makes_fewer_runs() {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
        let source = Gguf::open(&fixtures.join("pico-q4_k_m.gguf")).unwrap();
        let (order, runs) = trace_order(&fixtures.join("traces/pico-chat.json"), &source).unwrap();
        println!("{runs:?}");
        assert!(runs.after < 0.9 * runs.before, "{runs:?}");
        let Order::Given(rows) = order else { panic!("a trace gives an order") };
        assert_eq!((rows.len(), rows[0].len()), (8, 32));
        let other = Gguf::open(&fixtures.join("tiny-b-q3_k_m.gguf")).unwrap();
        let error = trace_order(&fixtures.join("traces/pico-chat.json"), &other).unwrap_err().to_string();
        assert!(error.contains("recorded with 8 layers of 32 experts"), "{error}");
    }
}
