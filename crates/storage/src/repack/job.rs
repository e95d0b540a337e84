//! One packing or unpacking: the caller pulls step after step, and may stop between any two.

use std::io;
use std::path::PathBuf;

use super::identity;
use super::journal::{self, Fingerprint, Replay};
use super::output::{Output, Shortage};
use super::plan::{Batch, Plan};
use super::recipe::Recipe;
use super::recode::{Recode, rows};
use super::{Settings, hints, read};
use crate::gguf::{Array, HeaderWriter, Value};
use crate::{Catalog, Gguf, PackError, packed};

/// A copy in the making. [`Job::step`] moves a piece; [`Job::finish`] gives the target its name.
///
/// Dropped before that, it leaves what it has for a later run to go on with, up to the last checkpoint; after
/// [`Job::pause`], all of it.
pub struct Job<'a> {
    gguf: &'a Gguf,
    catalog: Catalog,
    header: HeaderWriter,
    plan: Plan,
    target: PathBuf,
    output: Box<dyn Output>,
    recode: Option<&'a dyn Recode>,
    fingerprint: Fingerprint,
    checkpoint_bytes: u64,
    is_packing: bool,
    n_steps_done: usize,
    /// Checksums of the experts moved so far, in the order of the steps.
    crc32c: Vec<u32>,
    /// How many of them the journal has.
    n_noted: usize,
    unsynced_bytes: u64,
    progress: Progress,
    buffer: Vec<u8>,
}

/// How far a job is. Bytes are the target's, without its header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes written, by this run and earlier ones.
    pub done_bytes: u64,
    /// Bytes of those that an earlier run wrote.
    pub resumed_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// What a job did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The file.
    pub target: PathBuf,
    /// Its length.
    pub file_bytes: u64,
    /// Experts that it holds.
    pub n_experts: usize,
    /// Tensors that it holds.
    pub n_tensors: usize,
    /// Bytes that an earlier run had written.
    pub resumed_bytes: u64,
}

/// What [`Job::new`] takes.
pub(super) struct Parts<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) catalog: Catalog,
    pub(super) recipe: Recipe,
    pub(super) target: PathBuf,
    pub(super) output: Box<dyn Output>,
    /// Who makes rows of other types, where some are to be made.
    pub(super) recode: Option<&'a dyn Recode>,
}

impl<'a> Job<'a> {
    pub(super) fn new(parts: Parts<'a>, settings: &Settings) -> Result<Self, PackError> {
        let Parts { gguf, catalog, recipe: Recipe { header, plan }, target, output, recode } = parts;
        let fingerprint = identity::fingerprint(gguf, &header, settings.step_bytes)?;
        let total_bytes = (0..plan.steps.len()).map(|idx| plan.step_bytes(idx)).sum();
        let is_packing = header.has(packed::KEY_VERSION);
        let mut job = Self {
            gguf,
            catalog,
            header,
            plan,
            target,
            output,
            recode,
            fingerprint,
            checkpoint_bytes: settings.checkpoint_bytes,
            is_packing,
            n_steps_done: 0,
            crc32c: Vec::new(),
            n_noted: 0,
            unsynced_bytes: 0,
            progress: Progress { total_bytes, ..Progress::default() },
            buffer: Vec::new(),
        };
        job.begin()?;
        Ok(job)
    }

    /// Goes on with what an earlier run left, or starts afresh.
    fn begin(&mut self) -> Result<(), PackError> {
        let file_bytes = self.header.file_bytes();
        let earlier = self.output.earlier(file_bytes).map_err(|source| self.failure("make room", source))?;
        let replay = earlier.and_then(|bytes| journal::replay(&bytes, &self.fingerprint));
        let Some(replay) = replay.filter(|replay| self.fits(replay)) else {
            let begun = self.output.begin(file_bytes);
            let noted = begun.and_then(|()| self.output.note(&journal::start(&self.fingerprint)));
            return self.settle("make room", noted);
        };
        let done_bytes = (0..replay.n_steps).map(|idx| self.plan.step_bytes(idx)).sum();
        (self.n_steps_done, self.n_noted) = (replay.n_steps, replay.crc32c.len());
        self.crc32c = replay.crc32c;
        (self.progress.done_bytes, self.progress.resumed_bytes) = (done_bytes, done_bytes);
        // What an earlier run left stays, however little room there is: this one has taken none.
        let resumed = self.output.resume(replay.len_bytes, self.left_bytes());
        resumed.map_err(|source| self.failure("make room", source))
    }

