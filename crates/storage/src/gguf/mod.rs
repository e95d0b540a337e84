//! A bounded reader of GGUF versions 2 and 3, little-endian: one file, a split set, or bytes in memory; and a writer
//! of version 3.
//!
//! Only headers are read. Every count, length and product is checked against the file's real length before memory is
//! taken for it, so that a header costs at most as many bytes as its file has, and a small constant.

mod header;
mod metadata;
mod split;
mod tensors;
mod value;
mod writer;

use std::path::Path;

use bytes::Bytes;

pub use metadata::Metadata;
pub use tensors::{Dims, TensorInfo};
pub use value::{Array, Value};
pub use writer::{HeaderWriter, TensorSpec};

use crate::OpenError;
use crate::error::HeaderError;
use crate::files::{DataFile, FileSet};
use header::Cursor;
use split::Located;

/// An opened model: its files, the metadata of the first one, and the tensors of all.
#[derive(Debug)]
pub struct Gguf {
    /// What the header says; large arrays can be taken out of it.
    pub metadata: Metadata,
    files: FileSet,
    tensors: Vec<TensorInfo>,
    /// Positions in `tensors`, sorted by name.
    by_name: Vec<u32>,
    /// Bytes of each file's header, without what pads it.
    header_bytes: Vec<u64>,
}

impl Gguf {
    /// Opens the model at `path`: a file, any shard of a split set, or a folder that holds one model.
    ///
    /// # Errors
    /// [`OpenError`] names the file and what is wrong with it.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let located = split::locate(path)?;
        let files = located.paths.iter().map(|path| DataFile::open(path)).collect::<Result<_, _>>()?;
        Self::read(&located, FileSet::new(files))
    }

    /// Opens a model in memory, such as one inside the program; `name` is for messages.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong with it.
    pub fn open_bytes(name: &str, bytes: Bytes) -> Result<Self, OpenError> {
        let path = Path::new(name);
        let located = Located { paths: vec![path.to_owned()], split: false };
        Self::read(&located, FileSet::new(vec![DataFile::from_bytes(path, bytes)]))
    }

    fn read(located: &Located, files: FileSet) -> Result<Self, OpenError> {
        let mut shards = Vec::new();
        for (idx, file) in files.files().iter().enumerate() {
            let shard = Header::read(idx, file)?;
            split::check(located, idx, &shard.metadata)?;
            shards.push(shard);
        }
        let n_tensors: usize = shards.iter().map(|shard| shard.tensors.len()).sum();
        for (path, shard) in located.paths.iter().zip(&shards) {
            split::check_total(path, &shard.metadata, n_tensors as u64)?;
        }
        let header_bytes = shards.iter().map(|shard| shard.len_bytes).collect();
        let mut shards = shards.into_iter();
        let Header { metadata, mut tensors, mut by_name, .. } = shards.next().unwrap_or_default();
        if shards.len() > 0 {
            tensors.extend(shards.flat_map(|shard| shard.tensors));
            by_name = (0..).take(tensors.len()).collect();
            by_name.sort_unstable_by(|&a, &b| tensors[a as usize].name.cmp(&tensors[b as usize].name));
        }
        let gguf = Self { metadata, files, tensors, by_name, header_bytes };
        gguf.check_names().map(|()| gguf)
    }

    /// Refuses a tensor that two files hold.
    fn check_names(&self) -> Result<(), OpenError> {
        for pair in self.by_name.windows(2) {
            let [a, b] = [&self.tensors[pair[0] as usize], &self.tensors[pair[1] as usize]];
            if a.name == b.name {
                let (first, second) = (self.files.path(a.file), self.files.path(b.file));
                return Err(OpenError::TensorTwice { name: a.name.clone(), first, second });
            }
        }
        Ok(())
    }

    /// The files, in the order of their shards.
    pub fn files(&self) -> &FileSet {
        &self.files
    }

    /// Bytes of each file's header, up to the end of its list of tensors.
    pub fn header_bytes(&self) -> &[u64] {
        &self.header_bytes
    }

    /// All tensors, in the order of files and headers.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Fills `buffer` with bytes of `tensor`, from its byte `offset_bytes` on.
    ///
    /// # Errors
    /// [`OpenError::Io`] when the system can't read them.
    ///
    /// # Panics
    /// When the tensor has fewer bytes, or is one of another model's.
    pub fn read_tensor(
        &self,
        tensor: &TensorInfo,
        offset_bytes: u64,
        buffer: &mut [u8],
    ) -> Result<(), OpenError> {
        let end = offset_bytes.checked_add(buffer.len() as u64);
        assert!(end.is_some_and(|end| end <= tensor.len_bytes), "bytes of the tensor");
        let file = &self.files.files()[usize::from(tensor.file)];
        let read = file.read_exact_at(buffer, tensor.offset_bytes + offset_bytes);
        read.map_err(|source| OpenError::Io { doing: "read", path: file.path.clone(), source })
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        let at = |i: &u32| self.tensors[*i as usize].name.as_str();
        let idx = self.by_name.binary_search_by(|i| at(i).cmp(name)).ok()?;
        Some(&self.tensors[self.by_name[idx] as usize])
    }
}

/// What the header of one file says.
#[derive(Default)]
struct Header {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: Vec<u32>,
    len_bytes: u64,
}

impl Header {
    fn read(idx: usize, file: &DataFile) -> Result<Self, OpenError> {
        let mut cursor = Cursor::new(file.reader(), file.len_bytes);
        let idx = u16::try_from(idx).expect("a set has at most u16::MAX files");
        Self::parse(&mut cursor, idx).map_err(|problem| OpenError::Header {
            path: file.path.clone(),
            offset_bytes: cursor.at(),
            problem,
        })
    }

    fn parse(cursor: &mut Cursor<'_>, file: u16) -> Result<Self, HeaderError> {
        let counts = cursor.start()?;
        let metadata = Metadata::read(cursor, counts)?;
        let alignment = metadata.alignment()?;
        let mut tensors = tensors::read(cursor, counts.n_tensors, file)?;
        let mut by_name: Vec<u32> = cursor.room("the list of tensors", counts.n_tensors, 0)?;
        by_name.extend((0..).take(tensors.len()));
        let len_bytes = cursor.at();
        let data_start = len_bytes.next_multiple_of(alignment);
        tensors::place(&mut tensors, data_start, alignment, cursor.file_bytes())?;
        tensors::check_apart(&tensors, &mut by_name)?;
        Ok(Self { metadata, tensors, by_name, len_bytes })
    }
}
