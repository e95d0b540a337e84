//! Bytes from files into slots: a hardened GGUF reader, a catalog of expert records, and the store over it.
//!
//! A [`ReadBackend`] moves byte ranges of one file set into slots; the file store turns keys into ranges, retries
//! what may be retried, checks lengths, and hands out sealed slots through the [`ExpertStore`] trait.
//!
//! Never here: what a model computes, which expert should be read next.

pub mod backend;
pub mod error;
pub mod store;

pub use backend::{Completed, Limits, Read, ReadBackend, Segment, Tag};
pub use error::StoreError;
pub use store::{ExpertStore, Fetched, Filled, Refused, RefusedReason};
