//! Benchmarks of forerun's layers, each in a file of its own beside this one.
//!
//! `dot`: products of weight rows and activations, in bytes of weights. `dspark`: blocks of a drafter, in blocks.
//! `read`: experts from a file into slots, in bytes. `pack`: a model packed and verified, in bytes. `plan`: turns of the
//! scheduler, in turns. `quantise`: rows encoded as blocks, in rows. `sampler`: a token from logits, in tokens.
//! `serving`: what a server adds to a token, in tokens. `token`: decode steps of the small model, in tokens.
//!
//! `cargo xtask benches` measures; `cargo xtask long` runs each once.

pub mod drafter;
