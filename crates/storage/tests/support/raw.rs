//! Bytes of a GGUF file, field by field, so that any one of them can be wrong.

/// Metadata type ids.
pub const U8: u32 = 0;
pub const U16: u32 = 2;
pub const U32: u32 = 4;
pub const I32: u32 = 5;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const TEXT: u32 = 8;
pub const ARRAY: u32 = 9;
pub const U64: u32 = 10;

/// Appends fields.
#[derive(Clone, Debug, Default)]
pub struct Raw(pub Vec<u8>);

impl Raw {
    /// The fixed part of a version 3 header.
    pub fn start(n_tensors: u64, n_entries: u64) -> Self {
        Self::default().bytes(b"GGUF").u32(3).u64(n_tensors).u64(n_entries)
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn u8(self, value: u8) -> Self {
        self.bytes(&[value])
    }

    pub fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn i32(self, value: i32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn f32(self, value: f32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Length and bytes.
    pub fn text(self, text: impl AsRef<[u8]>) -> Self {
        self.u64(text.as_ref().len() as u64).bytes(text.as_ref())
    }

    /// Key and type of an entry; the value follows.
    pub fn entry(self, key: &str, kind: u32) -> Self {
        self.text(key).u32(kind)
    }

    /// Key, element type and count of an array; the entries follow.
    pub fn array(self, key: &str, kind: u32, count: u64) -> Self {
        self.entry(key, ARRAY).u32(kind).u64(count)
    }

    /// An entry of the tensor list.
    pub fn tensor(self, name: impl AsRef<[u8]>, dims: &[u64], kind: u32, offset_bytes: u64) -> Self {
        let mut raw = self.text(name).u32(u32::try_from(dims.len()).unwrap());
        for &size in dims {
            raw = raw.u64(size);
        }
        raw.u32(kind).u64(offset_bytes)
    }

    pub fn pad(mut self, alignment: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(alignment), 0);
        self
    }

    pub fn zeros(mut self, n: usize) -> Self {
        self.0.resize(self.0.len() + n, 0);
        self
    }
}

/// One tensor of a [`File`].
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub kind: u32,
    pub data: Vec<u8>,
}

/// A well-formed file: entries (each whole, with key and type), tensors, alignment.
#[derive(Clone, Debug)]
pub struct File {
    pub entries: Vec<Raw>,
    pub tensors: Vec<Tensor>,
    pub alignment: usize,
}

impl Default for File {
    fn default() -> Self {
        Self { entries: Vec::new(), tensors: Vec::new(), alignment: 32 }
    }
}

impl File {
    pub fn entry(mut self, entry: Raw) -> Self {
        self.entries.push(entry);
        self
    }

    pub fn tensor(mut self, name: &str, dims: &[u64], data: Vec<u8>) -> Self {
        self.tensors.push(Tensor { name: name.into(), dims: dims.to_vec(), kind: 0, data });
        self
    }

    pub fn write(&self) -> Vec<u8> {
        let mut raw = Raw::start(self.tensors.len() as u64, self.entries.len() as u64);
        for entry in &self.entries {
            raw = raw.bytes(&entry.0);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            raw = raw.tensor(&tensor.name, &tensor.dims, tensor.kind, offset as u64);
            offset = (offset + tensor.data.len()).next_multiple_of(self.alignment);
        }
        for tensor in &self.tensors {
            raw = raw.pad(self.alignment).bytes(&tensor.data);
        }
        raw.pad(self.alignment).0
    }
}
