//! Makes smaller files of a model: which tensor gets which type, with how much care, and what that costs.
//!
//! A [`Recipe`] says what each tensor should be, a [`Plan`] what it will be in one model and why, an [`Encoder`] makes it so.
//! An [`Imatrix`] says how much each column of each matrix matters. Blocks are encoded by `forerun-compute`, files are
//! written by `forerun-storage`; what is here decides.
//!
//! Never here: running a model, the layout of files.

pub mod auto;
pub mod encode;
pub mod error;
pub mod imatrix;
pub mod keys;
mod lookup;
pub mod plan;
pub mod recipe;

pub use auto::Auto;
pub use encode::Encoder;
pub use error::{AutoError, EncodeError, ImatrixError, PlanError, QuantizeError, RecipeError};
pub use imatrix::{Imatrix, Importance};
pub use keys::{NamedImatrix, keys};
pub use plan::{Choice, Facts, Permissions, Plan};
pub use recipe::{Mixture, Recipe, Rule};
