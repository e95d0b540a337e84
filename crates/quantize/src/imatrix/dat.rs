//! The older form of an importance matrix, usually `.dat`: numbers of 32 bits, little-endian, without a magic number.
//!
//! The number of entries; for each the length of its name, the name, the number of windows, the number of values, and the
//! values as f32; then, in files that aren't older still, the number of windows of all, and length and name of the text.
//! Values are mean squares times the number of windows, and an expert that saw nothing has 1 for its mean square: which one
//! that was, and how many tokens the others saw, isn't known any more. A stacked tensor's values stand one expert after
//! the other, under one number of windows.

use std::io::Read;
use std::path::Path;

use super::{Imatrix, Importance};
use crate::ImatrixError;

/// Longest name that is accepted; the usual writers stop at 64.
const NAME_BYTES_MAX: u64 = 1024;
/// Shortest entry: a name of one byte, a value, and three numbers.
const ENTRY_BYTES_MIN: u64 = 4 + 1 + 4 + 4 + 4;
/// Bytes that are read at once.
const PIECE_BYTES: usize = 1 << 16;

/// Reads a file of `file_bytes` bytes.
pub(super) fn read<'a>(
    path: &'a Path,
    input: Box<dyn Read + 'a>,
    file_bytes: u64,
) -> Result<Imatrix, ImatrixError> {
    let mut cursor = Cursor { path, input, at: 0, file_bytes };
    let n_max = (file_bytes.saturating_sub(4)) / ENTRY_BYTES_MIN;
    let n_entries =
        if file_bytes < 4 { 0 } else { u64::from(cursor.number("the number of entries")?.cast_unsigned()) };
    if n_entries == 0 || n_entries > n_max {
        return Err(ImatrixError::Magic { path: path.to_owned(), file_bytes });
    }
    let mut imatrix = Imatrix::default();
    for _ in 0..n_entries {
        let at = cursor.at;
        let len_bytes = cursor.length("the length of a name", NAME_BYTES_MAX)?;
        let name = cursor.text(len_bytes)?;
        let n_windows = cursor.length("an entry's number of windows", u64::from(u32::MAX))?;
        let left = file_bytes.saturating_sub(cursor.at + 4) / 4;
        let n_values = cursor.length("an entry's number of values", left)?;
        let sums = cursor.values(n_values)?;
        if imatrix.get(&name).is_some() {
            return Err(cursor.bad_name(at, "the entry's name occurs twice"));
        }
        #[expect(clippy::cast_precision_loss, reason = "few windows; the newer form has them as f32 as well")]
        let importance = Importance::new(&name, sums.len(), sums, vec![n_windows as f32])?;
        imatrix.insert(name, importance);
    }
    if cursor.at < file_bytes {
        let n_windows = cursor.length("the number of windows", u64::from(u32::MAX))?;
        imatrix.about.chunk_count = u32::try_from(n_windows).unwrap_or(u32::MAX);
    }
    if cursor.at < file_bytes {
        let len_bytes =
            cursor.length("the length of the text's name", file_bytes.saturating_sub(cursor.at + 4))?;
        if len_bytes > 0 {
            imatrix.about.datasets.push(cursor.text(len_bytes)?);
        }
    }
    Ok(imatrix)
}

/// Little-endian f32 values.
pub(super) fn floats(bytes: &[u8]) -> Vec<f32> {
    let (values, _) = bytes.as_chunks::<4>();
    values.iter().map(|value| f32::from_le_bytes(*value)).collect()
}

/// A place in the file.
struct Cursor<'a> {
    path: &'a Path,
    input: Box<dyn Read + 'a>,
    at: u64,
    file_bytes: u64,
}

impl Cursor<'_> {
    fn number(&mut self, what: &'static str) -> Result<i32, ImatrixError> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes, what)?;
        Ok(i32::from_le_bytes(bytes))
    }

    /// A number that counts something, at most `max`.
    fn length(&mut self, what: &'static str, max: u64) -> Result<u64, ImatrixError> {
        let offset_bytes = self.at;
        let found = i64::from(self.number(what)?);
        match u64::try_from(found).ok().filter(|n| *n <= max) {
            Some(n) => Ok(n),
            None => {
                let (path, expected) = (self.path.to_owned(), format!("from 0 to {max}"));
                Err(ImatrixError::Dat { path, offset_bytes, what, found, expected })
            }
        }
    }

    fn text(&mut self, len_bytes: u64) -> Result<String, ImatrixError> {
        let at = self.at;
        let bytes = self.bytes(len_bytes, "a name")?;
        // Other writers' texts end at a zero.
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        match std::str::from_utf8(&bytes[..end]) {
            Ok(name) if !name.is_empty() && !name.contains(char::is_control) => Ok(name.to_owned()),
            Ok(_) => Err(self.bad_name(at, "a name is empty or has control characters")),
            Err(_) => Err(self.bad_name(at, "a name is not UTF-8")),
        }
    }

    fn bad_name(&self, offset_bytes: u64, problem: &'static str) -> ImatrixError {
        ImatrixError::DatName { path: self.path.to_owned(), offset_bytes, problem }
    }

    fn values(&mut self, n: u64) -> Result<Vec<f32>, ImatrixError> {
        Ok(floats(&self.bytes(n * 4, "an entry's values")?))
    }

    /// Memory is taken as bytes come, so that a file that became shorter can't claim any.
    fn bytes(&mut self, len_bytes: u64, what: &'static str) -> Result<Vec<u8>, ImatrixError> {
        let (mut bytes, mut left) = (Vec::new(), len_bytes);
        while left > 0 {
            let n = usize::try_from(left).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
            let start = bytes.len();
            bytes.resize(start + n, 0);
            self.fill(&mut bytes[start..], what)?;
            left -= n as u64;
        }
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8], what: &'static str) -> Result<(), ImatrixError> {
        self.input.read_exact(bytes).map_err(|source| match source.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                ImatrixError::DatEnd { path: self.path.to_owned(), offset_bytes: self.file_bytes, what }
            }
            _ => ImatrixError::Io { doing: "read", path: self.path.to_owned(), source },
        })?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}
