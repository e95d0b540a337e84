//! Why an importance matrix can't be read or written.

use std::io;
use std::path::PathBuf;

use forerun_model::QuantType;
use forerun_storage::{HeaderError, OpenError};

/// An importance matrix that can't be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImatrixError {
    /// The file can't be opened, or its header is wrong.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The system refused.
    #[error("cannot {doing} {path}")]
    Io {
        /// What was attempted, as a verb.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A GGUF file of something else, such as a model.
    #[error("{path} is no importance matrix: its `general.type` is {found}, not imatrix")]
    NotImatrix {
        /// The file.
        path: PathBuf,
        /// The file's value, or "absent".
        found: String,
    },
    /// A file of neither form.
    #[error(
        "{path} is no importance matrix: it begins neither with `GGUF` nor with a number of entries that its {file_bytes} \
         bytes can hold"
    )]
    Magic {
        /// The file.
        path: PathBuf,
        /// Bytes of the file.
        file_bytes: u64,
    },
    /// A metadata key that holds something else than it should.
    #[error("{path}: metadata key `{key}` is {found} but must be {expected}")]
    Key {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// The file's value.
        found: String,
        /// What it must be.
        expected: &'static str,
    },
    /// Sums without their counts, or counts without their sums.
    #[error("{path} has `{name}.{present}` without `{name}.{absent}`; each tensor needs both")]
    Unpaired {
        /// The file.
        path: PathBuf,
        /// The model's tensor.
        name: String,
        /// What is there.
        present: &'static str,
        /// What is missing.
        absent: &'static str,
    },
    /// Numbers in a form that nobody writes.
    #[error("{path}: tensor `{name}` is {found}; an importance matrix is F32")]
    TensorType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its type.
        found: QuantType,
    },
    /// Sizes that don't fit each other.
    #[error(
        "the importance matrix has {n_sums} sums for `{name}`, which {n_matrices} matrices of {n_cols} columns don't give"
    )]
    Size {
        /// The model's tensor.
        name: String,
        /// Sums that were given.
        n_sums: usize,
        /// Matrices of the tensor.
        n_matrices: usize,
        /// Columns of each; 0 where only the other two numbers are known.
        n_cols: usize,
    },
    /// Second moments that can't be such.
    #[error("the importance matrix's second moments of `{name}` are none: {problem}")]
    Moments {
        /// The model's tensor.
        name: String,
        /// What is wrong.
        problem: MomentsProblem,
    },
    /// No entry at all.
    #[error("{path} is an importance matrix without any entry")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A damaged file of the older form.
    #[error("{path}, byte {offset_bytes}: {what} is {found}; it must be {expected}")]
    Dat {
        /// The file.
        path: PathBuf,
        /// Where it stands.
        offset_bytes: u64,
        /// What is wrong.
        what: &'static str,
        /// What the file says.
        found: i64,
        /// What it must be.
        expected: String,
    },
    /// A file of the older form that ends early.
    #[error("{path} ends at byte {offset_bytes}, within {what}")]
    DatEnd {
        /// The file.
        path: PathBuf,
        /// Where it ends.
        offset_bytes: u64,
        /// What was to be read.
        what: &'static str,
    },
    /// A name of the older form that is no text, or occurs twice.
    #[error("{path}, byte {offset_bytes}: {problem}")]
    DatName {
        /// The file.
        path: PathBuf,
        /// Where the name stands.
        offset_bytes: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Names or sizes that no file can have.
    #[error("the importance matrix can't be written to {path}: {problem}")]
    Layout {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: HeaderError,
    },
}

/// Why numbers are no second moments.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MomentsProblem {
    /// More or fewer than the columns have.
    #[error("there are {found}, its columns have {expected}")]
    Length {
        /// How many there are.
        found: usize,
        /// How many the columns of its only matrix have; none where there are several matrices.
        expected: usize,
    },
    /// A number that is none.
    #[error("number {place} is {value}, all must be finite")]
    Value {
        /// Which one, from 0.
        place: usize,
        /// What it is.
        value: f32,
    },
    /// A square below zero.
    #[error("the squares of column {col} sum up to {value}, which must be at least 0")]
    Square {
        /// The column.
        col: usize,
        /// The sum.
        value: f32,
    },
}
