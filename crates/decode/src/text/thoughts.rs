//! Parts an answer into thoughts and what is meant for the reader.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Splits text that arrives in pieces at `</think>`. A prompt that ends with an open `<think>` makes the answer
/// begin inside; an answer may also open its thoughts itself, as its first word.
#[derive(Clone, Debug)]
pub struct Thoughts {
    state: State,
    /// Text that may become a marker, or white space whose end isn't known.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but white space so far; thoughts may open.
    Begin,
    /// Thoughts have just opened; line ends before them are skipped.
    Opened,
    Inside,
    /// Behind the thoughts; white space before the answer is skipped.
    Behind,
    Answer,
}

/// What a piece brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parted {
    /// Thoughts.
    pub thought: String,
    /// Answer.
    pub answer: String,
}

impl Thoughts {
    /// For text that has no thoughts: everything is answer.
    pub fn none() -> Self {
        Self { state: State::Answer, held: String::new() }
    }

    /// For the answer to a rendered prompt.
    pub fn after(prompt: &str) -> Self {
        let inside = prompt.trim_end().ends_with(OPEN);
        Self { state: if inside { State::Inside } else { State::Begin }, held: String::new() }
    }

    /// Takes the next piece.
    pub fn push(&mut self, piece: &str) -> Parted {
        self.held.push_str(piece);
        let mut parted = Parted::default();
        while self.advance(&mut parted) {}
        parted
    }

    /// Whether what comes next is a thought, as far as is known.
    pub fn is_inside(&self) -> bool {
        matches!(self.state, State::Opened | State::Inside)
    }

    /// Ends the text; what was held back comes out.
    pub fn finish(&mut self) -> Parted {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Inside => Parted { thought: held.trim_end().to_owned(), answer: String::new() },
            State::Opened | State::Behind => Parted::default(),
            State::Begin | State::Answer => Parted { thought: String::new(), answer: held },
        }
    }

    /// Moves what is decided out of `held`; `true` when the state changed and there may be more.
    fn advance(&mut self, parted: &mut Parted) -> bool {
        let before = self.state;
        match before {
            State::Begin => {
                let text = self.held.trim_start();
                if let Some(rest) = text.strip_prefix(OPEN) {
                    self.held = rest.to_owned();
                    self.state = State::Opened;
                } else if !OPEN.starts_with(text) {
                    self.state = State::Answer;
                }
            }
            State::Opened => {
                let n_skipped = self.held.len() - self.held.trim_start_matches('\n').len();
                self.held.drain(..n_skipped);
                if !self.held.is_empty() {
                    self.state = State::Inside;
                }
            }
            State::Inside => {
                if let Some(at) = self.held.find(CLOSE) {
                    parted.thought.push_str(self.held[..at].trim_end());
                    self.held.drain(..at + CLOSE.len());
                    self.state = State::Behind;
                } else {
                    let safe = self.held.len() - undecided(&self.held);
                    parted.thought.extend(self.held.drain(..safe));
                }
            }
            State::Behind => {
                let text = self.held.trim_start();
                if !text.is_empty() {
                    self.held = text.to_owned();
                    self.state = State::Answer;
                } else {
                    self.held.clear();
                }
            }
            State::Answer => parted.answer.push_str(&std::mem::take(&mut self.held)),
        }
        self.state != before
    }
}

/// Bytes at the end of `text` that may begin the end marker, or white space before it.
fn undecided(text: &str) -> usize {
    let marker = (1..CLOSE.len()).rev().find(|&n| text.ends_with(&CLOSE[..n])).unwrap_or(0);
    let rest = &text[..text.len() - marker];
    marker + rest.len() - rest.trim_end().len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(mut thoughts: Thoughts, pieces: &[&str]) -> (String, String) {
        let mut all = Parted::default();
        for piece in pieces {
            let parted = thoughts.push(piece);
            all.thought += &parted.thought;
            all.answer += &parted.answer;
        }
        let parted = thoughts.finish();
        (all.thought + &parted.thought, all.answer + &parted.answer)
    }

    #[track_caller]
    fn check(prompt: &str, text: &str, thought: &str, answer: &str) {
        assert_eq!(
            part(Thoughts::after(prompt), &[text]),
            (thought.to_owned(), answer.to_owned()),
            "{text:?}"
        );
    }

    #[test]
    fn thoughts_and_answers_are_parted() {
        check("<think>\n", "Hm.\n</think>\n\nYes.", "Hm.", "Yes.");
        check("<think>\n", "never closed", "never closed", "");
        check("<think>\n\n</think>\n\n", "Yes.\n", "", "Yes.\n");
        check("assistant\n", "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes.");
        check("assistant\n", "<thin ice", "", "<thin ice");
        check("assistant\n", "a < b </think> c", "", "a < b </think> c");
        check("<think>", "1 </thin 2</think>3</think>", "1 </thin 2", "3</think>");
    }

    #[test]
    fn a_line_end_may_come_after_the_marker() {
        let thoughts = part(Thoughts::after(""), &["<think>", "\n", "Hm.", "</think>"]);
        assert_eq!(thoughts, ("Hm.".to_owned(), String::new()));
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            text in "([ a\n]|<think>|</think>|<|/){0,20}",
            cuts in prop::collection::vec(0_usize..60, 0..6),
            inside: bool,
        ) {
            let prompt = if inside { "<think>\n" } else { "" };
            let mut cuts: Vec<_> = cuts.into_iter().map(|c| c.min(text.len())).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut start = 0;
            for cut in cuts.into_iter().chain([text.len()]) {
                pieces.push(&text[start..cut]);
                start = cut;
            }
            prop_assert_eq!(part(Thoughts::after(prompt), &pieces), part(Thoughts::after(prompt), &[&text]));
        }
    }
}
