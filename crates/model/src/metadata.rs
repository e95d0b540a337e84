//! How a header's key-value pairs are asked for, whatever file they came from.

use crate::ShapeError;

/// One value of a file's metadata, widened so that a reader needn't care which width the writer chose.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyValue<'a> {
    /// Any integer type.
    Integer(i128),
    /// Either float type.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A string.
    Text(&'a str),
    /// An array of any integer type.
    Integers(Vec<i128>),
    /// An array of either float type.
    Floats(Vec<f64>),
    /// An array of truth values.
    Bools(Vec<bool>),
    /// An array of strings.
    Texts(&'a [String]),
    /// Something that no key of ours has: an array of arrays.
    Nested,
}

impl KeyValue<'_> {
    /// What this value is, in words for an error.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a bool",
            Self::Text(_) => "a string",
            Self::Integers(_) => "an array of integers",
            Self::Floats(_) => "an array of floats",
            Self::Bools(_) => "an array of bools",
            Self::Texts(_) => "an array of strings",
            Self::Nested => "an array of arrays",
        }
    }
}

/// A file's metadata, by key.
pub trait KeyValues {
    /// The value of `key`, or `None` when the file has no such key.
    fn get(&self, key: &str) -> Option<KeyValue<'_>>;
}

/// Reads `key` as an integer in `min..=max`; `None` when the key is absent.
///
/// # Errors
/// [`ShapeError::KeyType`] when it isn't an integer, [`ShapeError::KeyRange`] when it is out of range.
pub fn integer(kv: &dyn KeyValues, key: &str, min: u64, max: u64) -> Result<Option<u64>, ShapeError> {
    match kv.get(key) {
        None => Ok(None),
        Some(KeyValue::Integer(value)) => in_range(key, value, min, max).map(Some),
        Some(other) => Err(wrong_type(key, "an integer", &other)),
    }
}

/// Like [`integer`], for a key that must be there.
///
/// # Errors
/// Those of [`integer`], and [`ShapeError::MissingKey`].
pub fn required_integer(kv: &dyn KeyValues, key: &str, min: u64, max: u64) -> Result<u64, ShapeError> {
    integer(kv, key, min, max)?.ok_or_else(|| ShapeError::MissingKey { key: key.to_owned() })
}

/// Reads `key` as a float or an integer; `None` when the key is absent.
///
/// # Errors
/// [`ShapeError::KeyType`] when it is neither.
pub fn float(kv: &dyn KeyValues, key: &str) -> Result<Option<f64>, ShapeError> {
    match kv.get(key) {
        None => Ok(None),
        Some(KeyValue::Float(value)) => Ok(Some(value)),
        #[expect(clippy::cast_precision_loss, reason = "a float key written as an integer is small")]
        Some(KeyValue::Integer(value)) => Ok(Some(value as f64)),
        Some(other) => Err(wrong_type(key, "a float", &other)),
    }
}

/// Reads `key` as a bool; `None` when the key is absent.
///
/// # Errors
/// [`ShapeError::KeyType`] when it isn't one.
pub fn boolean(kv: &dyn KeyValues, key: &str) -> Result<Option<bool>, ShapeError> {
    match kv.get(key) {
        None => Ok(None),
        Some(KeyValue::Bool(value)) => Ok(Some(value)),
        Some(other) => Err(wrong_type(key, "a bool", &other)),
    }
}

/// Checks one integer of `key` against its range.
pub(crate) fn in_range(key: &str, value: i128, min: u64, max: u64) -> Result<u64, ShapeError> {
    u64::try_from(value).ok().filter(|v| (min..=max).contains(v)).ok_or_else(|| ShapeError::KeyRange {
        key: key.to_owned(),
        value,
        min,
        max,
    })
}

/// The error of a key that holds something else than it should.
pub(crate) fn wrong_type(key: &str, expected: &'static str, found: &KeyValue<'_>) -> ShapeError {
    ShapeError::KeyType { key: key.to_owned(), expected, found: found.kind() }
}
