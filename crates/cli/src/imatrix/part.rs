//! What was seen so far, in a file beside the target, and the target itself.

use std::collections::HashSet;
use std::error::Error;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::iter;
use std::path::{Path, PathBuf};

use forerun_decode::text::Literals;
use forerun_decode::{Collect, Engine, Inputs, ModelSource};
use forerun_model::LayerId;
use forerun_quantize::imatrix::{About, Entry, Partial, Reader, fed_by, write};
use forerun_storage::repack::Existing;
use forerun_storage::{Gguf, OpenError};
use sha2::{Digest, Sha256};

use super::CalibrateError;
use crate::say::say;

/// Bytes of a text that are hashed at once.
const PIECE_BYTES: usize = 1 << 16;

/// What is read: text and model, told from others.
pub(super) struct Source {
    /// The text's name, for those who ask later.
    dataset: String,
    text: String,
    model: String,
    /// Names of the model's tensors.
    tensors: HashSet<String>,
}

impl Source {
    /// Reads the text to its end, and of the model the header and its vectors, which are few bytes.
    pub(super) fn new(model: &ModelSource, path: &Path, text: &mut File) -> Result<Self, Box<dyn Error>> {
        let gguf = match model {
            ModelSource::Path(path) => Gguf::open(path)?,
            ModelSource::Embedded { name, bytes } => Gguf::open_bytes(name, bytes.clone())?,
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let read_failed = |source| CalibrateError::Read { path: path.display().to_string(), source };
        let hash = hash_text(text).map_err(read_failed)?;
        text.rewind().map_err(read_failed)?;
        Ok(Self {
            dataset: name,
            text: hash,
            model: hash_model(&gguf)?,
            tensors: gguf.tensors().iter().map(|tensor| tensor.name.clone()).collect(),
        })
    }
}

fn hash_text(text: &mut File) -> io::Result<String> {
    let (mut hasher, mut piece) = (Sha256::new(), vec![0; PIECE_BYTES]);
    loop {
        match text.read(&mut piece)? {
            0 => return Ok(hex(&hasher.finalize())),
            n => hasher.update(&piece[..n]),
        }
    }
}

/// The header's keys, names, types, axes and places of all tensors, and the first and last bytes of each: a model that was
/// trained further differs there, in norms or in matrices.
fn hash_model(gguf: &Gguf) -> Result<String, OpenError> {
    const END_BYTES: u64 = 4096;
    let mut hasher = Sha256::new();
    for (key, value) in gguf.metadata.entries() {
        hasher.update(format!("{key} {value:?}\n"));
    }
    for tensor in gguf.tensors() {
        let place = (tensor.file, tensor.offset_bytes);
        hasher.update(format!("{} {} {:?} {place:?}\n", tensor.name, tensor.quant, tensor.dims()));
        let end_bytes = END_BYTES.min(tensor.len_bytes);
        let mut bytes = vec![0; usize::try_from(end_bytes).unwrap_or(0)];
        for start in [0, tensor.len_bytes - end_bytes] {
            gguf.read_tensor(tensor, start, &mut bytes)?;
            hasher.update(&bytes);
        }
    }
    Ok(hex(&hasher.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The file under way.
pub(super) struct Part {
    out: PathBuf,
    path: PathBuf,
    source: Source,
    window: usize,
    /// Text, model and settings in one line.
    line: String,
}

impl Part {
    /// The part of the target `out`.
    pub(super) fn new(
        out: &Path,
        source: Source,
        window: usize,
        (collect, literals): (Collect, Literals),
    ) -> Self {
        let head = if collect == Collect::Layers { "" } else { ", with the head" };
        let special = if literals == Literals::Text { "" } else { ", special tokens parsed" };
        let line =
            format!("text {}, model {}, windows of {window}{head}{special}", source.text, source.model);
        let mut name = out.file_name().unwrap_or_default().to_owned();
        name.push(".forerun-part");
        Self { out: out.to_owned(), path: out.with_file_name(name), source, window, line }
    }

    /// Where it is.
    pub(super) fn path(&self) -> impl std::fmt::Display + '_ {
        self.path.display()
    }

    /// Where the whole will be.
    pub(super) fn out(&self) -> &Path {
        &self.out
    }

    /// The tensors that multiply `inputs` of `layer`.
    pub(super) fn names(&self, layer: LayerId, inputs: Inputs) -> Vec<String> {
        fed_by(layer, inputs, &|name| self.source.tensors.contains(name))
    }

    /// Puts into the engine's sums what an earlier run of the same command left, and says how many windows that was.
    /// What is of something else, or has more windows than are wanted, is left alone, unless it may be replaced.
    pub(super) fn resume(
        &self,
        engine: &Engine,
        n_windows: u64,
        (force, quiet): (bool, bool),
    ) -> Result<u64, Box<dyn Error>> {
        if !self.path.is_file() {
            return Ok(0);
        }
        let reader = Reader::open(&self.path).map_err(|source| CalibrateError::NoPart {
            path: self.path().to_string(),
            source: Box::new(source),
        })?;
        let earlier = reader.about().partial.as_ref();
        let earlier = earlier.filter(|part| part.source == self.line && part.windows <= n_windows);
        let (Some(earlier), true) = (earlier, self.fits(engine, &reader)?) else {
            let path = self.path().to_string();
            return if force { Ok(0) } else { Err(CalibrateError::Other { path }.into()) };
        };
        let mut sums = engine.input_sums().expect("the engine was told to collect");
        for (layer, inputs, sums) in sums.iter_mut() {
            let Some(name) = self.names(layer, inputs).into_iter().next() else { continue };
            let Some(found) = reader.get(&name)? else { continue };
            let n = found.n_matrices();
            let values: Vec<f32> = (0..n).flat_map(|i| found.sums(i)).copied().collect();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "counts that we wrote"
            )]
            let counts: Vec<u32> = (0..n).map(|i| found.count(i) as u32).collect();
            sums.restore(&values, &counts, found.moments());
        }
        if !quiet {
            say!("going on after {} of {n_windows} windows, which are in {}", earlier.windows, self.path());
        }
        Ok(earlier.windows)
    }

    /// Whether the file has an entry of the right size for every sum.
    fn fits(&self, engine: &Engine, reader: &Reader) -> Result<bool, Box<dyn Error>> {
        let sums = engine.input_sums().expect("the engine was told to collect");
        for (layer, inputs, sums) in sums.iter() {
            let Some(name) = self.names(layer, inputs).into_iter().next() else { continue };
            let found = reader.get(&name)?;
            let size = found.map(|found| {
                (found.n_matrices(), found.n_matrices() * found.n_cols(), found.moments().len())
            });
            if size != Some((sums.counts().len(), sums.sums().len(), sums.moments().len())) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes what the engine has seen in `n_windows` windows, to go on from later.
    pub(super) fn save(&self, engine: &Engine, n_windows: u64) -> Result<(), CalibrateError> {
        let partial = Some(Partial { source: self.line.clone(), windows: n_windows });
        self.write(&self.path, Existing::Replace, engine, (n_windows, partial))
    }

    /// Writes the whole under its name and removes the part.
    pub(super) fn publish(&self, engine: &Engine, n_windows: u64, force: bool) -> Result<(), CalibrateError> {
        let existing = if force { Existing::Replace } else { Existing::Refuse };
        self.write(&self.out, existing, engine, (n_windows, None))?;
        match fs::remove_file(&self.path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(CalibrateError::Remove { path: self.path().to_string(), source })
            }
            _ => Ok(()),
        }
    }

    fn write(
        &self,
        path: &Path,
        existing: Existing,
        engine: &Engine,
        (n_windows, partial): (u64, Option<Partial>),
    ) -> Result<(), CalibrateError> {
        let about = About {
            datasets: vec![self.source.dataset.clone()],
            chunk_count: u32::try_from(n_windows).unwrap_or(u32::MAX),
            chunk_size: u32::try_from(self.window).unwrap_or(u32::MAX),
            partial,
        };
        let sums = engine.input_sums().expect("the engine was told to collect");
        let mut seen = Vec::new();
        for (layer, inputs, sums) in sums.iter() {
            #[expect(clippy::cast_precision_loss, reason = "exact up to 2^24 tokens, as the format has them")]
            let counts: Vec<f32> = sums.counts().iter().map(|count| *count as f32).collect();
            // Moments are many, so they stand under the first name only.
            let moments = [sums.moments()].into_iter().chain(iter::repeat(&[][..]));
            let named = self.names(layer, inputs).into_iter().zip(moments);
            seen.extend(named.map(|(name, moments)| (name, sums.sums(), counts.clone(), moments)));
        }
        seen.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let entries = seen.iter().map(|(name, sums, counts, moments)| Entry { name, sums, counts, moments });
        let entries: Vec<_> = entries.collect();
        write(path, existing, &about, &entries).map_err(|source| CalibrateError::Write {
            path: path.display().to_string(),
            source: Box::new(source),
        })
    }
}
