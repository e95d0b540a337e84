//! A kept conversation as a file.
//!
//! Little-endian, in this order: a header of eight bytes [`MAGIC`], the format's version `u32`, 32 bytes that stand for model
//! and arithmetic, bytes of a row, values of a state, numbers of tokens and of states (each `u32`), the states' lengths and the tokens
//! (each `u32`), and the header's checksum; then each state and its checksum; then the rows, a checksum after every
//! [`ROWS_PER_SUM`] of them and after the last. Checksums are crc32c, `u32`. Nothing is used before its checksum was seen.

use std::io::{self, ErrorKind, Read, Write};

use forerun_model::TokenId;

use super::source::Source;
use crate::engine::SavedShape;

/// What a file begins with.
const MAGIC: [u8; 8] = *b"FRprefix";
/// Rises with every change of the format, and of the arithmetic where no kernel's name tells of it.
const VERSION: u32 = 1;
/// Bytes of a header before its lists.
const FIXED_BYTES: usize = 8 + 4 + 32 + 4 * 4;
/// Rows that share a checksum.
pub(super) const ROWS_PER_SUM: usize = 16;
/// Most states of a file.
const STATES_MAX: usize = 64;
const SUM_BYTES: usize = 4;

/// Why a file isn't used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// No file of ours.
    #[error("it is no kept prefix")]
    Foreign,
    /// A format that isn't read here.
    #[error("its format has version {found}; {VERSION} is read here")]
    Version {
        /// What it says.
        found: u32,
    },
    /// Made with another model, or another arithmetic.
    #[error("it was made with another model, type of keys and values, or set of kernels")]
    OtherModel,
    /// More tokens than fit.
    #[error("it has {n_tokens} tokens, and the context holds {context}")]
    TooLong {
        /// What it has.
        n_tokens: usize,
        /// What fits.
        context: usize,
    },
    /// It isn't what was written.
    #[error("it is damaged: {what}")]
    Damaged {
        /// Where.
        what: &'static str,
    },
    /// It can't be read.
    #[error("it can't be read: {kind}")]
    Io {
        /// The system's reason.
        kind: ErrorKind,
    },
}

impl Unusable {
    /// Whether it is of no use to anybody.
    pub fn is_damaged(self) -> bool {
        matches!(self, Self::Damaged { .. })
    }
}

impl From<io::Error> for Unusable {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::UnexpectedEof => Self::Damaged { what: "it ends too early" },
            ErrorKind::InvalidData => Self::Damaged { what: "a checksum is wrong" },
            kind => Self::Io { kind },
        }
    }
}

/// What a file says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) tokens: Vec<TokenId>,
    /// Length of each state, ascending.
    pub(super) lens: Vec<usize>,
}

impl Header {
    fn bytes(n_tokens: usize, n_states: usize) -> u64 {
        (FIXED_BYTES + SUM_BYTES) as u64 + 4 * (n_tokens as u64 + n_states as u64)
    }

    fn state_bytes(shape: &SavedShape) -> u64 {
        4 * shape.state_values as u64 + SUM_BYTES as u64
    }

    /// Bytes of a whole file.
    pub(super) fn file_bytes(shape: &SavedShape, n_tokens: usize, n_states: usize) -> u64 {
        let (rows, sums) = (n_tokens as u64, n_tokens.div_ceil(ROWS_PER_SUM) as u64);
        let rows = rows.saturating_mul(shape.row_bytes as u64) + sums * SUM_BYTES as u64;
        Self::bytes(n_tokens, n_states) + n_states as u64 * Self::state_bytes(shape) + rows
    }

    /// Where the `i`-th state begins.
    pub(super) fn state_offset(&self, shape: &SavedShape, i: usize) -> u64 {
        Self::bytes(self.tokens.len(), self.lens.len()) + i as u64 * Self::state_bytes(shape)
    }

    /// Where the rows begin.
    pub(super) fn rows_offset(&self, shape: &SavedShape) -> u64 {
        self.state_offset(shape, self.lens.len())
    }

