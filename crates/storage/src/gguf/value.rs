//! Metadata values: all thirteen types of the format, kept as the file has them.

use std::fmt;

use forerun_model::KeyValue;

use super::header::{Cursor, TEXT_BYTES_MAX};
use crate::error::HeaderError;

/// Deepest nesting of arrays: an array of arrays.
const DEPTH_MAX: u32 = 2;

/// Entries of an array that are shown before the rest is only counted.
const SHOWN_MAX: usize = 8;

/// Bytes of a text that are shown before the rest is only counted.
const TEXT_SHOWN_BYTES: usize = 120;

/// Most entries of an array, four times those of the largest vocabulary known: readers may widen each to 16 bytes,
/// which is 16 MiB then.
const ENTRIES_MAX: u64 = 1 << 20;

/// One value, in the type that the file has it in.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are the format's own types")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Text(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// Values of one type.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are the format's own types")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    Text(Vec<String>),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Value {
    /// Reads a type id and the value behind it.
    pub(super) fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, HeaderError> {
        Ok(match cursor.u32(key)? {
            0 => Self::U8(cursor.bytes(key).map(u8::from_le_bytes)?),
            1 => Self::I8(cursor.bytes(key).map(i8::from_le_bytes)?),
            2 => Self::U16(cursor.bytes(key).map(u16::from_le_bytes)?),
            3 => Self::I16(cursor.bytes(key).map(i16::from_le_bytes)?),
            4 => Self::U32(cursor.bytes(key).map(u32::from_le_bytes)?),
            5 => Self::I32(cursor.bytes(key).map(i32::from_le_bytes)?),
            6 => Self::F32(cursor.bytes(key).map(f32::from_le_bytes)?),
            7 => Self::Bool(boolean(cursor, key)?),
            8 => Self::Text(cursor.text(key, (0, TEXT_BYTES_MAX))?),
            9 => Self::Array(Array::read(cursor, key, 1)?),
            10 => Self::U64(cursor.bytes(key).map(u64::from_le_bytes)?),
            11 => Self::I64(cursor.bytes(key).map(i64::from_le_bytes)?),
            12 => Self::F64(cursor.bytes(key).map(f64::from_le_bytes)?),
            found => return Err(HeaderError::ValueType { key: key.to_owned(), found }),
        })
    }

    /// The value if it is a single integer, of any type. Arrays aren't touched, however long they are.
    pub fn integer(&self) -> Option<i128> {
        match self {
            Self::Array(_) => None,
            single => match single.widen() {
                KeyValue::Integer(value) => Some(value),
                _ => None,
            },
        }
    }

    /// The value, widened; an array of numbers is copied.
    pub fn widen(&self) -> KeyValue<'_> {
        match self {
            Self::U8(v) => KeyValue::Integer((*v).into()),
            Self::I8(v) => KeyValue::Integer((*v).into()),
            Self::U16(v) => KeyValue::Integer((*v).into()),
            Self::I16(v) => KeyValue::Integer((*v).into()),
            Self::U32(v) => KeyValue::Integer((*v).into()),
            Self::I32(v) => KeyValue::Integer((*v).into()),
            Self::U64(v) => KeyValue::Integer((*v).into()),
            Self::I64(v) => KeyValue::Integer((*v).into()),
            Self::F32(v) => KeyValue::Float((*v).into()),
            Self::F64(v) => KeyValue::Float(*v),
            Self::Bool(v) => KeyValue::Bool(*v),
            Self::Text(v) => KeyValue::Text(v),
            Self::Array(array) => array.widen(),
        }
    }
}

impl Array {
    /// Entries.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::Text(v) => v.len(),
            Self::Array(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads an element type, a count and the entries; `depth` arrays are open, this one included.
    fn read(cursor: &mut Cursor<'_>, key: &str, depth: u32) -> Result<Self, HeaderError> {
        let kind = cursor.u32(key)?;
        let n = cursor.u64(key)?;
        Ok(match kind {
            0 => Self::U8(numbers(cursor, key, n, u8::from_le_bytes)?),
            1 => Self::I8(numbers(cursor, key, n, i8::from_le_bytes)?),
            2 => Self::U16(numbers(cursor, key, n, u16::from_le_bytes)?),
            3 => Self::I16(numbers(cursor, key, n, i16::from_le_bytes)?),
            4 => Self::U32(numbers(cursor, key, n, u32::from_le_bytes)?),
            5 => Self::I32(numbers(cursor, key, n, i32::from_le_bytes)?),
            6 => Self::F32(numbers(cursor, key, n, f32::from_le_bytes)?),
            7 => Self::Bool(entries(cursor, key, (n, 1), |cursor| boolean(cursor, key))?),
            8 => Self::Text(entries(cursor, key, (n, 8), |cursor| cursor.text(key, (0, TEXT_BYTES_MAX)))?),
            9 if depth == DEPTH_MAX => {
                return Err(HeaderError::Depth { key: key.to_owned(), max: DEPTH_MAX });
            }
            9 => Self::Array(entries(cursor, key, (n, 4 + 8), |cursor| Self::read(cursor, key, depth + 1))?),
            10 => Self::U64(numbers(cursor, key, n, u64::from_le_bytes)?),
            11 => Self::I64(numbers(cursor, key, n, i64::from_le_bytes)?),
            12 => Self::F64(numbers(cursor, key, n, f64::from_le_bytes)?),
            found => return Err(HeaderError::ValueType { key: key.to_owned(), found }),
        })
    }

    fn widen(&self) -> KeyValue<'_> {
        fn integers<T: Copy + Into<i128>>(list: &[T]) -> KeyValue<'_> {
            KeyValue::Integers(list.iter().map(|&v| v.into()).collect())
        }
        match self {
            Self::U8(v) => integers(v),
            Self::I8(v) => integers(v),
            Self::U16(v) => integers(v),
            Self::I16(v) => integers(v),
            Self::U32(v) => integers(v),
            Self::I32(v) => integers(v),
            Self::U64(v) => integers(v),
            Self::I64(v) => integers(v),
            Self::F32(v) => KeyValue::Floats(v.iter().map(|&v| v.into()).collect()),
            Self::F64(v) => KeyValue::Floats(v.clone()),
            Self::Bool(v) => KeyValue::Bools(v.clone()),
            Self::Text(v) => KeyValue::Texts(v),
            Self::Array(_) => KeyValue::Nested,
        }
    }
}

