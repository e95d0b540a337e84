//! What can be wrong inside a GGUF header, without the file's name.

use std::io;

/// A header that can't be read, or that promises what the file doesn't hold.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The system couldn't read.
    #[error("the system could not read the header: {source}")]
    Read {
        /// The system's reason.
        source: io::Error,
    },
    /// The file begins with something else.
    #[error("not a GGUF file: it begins with {found:02x?} instead of \"GGUF\"")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// Written for big-endian machines.
    #[error("a big-endian GGUF file; only little-endian files are supported")]
    BigEndian,
    /// A version of the format that isn't read here.
    #[error("GGUF version {found} is not supported; supported: 2, 3")]
    Version {
        /// The file's version.
        found: u32,
    },
    /// A length or count points past the end of the file.
    #[error("{what} needs {need_bytes} bytes, but only {left_bytes} are left in the file")]
    End {
        /// What was to be read.
        what: String,
        /// Bytes that it needs at least.
        need_bytes: u64,
        /// Bytes between here and the end of the file.
        left_bytes: u64,
    },
    /// The header would take more memory than it may.
    #[error(
        "{what} needs {need_bytes} bytes of memory, but a header of this file may take {left_bytes} more"
    )]
    Memory {
        /// What was to be kept.
        what: String,
        /// Bytes that it would take.
        need_bytes: u64,
        /// Bytes that are left of the header's share.
        left_bytes: u64,
    },
    /// Text that isn't UTF-8.
    #[error("{what} is not valid UTF-8")]
    Utf8 {
        /// The text.
        what: String,
    },
    /// A text longer than its kind may be, or empty where it mustn't be.
    #[error("{what} has {len_bytes} bytes; it must have {min}..={max}")]
    TextLength {
        /// The text.
        what: String,
        /// Its length.
        len_bytes: u64,
        /// Shortest length that makes sense.
        min: u64,
        /// Longest length that is accepted.
        max: u64,
    },
    /// A bool that is neither 0 nor 1.
    #[error("metadata key `{key}` holds a bool of value {found}; it must be 0 or 1")]
    Bool {
        /// The key.
        key: String,
        /// The byte.
        found: u8,
    },
    /// An unknown type of value.
    #[error("metadata key `{key}` has value type {found}; types are 0..=12")]
    ValueType {
        /// The key.
        key: String,
        /// The file's type id.
        found: u32,
    },
    /// An array that no model needs.
    #[error("metadata key `{key}` is an array of {found} entries; at most {max} are accepted")]
    Entries {
        /// The key.
        key: String,
        /// Entries that it says it has.
        found: u64,
        /// Most entries.
        max: u64,
    },
    /// Arrays inside arrays inside arrays.
    #[error("metadata key `{key}` nests arrays deeper than {max}")]
    Depth {
        /// The key.
        key: String,
        /// Deepest nesting that is accepted.
        max: u32,
    },
    /// A key that occurs twice.
    #[error("metadata key `{key}` occurs twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// An alignment that can't be used.
    #[error("`general.alignment` is {found}; it must be a power of two in 1..={max}")]
    Alignment {
        /// The file's value.
        found: String,
        /// Largest alignment that is accepted.
        max: u64,
    },
    /// A name with a zero byte, an escape or another control character in it.
    #[error("{what}, number {idx} of its list, contains a control character")]
    NameControl {
        /// What is named.
        what: &'static str,
        /// Its position in the list, counted from 0.
        idx: u64,
    },
    /// A tensor that occurs twice.
    #[error("tensor `{name}` occurs twice")]
    DuplicateTensor {
        /// Its name.
        name: String,
    },
    /// A tensor with no axis or too many.
    #[error("tensor `{name}` has {found} dimensions; it must have 1..=4")]
    DimCount {
        /// Its name.
        name: String,
        /// The file's count.
        found: u32,
    },
    /// A tensor with an empty axis, or more values than a file can hold.
    #[error("tensor `{name}` has dimensions {dims:?}, which no file can hold")]
    Dims {
        /// Its name.
        name: String,
        /// The file's dimensions, fastest first.
        dims: Vec<u64>,
    },
    /// A type id that is unknown or was removed from the format.
    #[error("tensor `{name}` has type {found}, which is unknown or was removed from the format")]
    TensorType {
        /// Its name.
        name: String,
        /// The file's type id.
        found: u32,
    },
    /// Rows that don't fill whole blocks.
    #[error("tensor `{name}` has rows of {len} values, but {quant} stores blocks of {block_len}")]
    RowBlocks {
        /// Its name.
        name: String,
        /// Its type's name.
        quant: &'static str,
        /// Values of a row.
        len: u64,
        /// Values of a block.
        block_len: u64,
    },
    /// A tensor that begins between two multiples of the alignment.
    #[error("tensor `{name}` begins at {offset_bytes} of the data, which is not a multiple of {alignment}")]
    Offset {
        /// Its name.
        name: String,
        /// The file's offset.
        offset_bytes: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor that the file doesn't hold whole.
    #[error(
        "tensor `{name}` has {need_bytes} bytes up to byte {end_bytes}, but the file has {file_bytes}; \
         is it truncated?"
    )]
    TensorEnd {
        /// Its name.
        name: String,
        /// Bytes of the tensor.
        need_bytes: u64,
        /// Where it would end; capped at the largest number.
        end_bytes: u64,
        /// Where the file ends.
        file_bytes: u64,
    },
    /// Two tensors that share bytes.
    #[error("tensors `{first}` and `{second}` overlap")]
    Overlap {
        /// The one that begins first.
        first: String,
        /// The other one.
        second: String,
    },
}