    /// Reads the header of a file of `file_bytes`. Takes no more memory than the context's tokens and what bounds the states.
    pub(super) fn read(file: &mut dyn Read, file_bytes: u64, shape: &SavedShape) -> Result<Self, Unusable> {
        let mut fixed = [0; FIXED_BYTES];
        // Too short to say whose it is.
        file.read_exact(&mut fixed).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Unusable::Foreign,
            kind => Unusable::Io { kind },
        })?;
        let u32_at = |at: usize| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        if fixed[..8] != MAGIC {
            return Err(Unusable::Foreign);
        }
        if u32_at(8) != VERSION {
            return Err(Unusable::Version { found: u32_at(8) });
        }
        if Some(&fixed[12..44]) != shape.key.as_ref().map(|key| &key[..]) {
            return Err(Unusable::OtherModel);
        }
        let [row_bytes, state_values, n_tokens, n_states] = [44, 48, 52, 56].map(|at| u32_at(at) as usize);
        if (row_bytes, state_values) != (shape.row_bytes, shape.state_values) || n_states > STATES_MAX {
            return Err(Unusable::Damaged { what: "its sizes aren't the model's" });
        }
        if file_bytes != Self::file_bytes(shape, n_tokens, n_states) {
            return Err(Unusable::Damaged { what: "its length isn't what its header says" });
        }
        if n_tokens > shape.context {
            return Err(Unusable::TooLong { n_tokens, context: shape.context });
        }
        let mut sum = crc32c::crc32c(&fixed);
        let mut list = |n: usize| -> Result<Vec<u32>, Unusable> {
            let mut bytes = vec![0; 4 * n];
            file.read_exact(&mut bytes)?;
            sum = crc32c::crc32c_append(sum, &bytes);
            Ok(bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect())
        };
        let lens: Vec<usize> = list(n_states)?.into_iter().map(|len| len as usize).collect();
        let tokens = list(n_tokens)?.into_iter().map(TokenId).collect();
        check_sum(file, sum)?;
        if !lens.is_sorted() || lens.last().is_some_and(|last| *last > n_tokens) {
            return Err(Unusable::Damaged { what: "a state is beyond its tokens" });
        }
        Ok(Self { tokens, lens })
    }
}

/// Compares the checksum that is next with `sum`.
fn check_sum(file: &mut dyn Read, sum: u32) -> io::Result<()> {
    let mut found = [0; SUM_BYTES];
    file.read_exact(&mut found)?;
    if u32::from_le_bytes(found) == sum { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
}

/// Reads what one checksum is for; the end of it is not the end before the checksum was right.
pub(super) struct Summed<'a> {
    file: &'a mut dyn Read,
    sum: u32,
    left: u64,
}

impl<'a> Summed<'a> {
    /// The next `len_bytes` of `file`.
    pub(super) fn new(file: &'a mut dyn Read, len_bytes: u64) -> Self {
        Self { file, sum: 0, left: len_bytes }
    }

    /// Compares the checksum. What was read before must not be used if this fails.
    pub(super) fn finish(self) -> io::Result<()> {
        check_sum(self.file, self.sum)
    }
}

impl Read for Summed<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = out.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let n = self.file.read(&mut out[..len])?;
        self.sum = crc32c::crc32c_append(self.sum, &out[..n]);
        self.left -= n as u64;
        Ok(n)
    }
}

/// Reads rows, so many at once as share a checksum, and hands none out before it was right.
pub(super) struct Rows<R> {
    file: R,
    row_bytes: usize,
    /// Rows of the file that weren't read.
    left: usize,
    buffer: Vec<u8>,
    at: usize,
    /// Bytes read from the file.
    pub(super) n_read: u64,
}

impl<R: Read> Rows<R> {
    /// `n` rows from where `file` is.
    pub(super) fn new(file: R, row_bytes: usize, n: usize) -> Self {
        Self { file, row_bytes, left: n, buffer: Vec::new(), at: 0, n_read: 0 }
    }

