//! Writes importance matrices as GGUF: a temporary file beside the target, made safe, then given the target's name.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use forerun_model::QuantType;
use forerun_storage::exclusive::sync_folder;
use forerun_storage::gguf::{Array, Dims, HeaderWriter, TensorSpec, Value};
use forerun_storage::repack::Existing;
use tempfile::{Builder, NamedTempFile};

use super::{About, Imatrix};
use crate::ImatrixError;

/// What kind of file it is.
pub(super) const TYPE: &str = "general.type";
/// Its value here.
pub(super) const IMATRIX: &str = "imatrix";
/// The texts.
pub(super) const DATASETS: &str = "imatrix.datasets";
/// Windows of text.
pub(super) const CHUNK_COUNT: &str = "imatrix.chunk_count";
/// Tokens of a window.
pub(super) const CHUNK_SIZE: &str = "imatrix.chunk_size";
/// Ours, in a file that isn't whole: what was read and how.
pub(super) const SOURCE: &str = "forerun.imatrix.source";
/// Ours, in a file that isn't whole: windows that are counted.
pub(super) const WINDOWS: &str = "forerun.imatrix.windows";
/// Ending of the tensors of sums, after a dot.
pub(super) const SUMS: &str = "in_sum2";
/// Ending of the tensors of counts, after a dot.
pub(super) const COUNTS: &str = "counts";

/// Ours: ending of the tensors of second moments, after a dot.
pub(super) const MOMENTS: &str = "in_moments";

/// Values that are written at once.
const PIECE_VALUES: usize = 1 << 14;

/// What was seen of one tensor's inputs, wherever it is kept: several tensors may share it.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The model's tensor.
    pub name: &'a str,
    /// Sums of squares, `[counts, columns]`.
    pub sums: &'a [f32],
    /// Tokens that each matrix saw.
    pub counts: &'a [f32],
    /// Sums of second moments, or none; see [`super::Importance::with_moments`].
    pub moments: &'a [f32],
}

impl<'a> Entry<'a> {
    fn lists(&self) -> impl Iterator<Item = &'a [f32]> {
        let moments = Some(self.moments).filter(|moments| !moments.is_empty());
        [self.sums, self.counts].into_iter().chain(moments)
    }
}

impl Imatrix {
    /// Writes the file `path`, which appears under its name, or is replaced, when it is whole and safe.
    ///
    /// # Errors
    /// [`ImatrixError::Io`] when the system refuses, [`ImatrixError::Layout`] for names that no file can have,
    /// [`ImatrixError::Empty`] for no entries, which readers refuse.
    pub fn write(&self, path: &Path) -> Result<(), ImatrixError> {
        let entries = self.entries.iter().map(|(name, of)| Entry {
            name,
            sums: &of.sums,
            counts: &of.counts,
            moments: &of.moments,
        });
        write(path, Existing::Replace, &self.about, &entries.collect::<Vec<_>>())
    }
}

/// Writes `entries` to the file `path`, as [`Imatrix::write`] does, from where they are; sorted by name, they give the same
/// bytes. A file that is there is replaced or kept, as `existing` says.
///
/// # Errors
/// Those of [`Imatrix::write`], [`ImatrixError::Size`] for sums that don't fit their counts, and [`ImatrixError::Empty`]
/// for no entries, which readers refuse.
pub fn write(
    path: &Path,
    existing: Existing,
    about: &About,
    entries: &[Entry<'_>],
) -> Result<(), ImatrixError> {
    if entries.is_empty() {
        return Err(ImatrixError::Empty { path: path.to_owned() });
    }
    let tensors: Vec<Vec<TensorSpec>> = entries.iter().map(specs).collect::<Result<_, _>>()?;
    let tensors = tensors.into_iter().flatten().collect();
    let header = HeaderWriter::new(keys(about), tensors)
        .map_err(|problem| ImatrixError::Layout { path: path.to_owned(), problem })?;
    let failed = |source| ImatrixError::Io { doing: "write", path: path.to_owned(), source };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = temporary(folder).map_err(failed)?;
    put(&file, &header, entries).map_err(failed)?;
    let named = match existing {
        Existing::Refuse => file.persist_noclobber(path),
        Existing::Replace => file.persist(path),
    };
    named.map_err(|error| failed(error.error))?;
    sync_folder(folder).map_err(failed)
}

fn keys(about: &About) -> Vec<(String, Value)> {
    let mut keys = vec![
        (TYPE, Value::Text(IMATRIX.to_owned())),
        (DATASETS, Value::Array(Array::Text(about.datasets.clone()))),
        (CHUNK_COUNT, Value::U32(about.chunk_count)),
        (CHUNK_SIZE, Value::U32(about.chunk_size)),
    ];
    if let Some(partial) = &about.partial {
        keys.push((SOURCE, Value::Text(partial.source.clone())));
        keys.push((WINDOWS, Value::U64(partial.windows)));
    }
    keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Sums, then counts, then moments if there are any; a single matrix has one axis less, as ggml writes it.
fn specs(entry: &Entry<'_>) -> Result<Vec<TensorSpec>, ImatrixError> {
    let (n_sums, n_matrices) = (entry.sums.len(), entry.counts.len());
    let n_cols = n_sums.checked_div(n_matrices).unwrap_or(0);
    if n_cols == 0 || n_cols * n_matrices != n_sums {
        return Err(ImatrixError::Size { name: entry.name.to_owned(), n_sums, n_matrices, n_cols });
    }
    let spec = |ending: &str, n_cols: usize| {
        let sizes = [n_cols as u64, n_matrices as u64];
        let dims = Dims::new(if n_matrices == 1 { &sizes[..1] } else { &sizes }).expect("one axis or two");
        TensorSpec { name: format!("{}.{ending}", entry.name), quant: QuantType::F32, dims }
    };
    let mut specs = vec![spec(SUMS, n_cols), spec(COUNTS, 1)];
    if !entry.moments.is_empty() {
        specs.push(spec(MOMENTS, entry.moments.len()));
    }
    Ok(specs)
}

fn temporary(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = Builder::new();
    builder.prefix(".forerun-imatrix-").suffix(".tmp");
    // Like any file that is made, not for its owner alone.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder)
}

fn put(file: &NamedTempFile, header: &HeaderWriter, entries: &[Entry<'_>]) -> io::Result<()> {
    let mut out = BufWriter::new(file.as_file());
    header.write(&mut out)?;
    let mut at = header.offset_bytes(0);
    let lists = entries.iter().flat_map(Entry::lists);
    let ends = (1..header.tensors().len()).map(|idx| header.offset_bytes(idx)).chain([header.file_bytes()]);
    for (list, end) in lists.zip(ends) {
        for piece in list.chunks(PIECE_VALUES) {
            let bytes: Vec<u8> = piece.iter().flat_map(|value| value.to_le_bytes()).collect();
            out.write_all(&bytes)?;
            at += bytes.len() as u64;
        }
        io::copy(&mut io::Read::take(io::repeat(0), end - at), &mut out)?;
        at = end;
    }
    out.flush()?;
    file.as_file().sync_all()
}
