//! Shows one answer as it is made: thoughts on stderr, the answer on stdout.

use std::error::Error;
use std::io::{self, IsTerminal, Write};

use forerun_decode::text::{Parted, Thoughts};
use forerun_decode::{Event, Generation, Report, Telemetry, bytes_text};

use crate::interrupt::Interrupt;
use crate::progress::{Bar, Unit};
use crate::say::piece;

/// Where an answer goes while it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    /// Answer to stdout, thoughts to stderr.
    Everything,
    /// Answer to stdout.
    AnswerOnly,
    /// Nothing: the caller prints it later.
    Nothing,
}

/// An answer that is over.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The answer without its thoughts.
    pub(crate) text: String,
    /// The thoughts before it.
    pub(crate) thoughts: String,
    pub(crate) report: Report,
}

/// Pulls the answer to its end, or until interrupted.
pub(crate) fn show(
    mut generation: Generation<'_>,
    mut thoughts: Thoughts,
    show: Show,
    interrupt: &Interrupt,
    quiet: bool,
) -> Result<Answer, Box<dyn Error>> {
    let mut out = Out::new(show);
    let mut bar = None;
    let outcome = loop {
        if interrupt.is_set() {
            break Ok(());
        }
        match generation.next() {
            Err(error) => break Err(error),
            Ok(None) => break Ok(()),
            Ok(Some(Event::Prompt { n_read, n_tokens })) => {
                let bar =
                    bar.get_or_insert_with(|| Bar::new("reading", Unit::Tokens, n_tokens as u64, quiet));
                bar.set(n_read as u64);
            }
            Ok(Some(Event::Text(more))) => {
                bar = None;
                out.write(&thoughts.push(&more.text))?;
            }
        }
    };
    drop(bar);
    out.write(&thoughts.finish())?;
    out.end()?;
    outcome?;
    let Parted { thought: thoughts, answer: text } = out.written;
    Ok(Answer { text, thoughts, report: generation.finish() })
}

struct Out {
    show: Show,
    dim: bool,
    thinking: bool,
    /// Everything so far, shown or not.
    written: Parted,
}

impl Out {
    fn new(show: Show) -> Self {
        Self { show, dim: io::stderr().is_terminal(), thinking: false, written: Parted::default() }
    }

    fn write(&mut self, Parted { thought, answer }: &Parted) -> io::Result<()> {
        self.written.thought.push_str(thought);
        self.written.answer.push_str(answer);
        if !thought.is_empty() && self.show == Show::Everything {
            if self.dim && !self.thinking {
                piece("\x1b[2m");
            }
            self.thinking = true;
            piece(thought);
        }
        if !answer.is_empty() && self.show != Show::Nothing {
            self.end_thoughts();
            let mut stdout = io::stdout().lock();
            stdout.write_all(answer.as_bytes())?;
            stdout.flush()?;
        }
        Ok(())
    }

    fn end_thoughts(&mut self) {
        if std::mem::take(&mut self.thinking) {
            piece(if self.dim { "\x1b[0m\n" } else { "\n" });
        }
    }

    fn end(&mut self) -> io::Result<()> {
        self.end_thoughts();
        let text = &self.written.answer;
        if self.show != Show::Nothing && !text.is_empty() && !text.ends_with('\n') {
            let mut stdout = io::stdout().lock();
            stdout.write_all(b"\n")?;
            stdout.flush()?;
        }
        Ok(())
    }
}

/// One line of figures for people.
pub(crate) fn summary(t: &Telemetry) -> String {
    let mut parts = vec![format!("{} prompt tokens in {:.0} ms", t.prompt_tokens, t.prompt_ms)];
    if t.prompt_reused_tokens > 0 {
        parts.push(format!("{} of them held already", t.prompt_reused_tokens));
    }
    parts.push(format!("{} tokens at {:.1} tok/s", t.decode_tokens, t.tokens_per_second));
    if t.draft_tokens > 0 {
        parts.push(format!("{} of {} drafted accepted", t.accepted_tokens, t.draft_tokens));
    }
    parts.push(format!("{:.0}% of experts in memory", t.hit_rate * 100.0));
    parts.push(format!("{} read in {} reads", bytes_text(t.bytes_demand + t.bytes_guess), t.reads));
    parts.push(format!("{:.0} ms waiting for them", t.stall_ms));
    if let Some(limit) = t.disk_limit {
        parts.push(format!("disk limited to {}/s", bytes_text(limit)));
    }
    if let Some(peak) = t.memory.peak {
        parts.push(format!("peak memory {}", bytes_text(peak)));
    }
    parts.join(" · ")
}