    /// Bytes of the target that aren't written.
    fn left_bytes(&self) -> u64 {
        self.header.file_bytes() - self.progress.done_bytes
    }

    fn fits(&self, replay: &Replay) -> bool {
        let n_experts = |n_steps| (0..n_steps).map(|idx| self.plan.step_experts(idx).count()).sum::<usize>();
        replay.n_steps <= self.plan.steps.len() && replay.crc32c.len() == n_experts(replay.n_steps)
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Moves some megabytes; `false` when nothing is left to move. After an error the same piece may be tried again.
    ///
    /// # Errors
    /// [`PackError`]; when the disk is full, or the source damaged or refused, nothing is left behind, else what there is stays for
    /// a later run.
    pub fn step(&mut self) -> Result<bool, PackError> {
        if self.n_steps_done == self.plan.steps.len() {
            return Ok(false);
        }
        let batch = self.plan.batch(self.n_steps_done, &self.catalog);
        self.read(&batch)?;
        self.recode(&batch)?;
        let sums = self.check(&batch)?;
        let written = batch.spans.iter().try_for_each(|span| {
            self.output.write_at(&self.buffer[span.at..span.at + span.len], span.to_bytes)
        });
        self.settle("write", written)?;
        self.crc32c.extend(sums);
        let bytes = self.plan.step_bytes(self.n_steps_done);
        self.n_steps_done += 1;
        self.unsynced_bytes += bytes;
        self.progress.done_bytes += bytes;
        if self.unsynced_bytes >= self.checkpoint_bytes {
            self.checkpoint()?;
        }
        Ok(self.n_steps_done < self.plan.steps.len())
    }

    /// Makes everything so far safe, for a later run to go on with.
    ///
    /// # Errors
    /// Those of [`Job::step`].
    pub fn pause(mut self) -> Result<(), PackError> {
        self.checkpoint()
    }

    /// Moves what is left, writes the header, and gives the target its name.
    ///
    /// # Errors
    /// Those of [`Job::step`], [`PackError::SourceChanged`], [`PackError::TargetExists`] when the target appeared
    /// meanwhile, and [`PackError::Busy`] when another run has taken its part over.
    pub fn finish(mut self) -> Result<Summary, PackError> {
        while self.step()? {}
        if self.is_packing {
            self.header.replace(packed::KEY_CRC32C, Value::Array(Array::U32(self.sums())));
        }
        let mut header = Vec::new();
        let written = self.header.write(&mut header).and_then(|()| self.output.write_at(&header, 0));
        self.settle("write the header", written)?;
        if let Some(file) = self.gguf.files().files().iter().find(|file| file.is_changed()) {
            let path = file.path.clone();
            let _ = self.output.discard();
            return Err(PackError::SourceChanged { path });
        }
        match self.output.publish() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(PackError::TargetExists { path: self.target });
            }
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                return Err(PackError::Busy { path: self.target });
            }
            published => self.settle("finish", published)?,
        }
        Ok(Summary {
            target: self.target,
            file_bytes: self.header.file_bytes(),
            n_experts: self.catalog.n_layers() * self.catalog.n_experts(),
            n_tensors: self.header.tensors().len(),
            resumed_bytes: self.progress.resumed_bytes,
        })
    }

    /// The checksums by layer and expert.
    fn sums(&self) -> Vec<u32> {
        let n_experts = self.catalog.n_experts();
        let mut sums = vec![0; self.plan.layers.len() * n_experts];
        let keys = (0..self.plan.steps.len()).flat_map(|idx| self.plan.step_experts(idx));
        for (key, &crc32c) in keys.zip(&self.crc32c) {
            sums[key.layer.idx() * n_experts + key.expert.idx()] = crc32c;
        }
        sums
    }

    /// Fills the buffer; what is between the pieces is zero.
    fn read(&mut self, batch: &Batch) -> Result<(), PackError> {
        let files = self.gguf.files().files();
        self.buffer.clear();
        self.buffer.resize(batch.buffer_bytes + batch.rows_bytes, 0);
        for piece in &batch.pieces {
            let buffer = &mut self.buffer[piece.at..piece.at + piece.len];
            read(&files[usize::from(piece.file)], buffer, piece.from_bytes)?;
        }
        if self.n_steps_done + 1 < self.plan.steps.len() {
            // The disk reads the next step while this one is written.
            for (file, from_bytes, len_bytes) in
                self.plan.batch(self.n_steps_done + 1, &self.catalog).ranges()
            {
                hints::will_need(&files[usize::from(file)], from_bytes, len_bytes);
            }
        }
        for (file, from_bytes, len_bytes) in batch.ranges() {
            hints::done_reading(&files[usize::from(file)], from_bytes, len_bytes);
        }
        Ok(())
    }

    /// Makes the rows that get another type.
    fn recode(&mut self, batch: &Batch) -> Result<(), PackError> {
        let Some(recode) = self.recode.filter(|_| !batch.recoded.is_empty()) else { return Ok(()) };
        let (target, source) = self.buffer.split_at_mut(batch.buffer_bytes);
        recode.recode(rows(self.gguf, &batch.recoded, source, target)).map_err(|source| {
            let _ = self.output.discard();
            PackError::Recode { path: self.gguf.files().path(0), source }
        })
    }

    /// Checksums of the experts that were read, checked against those that the source has.
    fn check(&mut self, batch: &Batch) -> Result<Vec<u32>, PackError> {
        let mut sums = Vec::with_capacity(batch.experts.len());
        for moved in &batch.experts {
            let layout = &self.plan.layers[moved.key.layer.idx()].layout;
            let lens = [layout.gate, layout.up, layout.down].map(|part| part.bytes());
            let parts = [0, 1, 2].map(|i| &self.buffer[moved.parts_at[i]..moved.parts_at[i] + lens[i]]);
            let found = packed::record_crc32c(layout, parts);
            let record = self.catalog.record(moved.key).expect("the plan was made for this catalog");
            if let Some(expected) = record.crc32c.filter(|expected| *expected != found) {
                let _ = self.output.discard();
                let range = record.whole.unwrap_or(record.parts[0]);
                let path = self.gguf.files().path(range.file);
                let (key, offset_bytes) = (moved.key, range.offset_bytes);
                return Err(PackError::Checksum { key, path, offset_bytes, found, expected });
            }
            sums.push(found);
        }
        Ok(sums)
    }

    fn checkpoint(&mut self) -> Result<(), PackError> {
        let entry = journal::entry(&self.fingerprint, self.n_steps_done, &self.crc32c[self.n_noted..]);
        let noted = self.output.sync().and_then(|()| self.output.note(&entry));
        self.settle("sync", noted)?;
        (self.unsynced_bytes, self.n_noted) = (0, self.crc32c.len());
        Ok(())
    }

    /// Turns the system's reason into ours; a full disk gets back what was taken from it.
    fn settle<T>(&mut self, doing: &'static str, result: io::Result<T>) -> Result<T, PackError> {
        result.map_err(|source| {
            let is_full = is_full(&source);
            // Before the disk has it back, for that is what is missing.
            let error = self.failure(doing, source);
            if is_full {
                let _ = self.output.discard();
            }
            error
        })
    }

    /// The system's reason as ours.
    fn failure(&self, doing: &'static str, source: io::Error) -> PackError {
        let path = self.target.clone();
        if !is_full(&source) {
            return PackError::Write { doing, path, source };
        }
        let need_bytes = self.left_bytes();
        let measured = || Some(Shortage { need_bytes, free_bytes: self.output.free_bytes()? });
        match Shortage::of(&source).or_else(measured) {
            Some(Shortage { need_bytes, free_bytes }) if free_bytes < need_bytes => {
                PackError::NoSpace { path, need_bytes, free_bytes }
            }
            _ => PackError::Limit { path, need_bytes, source },
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(error.kind(), Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge)
}
