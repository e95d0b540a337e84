//! Makes smaller files of a model: which tensor gets which type, with how much care, and what that costs.
//!
//! An [`Imatrix`] says how much each column of each matrix matters. Blocks are encoded by `forerun-compute`, files are
//! written by `forerun-storage`; what is here decides.
//!
//! Never here: running a model, the layout of files.

pub mod error;
pub mod imatrix;

pub use error::{ImatrixError, QuantizeError};
pub use imatrix::{Imatrix, Importance};
