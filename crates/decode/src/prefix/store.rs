//! Conversations that are kept on disk: a folder with a file for each.
//!
//! A file's name begins with the number of its last use, so that the order of use outlives the process without a clock. The
//! folder is one process's at a time, by the lock of a file in it: nobody throws away what another writes.

mod index;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use forerun_compute::Checkpoint;
use forerun_model::TokenId;
use forerun_storage::exclusive::{sync_folder, try_lock};

use super::format::{Header, Rows, Summed, Unusable, write};
use super::source::{Source, alike, read_values, usable};
use super::{PrefixDisk, PrefixWarning};
use crate::engine::SavedShape;
use index::{Indexed, Known, UNFINISHED, file_name, hashes, is_unfinished, read_name};

/// What is written at once.
const WRITE_BYTES: usize = 256 << 10;

/// What happened on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Files that can be used.
    pub entries: usize,
    /// Bytes of all files, those of other models too.
    pub bytes: u64,
    /// Files that a conversation went on from.
    pub hits: u64,
    /// Bytes written by this process.
    pub bytes_written: u64,
    /// Bytes read by this process.
    pub bytes_read: u64,
}

/// The folder.
/// The file whose lock says that a folder is in use.
const LOCK: &str = ".lock";

#[derive(Debug)]
pub(super) struct Store {
    config: PrefixDisk,
    /// Locked for as long as it is open: two processes would throw away what the other writes.
    _lock: File,
    shape: SavedShape,
    files: Vec<Indexed>,
    n_uses: u64,
    is_used_up: bool,
    stats: DiskStats,
    warnings: Vec<PrefixWarning>,
}

