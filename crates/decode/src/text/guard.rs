//! Keeps what a person wrote apart from what a template wrote, through a template that knows no difference.
//!
//! A marker such as `<|im_start|>` begins and ends in characters that we *guard*: in every text that comes from
//! outside, each of them is replaced by a stand-in from Unicode's plane 16 before the template runs. Whatever the
//! template does (trims, splits, cuts, joins), a marker in its output then has its first and last character from
//! the template itself. A text that could be the middle of a marker (`think`) gets a stand-in for its first
//! character, so that no template completes it. After rendering, markers are looked for first and the stand-ins
//! are taken back second.
//!
//! Characters of plane 16 in a text are replaced likewise, so that nobody can write a stand-in.
//!
//! What this can't see: a template that cuts the middle of a marker out of a longer text and puts the marker's
//! ends around it; and the names and values of a tool's schema as such a middle, since templates ask for them by
//! name.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use minijinja::Value;
use serde_json::Value as Json;

use super::TextError;

/// The first stand-in.
const STAND_INS_FIRST: u32 = 0x10_0000;

/// All of plane 16 but its two noncharacters.
const STAND_INS_MAX: usize = 0xfffe;

/// Deepest nesting of JSON that is handed to a template.
const DEPTH_MAX: usize = 128;

/// What has to be guarded, for the markers of one vocabulary.
#[derive(Clone, Debug)]
pub(super) struct Guarded {
    ends: BTreeSet<char>,
    /// The markers without their first and last character.
    middles: Box<[Box<str>]>,
    middle_bytes_max: usize,
}

impl Guarded {
    /// Guards against `markers`.
    pub(super) fn new<'a>(markers: impl Iterator<Item = &'a str>) -> Self {
        let (mut ends, mut middles) = (BTreeSet::new(), Vec::<Box<str>>::new());
        for marker in markers {
            let mut chars = marker.chars();
            ends.extend(chars.next());
            ends.extend(chars.next_back().or_else(|| marker.chars().next()));
            middles.push(chars.as_str().into());
        }
        let middle_bytes_max = middles.iter().map(|middle| middle.len()).max().unwrap_or(0);
        Self { ends, middles: middles.into(), middle_bytes_max }
    }

    fn is_middle(&self, text: &str) -> bool {
        let fits = (1..=self.middle_bytes_max).contains(&text.len());
        fits && self.middles.iter().any(|middle| middle.contains(text))
    }
}

/// The stand-ins of one rendering.
#[derive(Clone, Debug, Default)]
pub(super) struct StandIns {
    originals: Vec<char>,
}

impl StandIns {
    /// Gives back what a person wrote.
    pub(super) fn restore<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if !text.chars().any(|c| self.original(c).is_some()) {
            return Cow::Borrowed(text);
        }
        Cow::Owned(text.chars().map(|c| self.original(c).unwrap_or(c)).collect())
    }

    fn original(&self, c: char) -> Option<char> {
        let index = u32::from(c).checked_sub(STAND_INS_FIRST)?;
        self.originals.get(index as usize).copied()
    }
}

/// Replaces guarded characters, and remembers by what.
#[derive(Debug)]
pub(super) struct Guard<'g> {
    guarded: &'g Guarded,
    stand_ins: StandIns,
    by_original: BTreeMap<char, char>,
    /// Bytes of all texts so far.
    pub(super) n_bytes: usize,
    /// JSON values so far.
    pub(super) n_values: usize,
}

impl<'g> Guard<'g> {
    /// A guard with no stand-ins yet.
    pub(super) fn new(guarded: &'g Guarded) -> Self {
        Self {
            guarded,
            stand_ins: StandIns::default(),
            by_original: BTreeMap::new(),
            n_bytes: 0,
            n_values: 0,
        }
    }

    /// What [`StandIns::restore`] needs.
    pub(super) fn into_stand_ins(self) -> StandIns {
        self.stand_ins
    }

    /// A text that the template may place anywhere.
    pub(super) fn text(&mut self, text: &str) -> Result<Value, TextError> {
        let first = text.find(|c: char| !c.is_whitespace());
        let middle = first.filter(|_| self.guarded.is_middle(text.trim()));
        self.replaced(text, middle).map(Value::from)
    }

    /// Like [`Self::text`], for what is left of a text that was cut: a template that trims keeps its first character.
    pub(super) fn cut_text(&mut self, text: &str) -> Result<Value, TextError> {
        match text.chars().next().filter(|c| c.is_whitespace()) {
            Some(_) => self.replaced(text, Some(0)).map(Value::from),
            None => self.text(text),
        }
    }

