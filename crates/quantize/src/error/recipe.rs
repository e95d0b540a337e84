//! What can be wrong with a recipe.

use std::io;
use std::path::PathBuf;

use forerun_model::QuantType;

/// Why a recipe can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// Neither a name that is known nor a file that can be read.
    #[error("{path} is no recipe: it is neither one of {possible} nor a file that can be read")]
    Read {
        /// What was asked for.
        path: PathBuf,
        /// The names that there are.
        possible: String,
        /// The system's reason.
        source: io::Error,
    },
    /// No TOML, or keys and values that a recipe doesn't have.
    #[error("the recipe can't be read: {0}")]
    Toml(#[from] toml::de::Error),
    /// Not exactly one of `base` and `default`.
    #[error("the recipe needs either `base`, one of {possible}, or `default`, a type")]
    Start {
        /// The names that there are.
        possible: String,
    },
    /// A name that is unknown here.
    #[error("`base` is {found:?}, which is unknown; there are {possible}")]
    Base {
        /// What the recipe says.
        found: String,
        /// The names that there are.
        possible: String,
    },
    /// A type that is unknown, or can't be written.
    #[error("{place} is {found:?}, which can't be written; there are {possible}")]
    Type {
        /// Which type of the recipe.
        place: String,
        /// What the recipe says.
        found: String,
        /// The types that can be written.
        possible: String,
    },
    /// A pattern that can't be understood.
    #[error("the pattern of {place} can't be understood")]
    Glob {
        /// Which rule.
        place: String,
        /// What is wrong with it.
        source: globset::Error,
    },
    /// A list of layers that can't be understood.
    #[error("`layers` of {place} is {found:?}; it must be numbers and ranges such as 0-3,7")]
    Layers {
        /// Which rule.
        place: String,
        /// What the recipe says.
        found: String,
    },
}

/// Why a recipe can't be followed for a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A header that doesn't say what the rules depend on.
    #[error("the header has no whole number `{key}`, on which the choice of types depends")]
    Key {
        /// The key.
        key: String,
    },
    /// A rule that says nothing about this model.
    #[error("{rule} matches no tensor of the model")]
    NoMatch {
        /// The rule, as the recipe has it.
        rule: String,
    },
    /// A rule that says something only about tensors that are never given another type.
    #[error("{rule} matches only tensors that must stay as they are, such as {tensor}, which {reason}")]
    OnlyKept {
        /// The rule, as the recipe has it.
        rule: String,
        /// The first of the tensors.
        tensor: String,
        /// Why it must stay.
        reason: &'static str,
    },
    /// A type that blocks can't be written of.
    #[error("{tensor} should become {quant}, which can't be written")]
    Unencodable {
        /// The tensor.
        tensor: String,
        /// The type.
        quant: QuantType,
    },
    /// A type that blocks can't be read of.
    #[error("{tensor} is {quant}, which can't be read, so it can't become {to}")]
    Undecodable {
        /// The tensor.
        tensor: String,
        /// Its type.
        quant: QuantType,
        /// The type that it should have.
        to: QuantType,
    },
    /// A source that has lost something already.
    #[error(
        "{tensor} is {quant} already (and {n_more} more tensors are of such types): errors would add up; start from \
         F32, F16, BF16 or Q8_0, or allow it with --requantize"
    )]
    Requantise {
        /// The first such tensor.
        tensor: String,
        /// Its type.
        quant: QuantType,
        /// How many others there are.
        n_more: usize,
    },
    /// One type for some experts of a layer, another for others.
    #[error(
        "{tensor} should become {found}, but experts before it {expected}: those of a layer share their types"
    )]
    ExpertTypes {
        /// The tensor of an expert.
        tensor: String,
        /// Its type.
        found: QuantType,
        /// That of the others.
        expected: QuantType,
    },
    /// Importance of another model.
    #[error(
        "the importance matrix has {found_matrices} matrices of {found_cols} columns for {entry}; {tensor} has {n_matrices} \
         of {n_cols}: it was made of another model"
    )]
    ImportanceShape {
        /// The importance matrix's name for it.
        entry: String,
        /// Its matrices.
        found_matrices: usize,
        /// Columns of each.
        found_cols: usize,
        /// The model's tensor.
        tensor: String,
        /// Its matrices.
        n_matrices: usize,
        /// Columns of each.
        n_cols: usize,
    },
    /// Too little is known of experts that would get few bits.
    #[error(
        "the importance matrix knows nothing of {n_unseen} of the {n_matrices} experts of {tensor}, which would become {quant}: \
         so few bits need better knowledge; calibrate with more text, choose a larger type, or allow it with --allow-unseen"
    )]
    Unseen {
        /// The tensor, or those of a layer's experts.
        tensor: String,
        /// Experts without data.
        n_unseen: usize,
        /// Experts in all.
        n_matrices: usize,
        /// The type that they would get.
        quant: QuantType,
    },
}

/// Why values can't be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A value that is no number, or too large for the target.
    #[error("row {row} of matrix {matrix} of {tensor} holds {value}; {quant} takes numbers up to {max:e}")]
    Value {
        /// The tensor.
        tensor: String,
        /// Its matrix: the expert, in a tensor that holds a layer's.
        matrix: usize,
        /// The row in that matrix.
        row: usize,
        /// The value.
        value: f32,
        /// The type that it should have.
        quant: QuantType,
        /// The largest that this type takes.
        max: f32,
    },
}