fn boolean(cursor: &mut Cursor<'_>, key: &str) -> Result<bool, HeaderError> {
    match cursor.bytes(key)? {
        [0] => Ok(false),
        [1] => Ok(true),
        [found] => Err(HeaderError::Bool { key: key.to_owned(), found }),
    }
}

fn numbers<T, const N: usize>(
    cursor: &mut Cursor<'_>,
    key: &str,
    n: u64,
    decode: fn([u8; N]) -> T,
) -> Result<Vec<T>, HeaderError> {
    entries(cursor, key, (n, N as u64), |cursor| cursor.bytes(key).map(decode))
}

/// `n` entries of at least `min_bytes` bytes in the file, at most [`ENTRIES_MAX`].
fn entries<'a, T>(
    cursor: &mut Cursor<'a>,
    key: &str,
    (n, min_bytes): (u64, u64),
    mut read: impl FnMut(&mut Cursor<'a>) -> Result<T, HeaderError>,
) -> Result<Vec<T>, HeaderError> {
    // What isn't in the file is said first: a broken count is seldom a long array.
    cursor.check_left(key, n, min_bytes)?;
    if n > ENTRIES_MAX {
        return Err(HeaderError::Entries { key: key.to_owned(), found: n, max: ENTRIES_MAX });
    }
    let mut list = cursor.room(key, n, min_bytes)?;
    for _ in 0..n {
        list.push(read(cursor)?);
    }
    Ok(list)
}

/// Long texts and arrays are cut, with a count of what is left out.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(v) => v.fmt(f),
            Self::I8(v) => v.fmt(f),
            Self::U16(v) => v.fmt(f),
            Self::I16(v) => v.fmt(f),
            Self::U32(v) => v.fmt(f),
            Self::I32(v) => v.fmt(f),
            Self::F32(v) => v.fmt(f),
            Self::Bool(v) => v.fmt(f),
            Self::Text(v) => show_text(v, f),
            Self::Array(v) => v.fmt(f),
            Self::U64(v) => v.fmt(f),
            Self::I64(v) => v.fmt(f),
            Self::F64(v) => v.fmt(f),
        }
    }
}

/// Long arrays are cut, with a count of what is left out.
impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(v) => show(v, f, fmt::Display::fmt),
            Self::I8(v) => show(v, f, fmt::Display::fmt),
            Self::U16(v) => show(v, f, fmt::Display::fmt),
            Self::I16(v) => show(v, f, fmt::Display::fmt),
            Self::U32(v) => show(v, f, fmt::Display::fmt),
            Self::I32(v) => show(v, f, fmt::Display::fmt),
            Self::F32(v) => show(v, f, fmt::Display::fmt),
            Self::Bool(v) => show(v, f, fmt::Display::fmt),
            Self::Text(v) => show(v, f, |text, f| show_text(text, f)),
            Self::Array(v) => show(v, f, fmt::Display::fmt),
            Self::U64(v) => show(v, f, fmt::Display::fmt),
            Self::I64(v) => show(v, f, fmt::Display::fmt),
            Self::F64(v) => show(v, f, fmt::Display::fmt),
        }
    }
}

fn show<T>(
    list: &[T],
    f: &mut fmt::Formatter<'_>,
    one: impl Fn(&T, &mut fmt::Formatter<'_>) -> fmt::Result,
) -> fmt::Result {
    f.write_str("[")?;
    for (i, entry) in list.iter().take(SHOWN_MAX).enumerate() {
        f.write_str(if i == 0 { "" } else { ", " })?;
        one(entry, f)?;
    }
    match list.len().checked_sub(SHOWN_MAX) {
        None | Some(0) => f.write_str("]"),
        Some(rest) => write!(f, ", … {rest} more]"),
    }
}

fn show_text(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let shown = &text[..text.floor_char_boundary(TEXT_SHOWN_BYTES)];
    write!(f, "{shown:?}")?;
    match text.len() - shown.len() {
        0 => Ok(()),
        rest => write!(f, " … {rest} bytes more"),
    }
}
