//! The words all layers share: what a model is, what its router said, how a matrix lies in memory.
//!
//! A file's metadata becomes a [`ModelShape`]; the shape says which tensors must exist ([`names`]) and how the
//! three matrices of an expert lie in a slot ([`ExpertLayout`]). During a step the router's answer travels as a
//! [`Routing`].
//!
//! Never here: files, threads, arithmetic on weights, unsafe code.

pub mod drafter;
pub mod error;
pub mod ids;
pub mod layout;
pub mod metadata;
pub mod names;
pub mod quant;
pub mod routing;
pub mod shape;
pub mod time;

pub use drafter::DrafterShape;
pub use error::ShapeError;
pub use ids::{ExpertId, ExpertKey, LayerId, TokenId};
pub use layout::{ExpertLayout, MatrixLayout, PartOffsets};
pub use metadata::{KeyValue, KeyValues};
pub use quant::QuantType;
pub use routing::{Routing, Stage, Use};
pub use shape::{
    AttentionParts, AttentionShape, DeltaNetShape, HEAD_DIM_MAX, HeadOrder, LayerKind, ModelShape, MoeShape,
    Position, RopeShape,
};
pub use time::{Clock, Nanos, SystemClock};
