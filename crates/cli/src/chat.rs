//! `forerun chat`: a conversation on a terminal, or over a pipe, a line a turn.

use std::error::Error;

use forerun_decode::text::{Message, RenderRequest, Role, Thoughts};
use forerun_decode::{DecodeError, FinishReason, Generation, Session};
use forerun_model::TokenId;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::Outcome;
use crate::answer::{Answer, Show, show, summary};
use crate::args::ChatArgs;
use crate::interrupt::Interrupt;
use crate::load::{Loaded, load};

const HELP: &str = "/reset forgets the conversation, /exit (or Ctrl-D) ends it, Ctrl-C stops an answer";
/// This share of the context is kept free for an answer when old turns are dropped.
const ANSWER_SHARE: usize = 4;

/// Talks until the input ends.
pub(crate) fn chat(args: &ChatArgs) -> Result<Outcome, Box<dyn Error>> {
    let interrupt = Interrupt::install()?;
    let Some(loaded) = load(&args.model, &args.sampling, &interrupt)? else {
        return Ok(Outcome::Interrupted);
    };
    let system: Vec<_> = args.sampling.system.iter().map(Message::system).collect();
    let mut chat = Chat {
        loaded,
        session: Session::new(),
        messages: system.clone(),
        n_system: system.len(),
        quiet: args.model.quiet,
    };
    let mut editor = DefaultEditor::new()?;
    if !chat.quiet {
        eprintln!("forerun: {HELP}");
    }
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(Outcome::Done),
            Err(error) => return Err(error.into()),
        };
        if interrupt.is_set() {
            return Ok(Outcome::Interrupted);
        }
        match line.trim() {
            "" => continue,
            "/exit" | "/quit" => return Ok(Outcome::Done),
            "/help" => eprintln!("{HELP}"),
            "/reset" => chat.messages.truncate(chat.n_system),
            text => {
                editor.add_history_entry(text)?;
                chat.turn(text, &interrupt)?;
                // It stopped the answer; the conversation goes on.
                interrupt.clear();
            }
        }
    }
}

struct Chat {
    loaded: Loaded,
    session: Session,
    messages: Vec<Message>,
    /// Messages that are never dropped.
    n_system: usize,
    quiet: bool,
}

impl Chat {
    /// One question, one answer. A question that can't be answered is taken back, and the conversation goes on.
    fn turn(&mut self, text: &str, interrupt: &Interrupt) -> Result<(), Box<dyn Error>> {
        if let Err(error) = self.loaded.engine.check_prompt_size(text) {
            eprintln!("forerun: {error}");
            return Ok(());
        }
        self.messages.push(Message::user(text));
        match self.answer(interrupt) {
            Ok(answer) => {
                if answer.report.finish_reason == FinishReason::Length && !self.quiet {
                    eprintln!(
                        "forerun: the answer was cut: the context is full, or --max-tokens was reached"
                    );
                }
                if !self.quiet {
                    eprintln!("forerun: {}", summary(&answer.report.telemetry));
                }
                let mut message = Message::assistant(answer.text);
                message.reasoning_content = Some(answer.thoughts).filter(|thoughts| !thoughts.is_empty());
                self.messages.push(message);
                Ok(())
            }
            Err(error) => {
                self.messages.pop();
                match error.downcast_ref::<DecodeError>() {
                    Some(_) => eprintln!("forerun: {}", crate::chain(&*error)),
                    None => return Err(error),
                }
                Ok(())
            }
        }
    }

    fn answer(&mut self, interrupt: &Interrupt) -> Result<Answer, Box<dyn Error>> {
        let (prompt, thoughts) = self.fitting_prompt()?;
        let Loaded { engine, generation, .. } = &mut self.loaded;
        let generation = Generation::new(engine, &mut self.session, prompt, generation)?;
        let shown = if self.quiet { Show::AnswerOnly } else { Show::Everything };
        show(generation, thoughts, shown, interrupt, self.quiet)
    }

    /// Renders the conversation; drops its oldest turns until an answer fits as well.
    fn fitting_prompt(&mut self) -> Result<(Vec<TokenId>, Thoughts), DecodeError> {
        let context = self.loaded.engine.plan().context;
        let mut n_dropped = 0;
        loop {
            let request =
                RenderRequest { thinking: self.loaded.thinking, ..RenderRequest::new(&self.messages) };
            let rendered = self.loaded.engine.template()?.render(&request)?;
            let tokens = rendered.encode(self.loaded.engine.tokenizer())?;
            let fits = tokens.len() + context / ANSWER_SHARE <= context;
            if fits || !self.drop_oldest_turn() {
                if n_dropped > 0 && !self.quiet {
                    eprintln!("forerun: the context is full: {n_dropped} oldest turns were dropped");
                }
                return Ok((tokens, Thoughts::after(&rendered.text())));
            }
            n_dropped += 1;
        }
    }

    /// Drops the oldest question and its answers; `false` when only the newest question is left.
    fn drop_oldest_turn(&mut self) -> bool {
        let later = &self.messages[self.n_system..];
        let is_question = |message: &&Message| message.role == Role::User;
        let Some(n) = later.iter().skip(1).position(|message| is_question(&message)) else { return false };
        self.messages.drain(self.n_system..self.n_system + n + 1);
        true
    }
}
