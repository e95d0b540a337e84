//! Reads importance matrices: GGUF files, and through [`super::dat`] the older form.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use forerun_model::QuantType;
use forerun_storage::gguf::{Array, Value};
use forerun_storage::{DataFile, Gguf, OpenError, TensorInfo};

use super::write::{
    CHUNK_COUNT, CHUNK_SIZE, COUNTS, DATASETS, IMATRIX, MOMENTS, SOURCE, SUMS, TYPE, WINDOWS,
};
use super::{About, Imatrix, Importance, Partial, dat};
use crate::ImatrixError;

/// What a file of the newer form begins with.
const MAGIC: &[u8; 4] = b"GGUF";

impl Imatrix {
    /// Reads the file `path`, of either form. Entries that are no numbers, or negative, are kept as they are:
    /// [`Importance::mean_squares`] takes no notice of them.
    ///
    /// # Errors
    /// [`ImatrixError`] names the file, the entry and what is wrong with it.
    pub fn open(path: &Path) -> Result<Self, ImatrixError> {
        let io = |doing| move |source| ImatrixError::Io { doing, path: path.to_owned(), source };
        // Asked before opening, since opening a pipe would wait for its writer.
        let metadata = fs::metadata(path).map_err(io("open"))?;
        if !metadata.is_file() {
            return Err(OpenError::NotAFile { path: path.to_owned() }.into());
        }
        let mut magic = [0; 4];
        let file = DataFile::open(path)?;
        if file.len_bytes >= 4 {
            file.read_exact_at(&mut magic, 0).map_err(io("read"))?;
        }
        if &magic == MAGIC {
            return from_gguf(path, Gguf::open(path)?);
        }
        let input = BufReader::new(File::open(path).map_err(io("open"))?);
        dat::read(path, Box::new(input), file.len_bytes)
    }

    /// Reads a file of either form that is in memory; `name` is for messages.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_bytes(name: &str, bytes: &Bytes) -> Result<Self, ImatrixError> {
        let path = Path::new(name);
        if bytes.starts_with(MAGIC) {
            return from_gguf(path, Gguf::open_bytes(name, bytes.clone())?);
        }
        dat::read(path, Box::new(&bytes[..]), bytes.len() as u64)
    }
}

fn from_gguf(path: &Path, gguf: Gguf) -> Result<Imatrix, ImatrixError> {
    let reader = Reader::new(path, gguf)?;
    let mut imatrix = Imatrix { about: reader.about().clone(), ..Imatrix::default() };
    for (name, of) in &reader.tensors {
        imatrix.insert(name.clone(), reader.importance(name, of)?);
    }
    Ok(imatrix)
}

/// A GGUF importance matrix whose entries are read one by one, so that no more than one is in memory.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    gguf: Gguf,
    about: About,
    /// By the model's tensor.
    tensors: BTreeMap<String, OfTensor>,
}

/// The file's tensors that tell of one of the model's.
#[derive(Debug)]
struct OfTensor {
    sums: TensorInfo,
    counts: TensorInfo,
    moments: Option<TensorInfo>,
}

impl Reader {
    /// Opens the file `path` and reads its header.
    ///
    /// # Errors
    /// As [`Imatrix::open`]; the older form is refused.
    pub fn open(path: &Path) -> Result<Self, ImatrixError> {
        Self::new(path, Gguf::open(path)?)
    }

    fn new(path: &Path, gguf: Gguf) -> Result<Self, ImatrixError> {
        match gguf.metadata.value(TYPE) {
            Some(Value::Text(kind)) if kind == IMATRIX => {}
            found => {
                let found = found.map_or_else(|| "absent".to_owned(), Value::to_string);
                return Err(ImatrixError::NotImatrix { path: path.to_owned(), found });
            }
        }
        let about = about(path, &gguf)?;
        let tensors = by_tensor(path, gguf.tensors())?;
        Ok(Self { path: path.to_owned(), gguf, about, tensors })
    }

    /// Where it comes from.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Reads what was seen of the tensor `name`; `None` when the file says nothing of it.
    ///
    /// # Errors
    /// [`ImatrixError`] for an entry that can't be read, or whose sizes don't fit.
    pub fn get(&self, name: &str) -> Result<Option<Importance>, ImatrixError> {
        self.tensors.get(name).map(|of| self.importance(name, of)).transpose()
    }

