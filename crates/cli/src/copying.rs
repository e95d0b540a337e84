//! What all commands share that write a copy of a model: settings, a bar, and going on where an earlier run ended.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use forerun_decode::bytes_text;
use forerun_storage::repack::{Existing, Job, Settings, Summary};
use serde::Serialize;

use crate::args::{CopyArgs, TalkArgs};
use crate::interrupt::Interrupt;
use crate::progress::{Bar, Unit};
use crate::say::say;

/// The settings that arguments ask for.
pub(crate) fn settings(args: &CopyArgs) -> Settings {
    let existing = if args.force { Existing::Replace } else { Existing::Refuse };
    let mut settings = Settings { existing, ..Settings::default() };
    if let Some(bytes) = args.checkpoint {
        settings.checkpoint_bytes = bytes;
        settings.step_bytes = settings.step_bytes.min(bytes.max(1));
    }
    settings
}

/// What was written; printed as it is with `--json`.
#[derive(Serialize)]
pub(crate) struct Copied {
    target: PathBuf,
    file_bytes: u64,
    tensors: usize,
    experts: usize,
    written_bytes: u64,
    resumed_bytes: u64,
    seconds: f64,
}

impl Copied {
    /// Says it in words.
    pub(crate) fn say(&self) {
        let Self { tensors, experts, seconds, .. } = self;
        #[expect(clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "a rate for people")]
        #[expect(clippy::cast_possible_truncation, reason = "a rate for people")]
        let rate = bytes_text((self.written_bytes as f64 / seconds.max(1e-3)) as u64);
        let (path, size) = (self.target.display(), bytes_text(self.file_bytes));
        say!("wrote {path}: {size}, {tensors} tensors, {experts} experts, in {seconds:.1} s ({rate}/s)");
    }
}

/// Pulls the job to its end; `None` when the user wanted to stop before.
pub(crate) fn pull(
    mut job: Job<'_>,
    title: &'static str,
    target: &Path,
    talk: &TalkArgs,
    interrupt: &Interrupt,
) -> Result<Option<Copied>, Box<dyn Error>> {
    let (start, begun) = (Instant::now(), job.progress());
    if begun.resumed_bytes > 0 && !talk.quiet {
        say!("going on after {} that an earlier run wrote", bytes_text(begun.resumed_bytes));
    }
    let bar = Bar::new(title, Unit::Bytes, begun.total_bytes, talk.quiet);
    bar.start_at(begun.done_bytes);
    while job.step()? {
        bar.set(job.progress().done_bytes);
        if interrupt.is_set() {
            let done = job.progress().done_bytes;
            job.pause()?;
            drop(bar);
            let part = target.display();
            say!("stopped after {}; the same command goes on with {part}.forerun-part", bytes_text(done));
            return Ok(None);
        }
    }
    let Summary { target, file_bytes, n_experts: experts, n_tensors: tensors, resumed_bytes } =
        job.finish()?;
    drop(bar);
    let seconds = start.elapsed().as_secs_f64();
    let written_bytes = begun.total_bytes - resumed_bytes;
    Ok(Some(Copied { target, file_bytes, tensors, experts, written_bytes, resumed_bytes, seconds }))
}