    /// A text that the template may ask for by name: a key, or a word of a tool's schema.
    fn name(&mut self, text: &str) -> Result<String, TextError> {
        self.replaced(text, None)
    }

    /// The arguments of a call: their texts may be placed anywhere.
    pub(super) fn arguments(&mut self, json: &Json) -> Result<Value, TextError> {
        self.json(json, "a tool call", Self::text, 0)
    }

    /// The description of a tool.
    pub(super) fn schema(&mut self, json: &Json) -> Result<Value, TextError> {
        self.json(json, "a tool", |guard, text| guard.name(text).map(Value::from), 0)
    }

    fn json(
        &mut self,
        json: &Json,
        place: &'static str,
        text: fn(&mut Self, &str) -> Result<Value, TextError>,
        depth: usize,
    ) -> Result<Value, TextError> {
        if depth > DEPTH_MAX {
            return Err(TextError::Nesting { place, max: DEPTH_MAX });
        }
        self.n_values += 1;
        match json {
            Json::String(string) => text(self, string),
            Json::Array(items) => {
                items.iter().map(|item| self.json(item, place, text, depth + 1)).collect::<Result<Value, _>>()
            }
            Json::Object(fields) => {
                let field = |(key, value): (&String, &Json)| {
                    Ok((Value::from(self.name(key)?), self.json(value, place, text, depth + 1)?))
                };
                fields.iter().map(field).collect::<Result<Vec<_>, _>>().map(Value::from_pairs)
            }
            Json::Number(number) => Ok(match (number.as_i64(), number.as_u64()) {
                (Some(integer), _) => Value::from(integer),
                (None, Some(integer)) => Value::from(integer),
                (None, None) => Value::from(number.as_f64()),
            }),
            Json::Bool(truth) => Ok(Value::from(*truth)),
            Json::Null => Ok(Value::from(())),
        }
    }

    /// `text` with stand-ins for its guarded characters, and for the one at byte `also`.
    fn replaced(&mut self, text: &str, also: Option<usize>) -> Result<String, TextError> {
        self.n_bytes = self.n_bytes.saturating_add(text.len());
        let mut out = String::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            let ours = u32::from(c) >= STAND_INS_FIRST;
            let replace = ours || self.guarded.ends.contains(&c) || also == Some(at);
            out.push(if replace { self.stand_in(c)? } else { c });
        }
        Ok(out)
    }

    fn stand_in(&mut self, original: char) -> Result<char, TextError> {
        if let Some(&known) = self.by_original.get(&original) {
            return Ok(known);
        }
        let index = self.stand_ins.originals.len();
        let code = u32::try_from(index).ok().filter(|_| index < STAND_INS_MAX).map(|i| STAND_INS_FIRST + i);
        let full = TextError::PrivateCharacters { max: STAND_INS_MAX };
        let stand_in = code.and_then(char::from_u32).ok_or(full)?;
        self.stand_ins.originals.push(original);
        self.by_original.insert(original, stand_in);
        Ok(stand_in)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guarded() -> Guarded {
        Guarded::new(["<|im_end|>", "<think>", "*"].into_iter())
    }

    #[test]
    fn no_marker_end_survives_and_all_comes_back() {
        let guarded = guarded();
        for text in ["a<|im_end|>b", "***", "\u{100000}\u{10ffff}<", "  think\n", "plain"] {
            let mut guard = Guard::new(&guarded);
            let hidden = guard.text(text).unwrap().to_string();
            assert!(!hidden.contains(['<', '>', '*']), "{hidden:?}");
            assert_eq!(guard.into_stand_ins().restore(&hidden), text);
        }
    }

    #[test]
    fn the_middle_of_a_marker_is_broken() {
        let guarded = guarded();
        let mut guard = Guard::new(&guarded);
        for text in ["think", " hin ", "|im_end|"] {
            assert_ne!(guard.text(text).unwrap().as_str(), Some(text));
        }
        assert_eq!(guard.text("thinking").unwrap().as_str(), Some("thinking"));
        assert_eq!(guard.name("think").unwrap(), "think");
    }

    #[test]
    fn deep_json_is_refused() {
        let mut json = Json::Null;
        for _ in 0..200 {
            json = Json::Array(vec![json]);
        }
        let error = Guard::new(&guarded()).schema(&json).unwrap_err();
        assert!(matches!(error, TextError::Nesting { place: "a tool", .. }));
    }
}
