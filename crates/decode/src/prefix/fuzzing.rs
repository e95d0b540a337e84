//! The parser of files, for the fuzz target alone.

use super::Unusable;
use super::format::read_whole;
use crate::engine::SavedShape;

/// The key of files that the target reads.
pub const KEY: [u8; 32] = [7; 32];

/// Reads `file` as a kept conversation of a small model: rows of 24 bytes, states of 10 values, a context of 256 tokens.
///
/// # Errors
/// Why it isn't one.
pub fn read(file: &[u8]) -> Result<(), Unusable> {
    let shape = SavedShape { row_bytes: 24, state_values: 10, context: 256, key: Some(KEY) };
    let (header, states, rows) = read_whole(file, &shape)?;
    assert_eq!((states.len(), rows.len()), (header.lens.len(), 24 * header.tokens.len()));
    Ok(())
}
