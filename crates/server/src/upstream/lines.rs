//! Whole lines of a stream of events: a line that breaks off is never passed on, so that what follows it stays readable.

use axum::body::Bytes;

use super::fault::Fault;

/// Most bytes of a line.
const LINE_BYTES_MAX: usize = 4 << 20;

/// Lines so far.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The begin of a line.
    rest: Vec<u8>,
    /// Whether the last event came.
    is_done: bool,
}

impl Lines {
    /// Adds a piece; gives the lines that are whole now, which may be none.
    ///
    /// # Errors
    /// [`Fault::TooLarge`].
    pub(super) fn push(&mut self, piece: Bytes) -> Result<Bytes, Fault> {
        let Some(end) = piece.iter().rposition(|byte| *byte == b'\n') else {
            if self.rest.len() + piece.len() > LINE_BYTES_MAX {
                return Err(Fault::TooLarge(LINE_BYTES_MAX));
            }
            self.rest.extend_from_slice(&piece);
            return Ok(Bytes::new());
        };
        let (mut whole, rest) = (piece.slice(..=end), piece.slice(end + 1..));
        if !self.rest.is_empty() {
            self.rest.extend_from_slice(&whole);
            whole = std::mem::take(&mut self.rest).into();
        }
        self.rest.extend_from_slice(&rest);
        self.is_done |= whole.split(|byte| *byte == b'\n').any(is_last);
        Ok(whole)
    }

    /// Whether the last event came: nothing that happens afterwards matters.
    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }
}

/// Whether a line is the data of the last event.
fn is_last(line: &[u8]) -> bool {
    line.strip_prefix(b"data:").is_some_and(|data| data.trim_ascii() == b"[DONE]")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces that come of `pieces`, with `|` between them, and whether that was all.
    #[track_caller]
    fn check(pieces: &str, expect: &str, is_done: bool) {
        let mut lines = Lines::default();
        let push =
            |piece: &str| String::from_utf8(lines.push(piece.to_owned().into()).unwrap().into()).unwrap();
        let found: Vec<_> = pieces.split('|').map(push).collect();
        assert_eq!((found.join("|").as_str(), lines.is_done()), (expect, is_done), "{pieces:?}");
    }

    #[test]
    fn lines_pass_when_they_are_whole() {
        check("data: 1\n\n|data: 2\n\n", "data: 1\n\n|data: 2\n\n", false);
        check("da|ta: 1|\n\ndata", "||data: 1\n\n", false);
        check("data: 1\n\nda|ta: 2\n\n", "data: 1\n\n|data: 2\n\n", false);
    }

    #[test]
    fn the_last_event_is_a_line_and_no_text() {
        check("data: 1\n\ndata: [DONE]\n\n", "data: 1\n\ndata: [DONE]\n\n", true);
        check("data:[DO|NE]\r\n|\r\n", "|data:[DONE]\r\n|\r\n", true);
        check("data: {\"text\": \"[DONE]\"}\n\n", "data: {\"text\": \"[DONE]\"}\n\n", false);
        check("data: [DONE]", "", false);
    }

    #[test]
    fn a_line_without_end_is_bounded() {
        let mut lines = Lines::default();
        let piece = Bytes::from(vec![b'x'; LINE_BYTES_MAX / 2]);
        assert!(lines.push(piece.clone()).is_ok() && lines.push(piece.clone()).is_ok());
        assert!(matches!(lines.push(piece), Err(Fault::TooLarge(_))));
    }
}