impl Store {
    /// Opens the folder, makes it if there is none, and reads the header of each file.
    ///
    /// # Errors
    /// The system's reason when that isn't possible.
    pub(super) fn open(config: PrefixDisk, shape: SavedShape) -> io::Result<Self> {
        make_folder(&config.folder)?;
        let lock =
            OpenOptions::new().create(true).write(true).truncate(false).open(config.folder.join(LOCK))?;
        if !try_lock(&lock)? {
            let words = format!("another process keeps conversations in {}", config.folder.display());
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, words));
        }
        let mut store = Self {
            config,
            _lock: lock,
            shape,
            files: Vec::new(),
            n_uses: 0,
            is_used_up: false,
            stats: DiskStats::default(),
            warnings: Vec::new(),
        };
        for entry in fs::read_dir(&store.config.folder)? {
            store.look_at(&entry?.path());
        }
        store.bound(0, None);
        Ok(store)
    }

    pub(super) fn stats(&self) -> DiskStats {
        let entries = self.files.iter().filter(|file| file.known.is_some()).count();
        DiskStats { entries, bytes: self.bytes(), ..self.stats }
    }

    /// What was said since it was asked last.
    pub(super) fn take_warnings(&mut self) -> Vec<PrefixWarning> {
        std::mem::take(&mut self.warnings)
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Enters a file of the folder into the index, or says why it isn't used.
    fn look_at(&mut self, path: &Path) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if is_unfinished(&name) {
            // Left by a process that ended while it wrote.
            let _ = fs::remove_file(path);
            return;
        }
        let Some(used) = read_name(&name) else { return };
        match self.read_header(path) {
            Ok((bytes, header)) => {
                let known = Some(Known::new(&header, self.shape.state_values > 0));
                self.files.push(Indexed { path: path.to_owned(), bytes, used, known });
            }
            Err(reason) => self.refuse(path, used, reason),
        }
        self.n_uses = self.n_uses.max(used);
    }

    /// A file that can't be used: one that is damaged goes, one of others counts.
    fn refuse(&mut self, path: &Path, used: u64, reason: Unusable) {
        if reason.is_damaged() {
            let _ = fs::remove_file(path);
        } else if reason != Unusable::Foreign
            && let Ok(metadata) = fs::metadata(path)
        {
            let path = path.to_owned();
            self.files.push(Indexed { path, bytes: metadata.len(), used, known: None });
        }
        self.warnings.push(PrefixWarning::Unusable { path: path.to_owned(), reason });
    }

    fn read_header(&mut self, path: &Path) -> Result<(u64, Header), Unusable> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let header = Header::read(&mut BufReader::new(file), bytes, &self.shape)?;
        self.stats.bytes_read += header.state_offset(&self.shape, 0);
        Ok((bytes, header))
    }

    /// The file of which the most can probably be used for `prompt`, and how many tokens.
    pub(super) fn find(&self, prompt: &[TokenId]) -> Option<(PathBuf, usize)> {
        if self.files.is_empty() {
            return None;
        }
        let hashes = hashes(prompt);
        let found = self.files.iter().filter_map(|file| Some((file, file.known.as_ref()?.usable(&hashes))));
        let (file, len) = found.max_by_key(|(_, len)| *len)?;
        (len > 0).then(|| (file.path.clone(), len))
    }

    /// Whether a file has just these tokens.
    fn has(&self, tokens: &[TokenId]) -> Option<usize> {
        let hashes = hashes(tokens);
        let is_whole = |known: &Known| known.len() == tokens.len() && known.begins(&hashes);
        self.files.iter().position(|file| file.known.as_ref().is_some_and(is_whole))
    }

    /// Reads the state of the file from which `prompt` goes on into `checkpoint`; returns how many of its tokens that are, and
    /// what reads their rows.
    ///
    /// # Errors
    /// [`Unusable`]; then [`Self::give_up`] is next.
    pub(super) fn open_file(
        &mut self,
        path: &Path,
        prompt: &[TokenId],
        checkpoint: &mut Checkpoint,
    ) -> Result<(usize, Rows<impl Read + use<>>), Unusable> {
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let mut file = BufReader::new(file);
        let header = Header::read(&mut file, bytes, &self.shape)?;
        let common = alike(&header.tokens, prompt);
        let n_values = self.shape.state_values;
        let len = usable(common, header.lens.iter().copied(), n_values > 0);
        checkpoint.len = len;
        checkpoint.values.clear();
        if let Some(i) = header.lens.iter().position(|at| *at == len).filter(|_| n_values > 0) {
            file.seek(SeekFrom::Start(header.state_offset(&self.shape, i)))?;
            let mut summed = Summed::new(&mut file, 4 * n_values as u64);
            read_values(&mut summed, n_values, &mut checkpoint.values)?;
            summed.finish()?;
        }
        file.seek(SeekFrom::Start(header.rows_offset(&self.shape)))?;
        self.stats.bytes_read += header.state_offset(&self.shape, 0) + 4 * n_values as u64;
        Ok((len, Rows::new(file, self.shape.row_bytes, header.tokens.len())))
    }

    /// A file was used, and so many bytes of its rows were read.
    pub(super) fn used(&mut self, path: &Path, n_read: u64) {
        self.stats.hits += 1;
        self.stats.bytes_read += n_read;
        if let Some(i) = self.files.iter().position(|file| file.path == path) {
            self.touch(i);
        }
    }

    /// A file can't be used after all.
    pub(super) fn give_up(&mut self, path: &Path, reason: Unusable) {
        let Some(i) = self.files.iter().position(|file| file.path == path) else { return };
        let used = self.files.remove(i).used;
        self.refuse(path, used, reason);
    }

    /// Gives a file the number of the newest use.
    fn touch(&mut self, i: usize) {
        self.n_uses += 1;
        let file = &mut self.files[i];
        let name = file.path.file_name().unwrap_or_default().to_string_lossy();
        let path = file.path.with_file_name(file_name(self.n_uses, &name));
        if fs::rename(&file.path, &path).is_ok() {
            (file.path, file.used) = (path, self.n_uses);
        }
    }

    /// Removes the files that were used longest ago until there is room for `more` bytes; `false` when there can't be.
    fn bound(&mut self, more: u64, spared: Option<&Path>) -> bool {
        while self.bytes().saturating_add(more) > self.config.bytes_max {
            let may_go = (0..self.files.len()).filter(|&i| Some(&*self.files[i].path) != spared);
            let Some(oldest) = may_go.min_by_key(|&i| self.files[i].used) else { return false };
            let _ = fs::remove_file(self.files.remove(oldest).path);
        }
        true
    }

    /// Bytes that may still be written, and aren't more than the folder holds.
    pub(super) fn room(&self) -> u64 {
        let left = self.config.write_bytes_max.saturating_sub(self.stats.bytes_written);
        if self.is_used_up { 0 } else { left.min(self.config.bytes_max) }
    }

    /// Bytes of a file of `source`, if it would be written: it isn't there, and may still be.
    pub(super) fn would_write(&self, source: &dyn Source) -> Option<u64> {
        let bytes = Header::file_bytes(&self.shape, source.tokens().len(), source.lens().len());
        let fits = bytes <= self.config.bytes_max;
        (fits && !self.is_used_up && self.has(source.tokens()).is_none()).then_some(bytes)
    }

    /// Writes `source` as a file, in place of those that it goes on from. What keeps it from that becomes a warning.
    pub(super) fn keep(&mut self, source: &dyn Source, spared: Option<&Path>) {
        if let Some(i) = self.has(source.tokens()) {
            return self.touch(i);
        }
        let Some(bytes) = self.would_write(source) else { return };
        if self.stats.bytes_written.saturating_add(bytes) > self.config.write_bytes_max {
            self.is_used_up = true;
            let (written, most) = (self.stats.bytes_written, self.config.write_bytes_max);
            return self.warnings.push(PrefixWarning::WriteBudget { written, most });
        }
        let hashes = hashes(source.tokens());
        let goes_on_from = |file: &Indexed| {
            Some(&*file.path) != spared && file.known.as_ref().is_some_and(|known| known.begins(&hashes))
        };
        while let Some(i) = self.files.iter().position(goes_on_from) {
            let _ = fs::remove_file(self.files.remove(i).path);
        }
        if !self.bound(bytes, spared) {
            return;
        }
        self.n_uses += 1;
        let hash = hashes.last().copied().unwrap_or_default();
        let name = file_name(self.n_uses, &format!("{:016x}", hash ^ self.shape.row_bytes as u64));
        let path = self.config.folder.join(name);
        match self.write(source, &path) {
            Ok(()) => {
                let header = Header { tokens: source.tokens().to_vec(), lens: source.lens() };
                let known = Some(Known::new(&header, self.shape.state_values > 0));
                self.files.push(Indexed { path, bytes, used: self.n_uses, known });
            }
            Err(error) => self.warnings.push(PrefixWarning::Write { path, kind: error.kind() }),
        }
    }

    /// Writes a whole file, or none.
    fn write(&mut self, source: &dyn Source, path: &Path) -> io::Result<()> {
        let unfinished = path.with_extension(format!("{}{UNFINISHED}", std::process::id()));
        let written = self.write_to(source, &unfinished).and_then(|()| fs::rename(&unfinished, path));
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written?;
        sync_folder(&self.config.folder)
    }

    fn write_to(&mut self, source: &dyn Source, path: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let counted = Counted { file: options.open(path)?, n: &mut self.stats.bytes_written };
        let mut out = BufWriter::with_capacity(WRITE_BYTES, counted);
        write(source, &self.shape, &mut out)?;
        out.flush()?;
        out.get_ref().file.sync_all()
    }
}

/// Counts what is written, whatever becomes of it.
struct Counted<'a> {
    file: File,
    n: &'a mut u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.file.write(bytes)?;
        *self.n += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Prompts are private: only their owner looks into the folder.
fn make_folder(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}
