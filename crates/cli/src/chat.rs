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
use crate::load::{Loaded, Wish, load};
use crate::say::say;

const HELP: &str = "/reset forgets the conversation, /exit (or Ctrl-D) ends it, Ctrl-C stops an answer";
/// This share of the context is kept free for an answer when old turns are dropped.
const ANSWER_SHARE: usize = 4;

/// Talks until the input ends.
pub(crate) fn chat(args: &ChatArgs) -> Result<Outcome, Box<dyn Error>> {
    let interrupt = Interrupt::install()?;
    let wish = Wish { draft: Some(&args.draft), n_checkpoints: 1, ..Wish::default() };
    let Some(loaded) = load(&args.model, &args.sampling, wish, &interrupt)? else {
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
        say!("{HELP}");
    }
    loop {
        let line = match interrupt.while_idle(|| editor.readline("> ")) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(Outcome::Done),
            Err(error) => return Err(error.into()),
        };
        match line.trim() {
            "" => continue,
            "/exit" | "/quit" => return Ok(Outcome::Done),
            "/help" => say!("{HELP}"),
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
    /// One question, one answer. A question that can't be answered is taken back, and the conversation goes on as it
    /// was before.
    fn turn(&mut self, text: &str, interrupt: &Interrupt) -> Result<(), Box<dyn Error>> {
        self.messages.push(Message::user(text));
        match self.answer(interrupt) {
            Ok(answer) => self.keep(answer),
            Err(error) => {
                self.messages.pop();
                match error.downcast_ref::<DecodeError>() {
                    Some(_) => say!("{}", crate::chain(&*error)),
                    None => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Adds the answer to the conversation; a question that was interrupted before any answer is taken back.
    fn keep(&mut self, answer: Answer) {
        let reason = answer.report.finish_reason;
        if reason == FinishReason::Length && !self.quiet {
            say!("the answer was cut: the context is full, or --max-tokens was reached");
        }
        if !self.quiet {
            say!("{}", summary(&answer.report.telemetry));
        }
        if reason == FinishReason::Interrupted && answer.text.is_empty() {
            self.messages.pop();
            return;
        }
        let mut message = Message::assistant(answer.text);
        message.reasoning_content = Some(answer.thoughts).filter(|thoughts| !thoughts.is_empty());
        self.messages.push(message);
    }

    fn answer(&mut self, interrupt: &Interrupt) -> Result<Answer, Box<dyn Error>> {
        let question = self.messages.last().and_then(|message| message.content.as_deref());
        self.loaded.engine.check_prompt_size(question.unwrap_or_default())?;
        let Fitting { prompt, n_lasting, thoughts, n_dropped } = self.fit()?;
        let Loaded { engine, generation, .. } = &mut self.loaded;
        generation.checkpoint_at = Some(n_lasting);
        let generation = Generation::new(engine, &mut self.session, prompt, generation)?;
        if n_dropped > 0 {
            self.messages.drain(self.n_system..self.n_system + n_dropped);
            if !self.quiet {
                say!("the context is full: the {n_dropped} oldest messages were dropped");
            }
        }
        let shown = if self.quiet { Show::AnswerOnly } else { Show::Everything };
        show(generation, thoughts, shown, interrupt, self.quiet)
    }

    /// The prompt of the conversation, without as many of its oldest turns as it takes to leave room for an answer.
    fn fit(&self) -> Result<Fitting, DecodeError> {
        let context = self.loaded.engine.plan().context;
        let (system, later) = self.messages.split_at(self.n_system);
        let mut n_dropped = 0;
        loop {
            let messages = [system, &later[n_dropped..]].concat();
            let request = RenderRequest { thinking: self.loaded.thinking, ..RenderRequest::new(&messages) };
            let (template, tokenizer) = (self.loaded.engine.template()?, self.loaded.engine.tokenizer());
            let rendered = template.render(&request)?;
            let prompt = rendered.encode(tokenizer)?;
            let fits = prompt.len() + context / ANSWER_SHARE <= context;
            let is_question = |message: &Message| message.role == Role::User;
            // The next question after the oldest begins the next turn.
            let next = later[n_dropped..].iter().skip(1).position(is_question);
            match next.filter(|_| !fits) {
                Some(n) => n_dropped += n + 1,
                None => {
                    let thoughts = Thoughts::after(&rendered.text());
                    let n_lasting = template.lasting(&request, &prompt, tokenizer);
                    return Ok(Fitting { prompt, n_lasting, thoughts, n_dropped });
                }
            }
        }
    }
}

/// A prompt that leaves room for an answer.
struct Fitting {
    prompt: Vec<TokenId>,
    /// Tokens with which the next turn's prompt will begin too.
    n_lasting: usize,
    thoughts: Thoughts,
    /// Oldest messages that it leaves out.
    n_dropped: usize,
}
