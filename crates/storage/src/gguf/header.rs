//! Reads a header front to back, and lets nothing in it claim more bytes than the file has.

use std::io::{self, BufReader, Read};

use crate::error::HeaderError;

/// Memory that a header may take beyond the file's own size.
const SLACK_BYTES: u64 = 12 << 20;

/// Memory that a header may take in any case, so that a huge sparse file can't claim it all.
const HEADER_BYTES_MAX: u64 = 1 << 30;

/// Longest text that is accepted anywhere.
pub(super) const TEXT_BYTES_MAX: u64 = 1 << 26;

/// Shortest entry of the metadata: key length, one byte of key, type, one byte of value.
const ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;

/// Shortest entry of the tensor list: name length, one byte of name, axes, one axis, type, offset.
const TENSOR_BYTES_MIN: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// What the first bytes of a file say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) n_tensors: u64,
    pub(super) n_entries: u64,
}

/// A place in the header, and what the rest of it may still claim.
pub(super) struct Cursor<'a> {
    input: BufReader<Box<dyn Read + 'a>>,
    at: u64,
    file_bytes: u64,
    memory_left: u64,
}

impl<'a> Cursor<'a> {
    /// Begins at the first byte of `input`, which has `file_bytes` bytes.
    pub(super) fn new(input: Box<dyn Read + 'a>, file_bytes: u64) -> Self {
        let memory_left = file_bytes.min(HEADER_BYTES_MAX) + SLACK_BYTES;
        Self { input: BufReader::with_capacity(1 << 16, input), at: 0, file_bytes, memory_left }
    }

    /// Bytes that have been read.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Bytes of the file.
    pub(super) fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Reads magic, version and counts.
    pub(super) fn start(&mut self) -> Result<Counts, HeaderError> {
        match self.bytes("the magic number")? {
            [b'G', b'G', b'U', b'F'] => {}
            [b'F', b'U', b'G', b'G'] => return Err(HeaderError::BigEndian),
            found => return Err(HeaderError::Magic { found }),
        }
        match u32::from_le_bytes(self.bytes("the version")?) {
            2 | 3 => {}
            found if matches!(found.swap_bytes(), 1..=3) => return Err(HeaderError::BigEndian),
            found => return Err(HeaderError::Version { found }),
        }
        let n_tensors = self.u64("the number of tensors")?;
        let n_entries = self.u64("the number of metadata keys")?;
        self.check_left("the list of metadata keys", n_entries, ENTRY_BYTES_MIN)?;
        self.check_left("the list of tensors", n_tensors, TENSOR_BYTES_MIN)?;
        Ok(Counts { n_tensors, n_entries })
    }

    /// The next `N` bytes.
    pub(super) fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N], HeaderError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, HeaderError> {
        self.bytes(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, HeaderError> {
        self.bytes(what).map(u64::from_le_bytes)
    }

    /// A length and as many bytes of UTF-8, of a length in `min..=max`.
    pub(super) fn text(&mut self, what: &str, (min, max): (u64, u64)) -> Result<String, HeaderError> {
        let len_bytes = self.u64(what)?;
        self.check_left(what, len_bytes, 1)?;
        if !(min..=max).contains(&len_bytes) {
            return Err(HeaderError::TextLength { what: what.to_owned(), len_bytes, min, max });
        }
        let mut bytes = self.room(what, len_bytes, 1)?;
        // There may be more room than was asked for.
        bytes.resize(usize::try_from(len_bytes).unwrap_or(0), 0);
        self.fill(&mut bytes, what)?;
        String::from_utf8(bytes).map_err(|_| HeaderError::Utf8 { what: what.to_owned() })
    }

    /// Like [`Cursor::text`], for name `idx` of a list, of 1 to `max` bytes. Names end up in messages, so a control
    /// character, with which one could rule a terminal, is refused.
    pub(super) fn name(&mut self, what: &'static str, (idx, max): (u64, u64)) -> Result<String, HeaderError> {
        let name = self.text(what, (1, max))?;
        if name.contains(char::is_control) {
            return Err(HeaderError::NameControl { what, idx });
        }
        Ok(name)
    }

    /// An empty vector with room for exactly `count` values, each of which takes at least `min_bytes` in the file.
    pub(super) fn room<T>(&mut self, what: &str, count: u64, min_bytes: u64) -> Result<Vec<T>, HeaderError> {
        self.check_left(what, count, min_bytes)?;
        let need_bytes = count.saturating_mul(size_of::<T>() as u64);
        let left_bytes = self.memory_left;
        let too_much = || HeaderError::Memory { what: what.to_owned(), need_bytes, left_bytes };
        self.memory_left = left_bytes.checked_sub(need_bytes).ok_or_else(too_much)?;
        let mut vec = Vec::new();
        let count = usize::try_from(count).map_err(|_| too_much())?;
        vec.try_reserve_exact(count).map_err(|_| too_much())?;
        Ok(vec)
    }

    /// Refuses `count` values of at least `min_bytes` bytes each that the file is too short for.
    pub(super) fn check_left(&self, what: &str, count: u64, min_bytes: u64) -> Result<(), HeaderError> {
        let need_bytes = count.saturating_mul(min_bytes);
        let left_bytes = self.file_bytes - self.at;
        if need_bytes <= left_bytes {
            return Ok(());
        }
        Err(HeaderError::End { what: what.to_owned(), need_bytes, left_bytes })
    }

    fn fill(&mut self, bytes: &mut [u8], what: &str) -> Result<(), HeaderError> {
        self.check_left(what, bytes.len() as u64, 1)?;
        self.input.read_exact(bytes).map_err(|source| match source.kind() {
            // The file was longer when it was opened.
            io::ErrorKind::UnexpectedEof => {
                HeaderError::End { what: what.to_owned(), need_bytes: bytes.len() as u64, left_bytes: 0 }
            }
            _ => HeaderError::Read { source },
        })?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}
