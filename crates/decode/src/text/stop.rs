//! Finds stop strings in text that arrives in pieces.

use super::TextError;

/// Most bytes of all stop strings together: a matcher compares each with the end of the text.
const STOP_BYTES_MAX: usize = 64 << 10;

/// Looks for stop strings across the borders of pieces and holds back what may become one.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Text that is not yet safe to show: the longest end of the text that begins a stop string.
    held: String,
    found: Option<usize>,
}

/// What a piece of text led to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopOutput {
    /// Text that can be shown now.
    pub text: String,
    /// The stop string that was met, by its position in the list. It and what follows is never shown.
    pub stop: Option<usize>,
}

impl StopMatcher {
    /// A matcher for `stops`; with none of them all text passes at once.
    ///
    /// # Errors
    /// [`TextError::EmptyStop`]: it would stop everything; [`TextError::StopSize`]: more text than we look for.
    pub fn new(stops: Vec<String>) -> Result<Self, TextError> {
        if let Some(index) = stops.iter().position(String::is_empty) {
            return Err(TextError::EmptyStop { index });
        }
        let found_bytes = stops.iter().map(String::len).sum();
        if found_bytes > STOP_BYTES_MAX {
            return Err(TextError::StopSize { found_bytes, n_stops: stops.len(), max_bytes: STOP_BYTES_MAX });
        }
        Ok(Self { stops, held: String::new(), found: None })
    }

    /// Takes the next piece. The stop string that ends first in the text counts; of those that end together, the
    /// one that begins first. After it everything is swallowed.
    pub fn push(&mut self, piece: &str) -> StopOutput {
        if self.found.is_some() {
            return StopOutput { text: String::new(), stop: self.found };
        }
        if self.stops.is_empty() {
            return StopOutput { text: piece.to_owned(), stop: None };
        }
        let old = self.held.len();
        self.held.push_str(piece);
        if let Some((stop, start)) = self.first_stop(old) {
            self.found = Some(stop);
            self.held.truncate(start);
            return StopOutput { text: std::mem::take(&mut self.held), stop: Some(stop) };
        }
        let safe = self.held.len() - self.possible_begin();
        // Collected from characters, a string would grow step by step.
        let text = self.held[..safe].to_owned();
        self.held.drain(..safe);
        StopOutput { text, stop: None }
    }

    /// Ends the text: what was held back became no stop string, so it is to be shown.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The stop string that was met, by its position in the list.
    pub fn stop(&self) -> Option<usize> {
        self.found
    }

    /// The stop string that ends first behind byte `old`, and where it begins.
    fn first_stop(&self, old: usize) -> Option<(usize, usize)> {
        let ends = |(index, stop): (usize, &String)| {
            let from = self.held.floor_char_boundary(old.saturating_sub(stop.len()));
            let start = from + self.held[from..].find(stop.as_str())?;
            Some((start + stop.len(), start, index))
        };
        self.stops.iter().enumerate().filter_map(ends).min().map(|(_, start, index)| (index, start))
    }

    /// Bytes of the longest end of the held text that begins a stop string without being all of it.
    fn possible_begin(&self) -> usize {
        let longest = |stop: &String| {
            let from = self.held.floor_char_boundary(self.held.len().saturating_sub(stop.len() - 1));
            let tail = &self.held[from..];
            let starts = tail.char_indices().map(|(at, _)| &tail[at..]);
            starts.filter(|end| end.len() < stop.len() && stop.starts_with(end)).map(str::len).next()
        };
        self.stops.iter().filter_map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pieces separated by `|`; the output likewise, `!n` for a stop, `.` before what `finish` gives.
    #[track_caller]
    fn check(stops: &[&str], pieces: &str, expect: &str) {
        let mut matcher = StopMatcher::new(stops.iter().map(|&s| s.into()).collect()).unwrap();
        let mut seen: Vec<String> = Vec::new();
        for piece in pieces.split('|') {
            let output = matcher.push(piece);
            let stop = output.stop.map(|n| format!("!{n}")).unwrap_or_default();
            seen.push(output.text + &stop);
        }
        assert_eq!(format!("{}.{}", seen.join("|"), matcher.finish()), expect);
    }

    #[test]
    fn a_stop_string_may_cross_pieces() {
        check(&["END"], "go E|N|D more|x", "go ||!0|!0.");
    }

    #[test]
    fn what_only_looked_like_one_is_shown() {
        check(&["END"], "E|N|Z", "||ENZ.");
        check(&["END"], "xE|N", "x|.EN");
        check(&["aab"], "aa|ab", "|a!0.");
    }

    #[test]
    fn the_one_that_ends_first_counts() {
        check(&["abcd", "bc"], "abcd", "a!1.");
        check(&["cd", "bcd"], "abcd", "a!1.");
    }

    #[test]
    fn characters_stay_whole() {
        check(&["é\u{301}"], "aé|\u{301}b", "a|!0.");
        check(&["🦙!"], "🦙|🦙?|🦙!", "|🦙🦙?|!0.");
    }

    #[test]
    fn without_stop_strings_all_text_passes() {
        check(&[], "a|b", "a|b.");
    }

    #[test]
    fn an_empty_or_huge_stop_string_is_refused() {
        let empty = StopMatcher::new(vec!["a".into(), String::new()]);
        assert!(matches!(empty, Err(TextError::EmptyStop { index: 1 })));
        let huge = StopMatcher::new(vec!["a".repeat(STOP_BYTES_MAX + 1)]);
        assert!(matches!(huge, Err(TextError::StopSize { .. })));
    }

    /// The definition: where each stop string first ends in the whole text.
    fn naive(stops: &[String], text: &str) -> (String, Option<usize>) {
        let ends = |(i, stop): (usize, &String)| text.find(stop.as_str()).map(|at| (at + stop.len(), at, i));
        match stops.iter().enumerate().filter_map(ends).min() {
            Some((_, start, index)) => (text[..start].into(), Some(index)),
            None => (text.into(), None),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_split_finds_what_a_search_of_the_whole_finds(
            stops in prop::collection::vec("[abé🦙]{1,4}", 0..4),
            pieces in prop::collection::vec("[abé🦙]{0,5}", 0..8),
        ) {
            let mut matcher = StopMatcher::new(stops.clone()).unwrap();
            let (mut text, mut stop) = (String::new(), None);
            for piece in &pieces {
                let output = matcher.push(piece);
                text += &output.text;
                stop = stop.or(output.stop);
            }
            text += &matcher.finish();
            prop_assert_eq!((text, stop), naive(&stops, &pieces.concat()));
        }
    }
}
