//! What can be wrong with a model's header.

/// A header that describes no model this program can run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// The file holds something else than a model.
    #[error("the file is {found}, not a model; {remedy}")]
    NoModel {
        /// What it is.
        found: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// The architecture isn't in our registry.
    #[error("architecture `{}` is not supported; supported: {supported}", found.escape_debug())]
    UnknownArchitecture {
        /// What the file says.
        found: String,
        /// What we run, comma separated.
        supported: &'static str,
    },
    /// A required key is absent.
    #[error("metadata key `{key}` is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key holds a value of another type.
    #[error("metadata key `{key}` must be {expected} but is {found}")]
    KeyType {
        /// The key.
        key: String,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A number is outside what makes sense.
    #[error("metadata key `{key}` is {value}; it must be in {min}..={max}")]
    KeyRange {
        /// The key.
        key: String,
        /// The file's value.
        value: i128,
        /// Smallest sensible value.
        min: u64,
        /// Largest sensible value.
        max: u64,
    },
    /// A float that isn't finite and positive.
    #[error("metadata key `{key}` is {value}; it must be finite and above zero")]
    KeyFloat {
        /// The key.
        key: String,
        /// The file's value.
        value: f64,
    },
    /// An array of the wrong length.
    #[error("metadata key `{key}` has {found} entries; it must have {expected}")]
    KeyLength {
        /// The key.
        key: String,
        /// Entries in the file.
        found: usize,
        /// Entries that are right, in words.
        expected: String,
    },
    /// Two numbers that must fit together don't.
    #[error("{what} {value} does not fit {other} {other_value}: {rule}")]
    Mismatch {
        /// The first quantity.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The second quantity.
        other: &'static str,
        /// Its value.
        other_value: u64,
        /// What must hold.
        rule: &'static str,
    },
    /// A tensor that the model needs is not in the file.
    #[error("tensor `{name}` is missing")]
    MissingTensor {
        /// Its name.
        name: String,
    },
    /// A tensor has other dimensions than the header promises.
    #[error("tensor `{name}` has dimensions {found:?}; the header needs {expected:?}")]
    TensorShape {
        /// Its name.
        name: String,
        /// Dimensions in the file, fastest first.
        found: Vec<u64>,
        /// Dimensions that the header needs, fastest first.
        expected: Vec<u64>,
    },
    /// A key asks for something that isn't done here, and that results depend on.
    #[error("metadata key `{key}` is {found}; supported: {supported}")]
    KeyUnsupported {
        /// The key.
        key: String,
        /// What the file says.
        found: String,
        /// What would be right.
        supported: &'static str,
    },
    /// A tensor that isn't known, in a file whose every tensor changes results.
    #[error("tensor `{}` is not supported: {supported}", name.escape_debug())]
    UnsupportedTensor {
        /// Its name.
        name: String,
        /// What would be right.
        supported: &'static str,
    },
    /// An entry of a table of indices is none of what it points into.
    #[error("tensor `{name}` has {value} at {row}; it must be below {limit}")]
    TensorIndex {
        /// Its name.
        name: String,
        /// The entry.
        row: usize,
        /// Its value.
        value: i64,
        /// What there is.
        limit: usize,
    },
    /// A matrix whose rows don't fill whole blocks of its type.
    #[error("rows of {n_cols} values can't be stored as {quant}: its blocks hold {block_len}")]
    RowBlocks {
        /// Type name.
        quant: &'static str,
        /// Values per row.
        n_cols: usize,
        /// Values per block.
        block_len: usize,
    },
}
