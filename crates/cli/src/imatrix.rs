//! `forerun imatrix`: which columns of a model's matrices matter to a text.

mod part;
mod report;

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Seek};
use std::path::Path;
use std::time::{Duration, Instant};

use forerun_decode::perplexity::WINDOW_DEFAULT;
use forerun_decode::text::{Literals, TokenReader};
use forerun_decode::{Calibration, Collect, DecodeError, Engine, ReadEvent, TextLength};
use forerun_quantize::ImatrixError;

use crate::Outcome;
use crate::args::ImatrixArgs;
use crate::interrupt::Interrupt;
use crate::load::{engine_config, report, warm_up};
use crate::perplexity::{TextError, open};
use crate::pressure;
use crate::progress::{Bar, Unit};
use crate::say::say;
use part::{Part, Source};
use report::Report;

/// Time between two moments at which what was seen is made safe.
const SAVED_EVERY: Duration = Duration::from_secs(30);
/// Where nobody watches a bar, progress is said after the first windows and then every so many.
const SAID_EVERY: u64 = 16;

/// Reads a text and writes what the model's matrices were multiplied with.
pub(crate) fn imatrix(args: &ImatrixArgs) -> Result<Outcome, Box<dyn Error>> {
    let interrupt = Interrupt::install()?;
    let (path, out) = (args.text.as_path(), args.out.as_path());
    if !args.force && fs::symlink_metadata(out).is_ok() {
        return Err(CalibrateError::Exists { path: out.display().to_string() }.into());
    }
    if out.is_dir() {
        return Err(CalibrateError::Folder { path: out.display().to_string() }.into());
    }
    let mut text = open(path)?;
    let mut model = args.model.clone();
    model.model = model.model.or_else(|| args.file.clone());
    let mut config = engine_config(&model)?;
    let collect = if args.process_output { Collect::LayersAndHead } else { Collect::Layers };
    (config.context_default, config.collects) = (WINDOW_DEFAULT, Some(collect));
    // Before the model, so that what its header takes is gone when the slots are made.
    let source = interrupt.while_idle(|| Source::new(&config.model, path, &mut text))?;
    let mut engine = Engine::open(&config)?;
    let quiet = args.model.quiet;
    pressure::watch(&mut engine, quiet);
    if !quiet {
        report(&engine, &[]);
    }
    let window = engine.plan().context;
    let literals = if args.parse_special { Literals::Tokens } else { Literals::Text };
    let tokens = TokenReader::new(&text).reading(literals);
    let counted = interrupt.while_idle(|| TextLength::of_tokens(tokens, engine.tokenizer(), window));
    let length = counted.map_err(|source| TextError::of(path, source))?;
    let length = length.at_most(args.chunks.unwrap_or(u64::MAX));
    let part = Part::new(out, source, window, (collect, literals));
    let n_earlier = part.resume(&engine, length.n_windows, (args.force, quiet))?;
    if !warm_up(&engine, quiet, &interrupt) {
        return Ok(Outcome::Interrupted);
    }
    text.rewind().map_err(|source| TextError::of(path, DecodeError::ReadText { source }))?;
    let mut reading = Calibration::new(&mut engine, TokenReader::new(text).reading(literals), length);
    interrupt.while_idle(|| reading.skip(n_earlier)).map_err(|source| TextError::of(path, source))?;
    let run = Run { part: &part, length, n_earlier, interrupt: &interrupt, quiet };
    let n_windows = run.read(&mut reading, path)?;
    if n_windows < length.n_windows {
        if !quiet {
            say!(
                "{n_windows} of {} windows are in {}; the same command goes on",
                length.n_windows,
                part.path()
            );
        }
        return Ok(Outcome::Interrupted);
    }
    if let Err(error) = part.publish(reading.engine(), n_windows, args.force) {
        // What was read is worth more than a second error.
        let _ = part.save(reading.engine(), n_windows);
        return Err(error.into());
    }
    let sizes = report::Sizes { ctx: window, windows: n_windows, windows_resumed: n_earlier };
    Report::new(reading.engine(), &part, sizes).print(args, &reading.telemetry())?;
    Ok(Outcome::Done)
}

/// One run over the windows that are left.
struct Run<'a> {
    part: &'a Part,
    length: TextLength,
    n_earlier: u64,
    interrupt: &'a Interrupt,
    quiet: bool,
}

impl Run<'_> {
    /// Reads to the end, or until interrupted, and says how many windows are counted then; if not all, they are saved.
    fn read(&self, reading: &mut Calibration<'_, File>, path: &Path) -> Result<u64, Box<dyn Error>> {
        let (begin, total) = (Instant::now(), self.length.n_windows);
        let bar = Bar::new("calibrating", Unit::Windows, total, self.quiet);
        bar.start_at(self.n_earlier);
        let (mut n_read, mut n_saved, mut saved, mut warned) = (self.n_earlier, self.n_earlier, begin, false);
        loop {
            if self.interrupt.is_set() && !warned {
                warned = true;
                bar.above(|| say!("the window is read to its end; once more ends at once"));
            }
            let event = reading.next().map_err(|source| TextError::failed(path, source))?;
            match event {
                None => return Ok(n_read),
                Some(ReadEvent::Read) => continue,
                Some(ReadEvent::Window { n }) => n_read = n,
            }
            bar.set(n_read);
            self.say(n_read, begin.elapsed());
            let stops = self.interrupt.is_set() && n_read < total;
            if n_read > n_saved && (stops || (n_read < total && saved.elapsed() >= SAVED_EVERY)) {
                self.part.save(reading.engine(), n_read)?;
                (n_saved, saved) = (n_read, Instant::now());
            }
            if stops {
                return Ok(n_read);
            }
        }
    }

    /// How far it is, where nobody watches a bar.
    fn say(&self, n: u64, elapsed: Duration) {
        let (n_new, left) = (n - self.n_earlier, self.length.n_windows - n);
        if self.quiet || io::stderr().is_terminal() || left == 0 {
            return;
        }
        if n.is_multiple_of(SAID_EVERY) || n_new.is_power_of_two() {
            #[expect(clippy::cast_precision_loss, reason = "few windows")]
            let seconds = elapsed.as_secs_f64() / n_new as f64 * left as f64;
            say!("{n} of {} windows, about {seconds:.0} s to go", self.length.n_windows);
        }
    }
}

/// A file that can't be made.
#[derive(Debug, thiserror::Error)]
enum CalibrateError {
    #[error("{path} exists; --force replaces it")]
    Exists { path: String },
    #[error("{path} is a folder; name the file to write")]
    Folder { path: String },
    #[error(
        "{path} holds windows of another text, model or window, or more of them than are wanted; --force replaces it"
    )]
    Other { path: String },
    #[error(
        "{path} is in the way, and no importance matrix under way: remove it, or name another file to write"
    )]
    NoPart { path: String, source: Box<ImatrixError> },
    #[error("can't read {path}")]
    Read { path: String, source: io::Error },
    #[error("can't remove {path}, whose windows are in the whole file now")]
    Remove { path: String, source: io::Error },
    #[error("can't write {path}; the same command goes on from what was saved last, if anything was")]
    Write { path: String, source: Box<ImatrixError> },
}
