//! The key-value pairs of a header, in the file's order.

use forerun_model::{KeyValue, KeyValues};

use super::header::{Counts, Cursor};
use super::value::Value;
use crate::error::HeaderError;

/// Longest key that is accepted; the format allows 64 KiB, but keys end up in messages.
const KEY_BYTES_MAX: u64 = 1024;

/// Data begins at a multiple of this where the header doesn't say otherwise.
const ALIGNMENT_DEFAULT: u64 = 32;

/// Largest alignment that makes sense.
const ALIGNMENT_MAX: u64 = 1 << 20;

/// A header's key-value pairs.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
}

impl Metadata {
    pub(super) fn read(cursor: &mut Cursor<'_>, counts: Counts) -> Result<Self, HeaderError> {
        let what = "the list of metadata keys";
        let mut entries: Vec<(String, Value)> = cursor.room(what, counts.n_entries, 1)?;
        let mut order: Vec<u32> = cursor.room(what, counts.n_entries, 1)?;
        for idx in 0..counts.n_entries {
            let key = cursor.name("a metadata key", (idx, KEY_BYTES_MAX))?;
            let value = Value::read(cursor, &key)?;
            entries.push((key, value));
        }
        order.extend((0..).take(entries.len()));
        let key = |i: u32| &entries[i as usize].0;
        order.sort_unstable_by(|&a, &b| key(a).cmp(key(b)));
        match order.windows(2).find(|pair| key(pair[0]) == key(pair[1])) {
            Some(pair) => Err(HeaderError::DuplicateKey { key: key(pair[0]).clone() }),
            None => Ok(Self { entries }),
        }
    }

    /// All pairs, in the file's order.
    pub fn entries(&self) -> &[(String, Value)] {
        &self.entries
    }

    /// The value of `key`, in the type that the file has it in.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.entries.iter().find(|entry| entry.0 == key).map(|entry| &entry.1)
    }

    /// Hands out the value of `key` and forgets it, so that its memory is the caller's. A vocabulary is to be taken
    /// after the model's shape was read, which counts its tokens.
    pub fn take(&mut self, key: &str) -> Option<Value> {
        let idx = self.entries.iter().position(|entry| entry.0 == key)?;
        Some(self.entries.remove(idx).1)
    }

    /// What tensor offsets are multiples of.
    pub(super) fn alignment(&self) -> Result<u64, HeaderError> {
        alignment_of(self.value("general.alignment"))
    }
}

/// What tensor offsets are multiples of when `general.alignment` is `value`.
pub(super) fn alignment_of(value: Option<&Value>) -> Result<u64, HeaderError> {
    let Some(value) = value else { return Ok(ALIGNMENT_DEFAULT) };
    let number = value.integer().and_then(|number| u64::try_from(number).ok());
    number
        .filter(|number| number.is_power_of_two() && *number <= ALIGNMENT_MAX)
        .ok_or_else(|| HeaderError::Alignment { found: value.to_string(), max: ALIGNMENT_MAX })
}

impl KeyValues for Metadata {
    fn get(&self, key: &str) -> Option<KeyValue<'_>> {
        self.value(key).map(Value::widen)
    }
}