    fn next_rows(&mut self) -> io::Result<()> {
        let n = self.left.min(ROWS_PER_SUM);
        self.at = 0;
        self.buffer.resize(n * self.row_bytes, 0);
        if n > 0 {
            self.file.read_exact(&mut self.buffer)?;
            check_sum(&mut self.file, crc32c::crc32c(&self.buffer))?;
            self.n_read += (self.buffer.len() + SUM_BYTES) as u64;
        }
        self.left -= n;
        Ok(())
    }
}

impl<R: Read> Read for Rows<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at == self.buffer.len()
            && let Err(error) = self.next_rows()
        {
            self.buffer.clear();
            return Err(error);
        }
        let len = out.len().min(self.buffer.len() - self.at);
        out[..len].copy_from_slice(&self.buffer[self.at..self.at + len]);
        self.at += len;
        Ok(len)
    }
}

/// Writes `source` as a file.
pub(super) fn write(source: &dyn Source, shape: &SavedShape, out: &mut dyn Write) -> io::Result<()> {
    let (tokens, lens) = (source.tokens(), source.lens());
    let mut header = Vec::with_capacity(FIXED_BYTES + 4 * (tokens.len() + lens.len() + 1));
    let number = |n: usize| u32::try_from(n).map(u32::to_le_bytes).map_err(|_| ErrorKind::InvalidInput);
    header.extend(MAGIC);
    header.extend(VERSION.to_le_bytes());
    header.extend(shape.key.ok_or(ErrorKind::InvalidInput)?);
    for n in [shape.row_bytes, shape.state_values, tokens.len(), lens.len()].into_iter().chain(lens.clone()) {
        header.extend(number(n)?);
    }
    header.extend(tokens.iter().flat_map(|token| token.0.to_le_bytes()));
    header.extend(crc32c::crc32c(&header).to_le_bytes());
    out.write_all(&header)?;
    let (n_states, state_bytes) = (lens.len(), 4 * shape.state_values);
    for i in 0..n_states {
        source.write_state(i, &mut Summing::new(&mut *out, state_bytes))?;
    }
    let mut rows = Summing::new(out, ROWS_PER_SUM * shape.row_bytes);
    source.write_rows(&mut rows)?;
    rows.finish()
}

/// Writes a checksum after every so many bytes.
struct Summing<'a> {
    out: &'a mut dyn Write,
    every: usize,
    sum: u32,
    n: usize,
}

impl<'a> Summing<'a> {
    fn new(out: &'a mut dyn Write, every: usize) -> Self {
        Self { out, every, sum: 0, n: 0 }
    }

    /// Ends the last piece.
    fn finish(&mut self) -> io::Result<()> {
        if self.n > 0 {
            self.out.write_all(&self.sum.to_le_bytes())?;
            (self.sum, self.n) = (0, 0);
        }
        Ok(())
    }
}

impl Write for Summing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(self.every - self.n);
        self.out.write_all(&bytes[..len])?;
        self.sum = crc32c::crc32c_append(self.sum, &bytes[..len]);
        self.n += len;
        if self.n == self.every {
            self.finish()?;
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Header, states and rows.
#[cfg(any(test, fuzzing))]
type Whole = (Header, Vec<Vec<f32>>, Vec<u8>);

/// States and rows of a file, all of which must be right.
#[cfg(any(test, fuzzing))]
pub(super) fn read_whole(mut file: &[u8], shape: &SavedShape) -> Result<Whole, Unusable> {
    let file_bytes = file.len() as u64;
    let header = Header::read(&mut file, file_bytes, shape)?;
    let mut states = Vec::new();
    for _ in &header.lens {
        let mut summed = Summed::new(&mut file, 4 * shape.state_values as u64);
        let mut values = Vec::new();
        super::source::read_values(&mut summed, shape.state_values, &mut values)?;
        summed.finish()?;
        states.push(values);
    }
    let mut rows = Vec::new();
    Rows::new(file, shape.row_bytes, header.tokens.len()).read_to_end(&mut rows)?;
    Ok((header, states, rows))
}