    /// Other writers give the counts fewer axes, so only how many there are says how many matrices.
    fn importance(&self, name: &str, of: &OfTensor) -> Result<Importance, ImatrixError> {
        let list = |tensor: &TensorInfo| floats(&self.path, &self.gguf, tensor);
        let (sums, counts) = (list(&of.sums)?, list(&of.counts)?);
        let n_cols = if sums.len().is_multiple_of(counts.len()) { sums.len() / counts.len() } else { 0 };
        let importance = Importance::new(name, n_cols, sums, counts)?;
        match &of.moments {
            Some(moments) => importance.with_moments(name, list(moments)?),
            None => Ok(importance),
        }
    }
}

/// What there is of each of the model's tensors; other tensors are left alone.
fn by_tensor(path: &Path, tensors: &[TensorInfo]) -> Result<BTreeMap<String, OfTensor>, ImatrixError> {
    let mut found: BTreeMap<&str, [Option<&TensorInfo>; 3]> = BTreeMap::new();
    for tensor in tensors {
        for (i, suffix) in [SUMS, COUNTS, MOMENTS].into_iter().enumerate() {
            let name = tensor.name.strip_suffix(suffix).and_then(|name| name.strip_suffix('.'));
            if let Some(name) = name {
                found.entry(name).or_default()[i] = Some(tensor);
            }
        }
    }
    if found.is_empty() {
        return Err(ImatrixError::Empty { path: path.to_owned() });
    }
    let whole = |(name, [sums, counts, moments]): (&str, [Option<&TensorInfo>; 3])| {
        let present = if sums.is_some() {
            SUMS
        } else if counts.is_some() {
            COUNTS
        } else {
            MOMENTS
        };
        let absent = if sums.is_some() { COUNTS } else { SUMS };
        let (Some(sums), Some(counts)) = (sums, counts) else {
            return Err(ImatrixError::Unpaired {
                path: path.to_owned(),
                name: name.to_owned(),
                present,
                absent,
            });
        };
        let (sums, counts, moments) = (sums.clone(), counts.clone(), moments.cloned());
        Ok((name.to_owned(), OfTensor { sums, counts, moments }))
    };
    found.into_iter().map(whole).collect()
}

fn floats(path: &Path, gguf: &Gguf, tensor: &TensorInfo) -> Result<Vec<f32>, ImatrixError> {
    if tensor.quant != QuantType::F32 {
        let (path, name, found) = (path.to_owned(), tensor.name.clone(), tensor.quant);
        return Err(ImatrixError::TensorType { path, name, found });
    }
    let read_failed = |source| ImatrixError::Io { doing: "read", path: path.to_owned(), source };
    let file = &gguf.files().files()[usize::from(tensor.file)];
    let n = usize::try_from(tensor.len_bytes)
        .map_err(|_| read_failed(std::io::ErrorKind::FileTooLarge.into()))?;
    let mut bytes = vec![0; n];
    file.read_exact_at(&mut bytes, tensor.offset_bytes).map_err(read_failed)?;
    Ok(super::dat::floats(&bytes))
}

fn about(path: &Path, gguf: &Gguf) -> Result<About, ImatrixError> {
    let value = |key| gguf.metadata.value(key);
    let wrong = |key, found: &Value, expected| {
        Err(ImatrixError::Key { path: path.to_owned(), key, found: found.to_string(), expected })
    };
    let number = |key: &'static str, max: u64| match value(key) {
        None => Ok(None),
        Some(found) => match found.integer().and_then(|n| u64::try_from(n).ok()).filter(|n| *n <= max) {
            None => wrong(key, found, "a number of windows or tokens").map(|()| None),
            some => Ok(some),
        },
    };
    let small = |key| Ok::<_, ImatrixError>(number(key, u64::from(u32::MAX))?.unwrap_or(0));
    let datasets = match value(DATASETS) {
        None => Vec::new(),
        Some(Value::Array(Array::Text(names))) => names.clone(),
        // A list of none, of whatever type.
        Some(Value::Array(names)) if names.is_empty() => Vec::new(),
        Some(found) => return wrong(DATASETS, found, "a list of texts").map(|()| About::default()),
    };
    let partial = match (value(SOURCE), number(WINDOWS, u64::MAX)?) {
        (Some(Value::Text(source)), Some(windows)) => Some(Partial { source: source.clone(), windows }),
        _ => None,
    };
    let [chunk_count, chunk_size] = [small(CHUNK_COUNT)?, small(CHUNK_SIZE)?];
    let [chunk_count, chunk_size] = [chunk_count, chunk_size].map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    Ok(About { datasets, chunk_count, chunk_size, partial })
}
