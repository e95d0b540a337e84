//! `forerun run`: one prompt, one answer.

use std::error::Error;
use std::io::{self, IsTerminal, Read, Write};

use clap::CommandFactory;
use clap::error::ErrorKind;
use forerun_decode::text::{Message, RenderRequest, Thoughts};
use forerun_decode::{FinishReason, Generation, Report, Session, Telemetry};
use forerun_model::TokenId;
use serde::Serialize;

use crate::Outcome;
use crate::answer::{Show, show, summary};
use crate::args::{Args, RunArgs};
use crate::interrupt::Interrupt;
use crate::load::{Loaded, Wish, load};
use crate::say::say;

/// Answers one prompt.
pub(crate) fn run(args: &RunArgs) -> Result<Outcome, Box<dyn Error>> {
    let has_prompt = args.prompt_flag.is_some() || args.prompt.is_some();
    if !has_prompt && io::stdin().is_terminal() {
        let words = "no prompt: give it as the last argument, with -p, or on standard input";
        Args::command().error(ErrorKind::MissingRequiredArgument, words).exit();
    }
    let interrupt = Interrupt::install()?;
    let wish = Wish { draft: Some(&args.draft), n_checkpoints: 0, ..Wish::default() };
    let Some(mut loaded) = load(&args.model, &args.sampling, wish, &interrupt)? else {
        return Ok(Outcome::Interrupted);
    };
    let prompt = prompt(args, &loaded, &interrupt)?;
    let (tokens, thoughts) = encode(args, &loaded, &prompt)?;
    let mut session = Session::new();
    let generation = Generation::new(&mut loaded.engine, &mut session, tokens, &loaded.generation)?;
    let shown = match (args.json, args.model.quiet) {
        (true, _) => Show::Nothing,
        (false, true) => Show::AnswerOnly,
        (false, false) => Show::Everything,
    };
    let mut answer = show(generation, thoughts, shown, &interrupt, args.model.quiet)?;
    answer.report.telemetry.decisions.append(&mut loaded.decisions);
    if args.json {
        print_json(&answer.text, &answer.thoughts, &answer.report)?;
    } else if !args.model.quiet {
        say!("{}", summary(&answer.report.telemetry));
    }
    Ok(match answer.report.finish_reason {
        FinishReason::Interrupted => Outcome::Interrupted,
        FinishReason::Stop | FinishReason::Length => Outcome::Done,
    })
}

/// The prompt from the arguments or standard input, of which no more is read than could fit the context.
fn prompt(args: &RunArgs, loaded: &Loaded, interrupt: &Interrupt) -> Result<String, Box<dyn Error>> {
    if let Some(prompt) = args.prompt_flag.as_ref().or(args.prompt.as_ref()) {
        return Ok(prompt.clone());
    }
    let bytes_max = loaded.engine.prompt_bytes_max() as u64;
    let mut bytes = Vec::new();
    interrupt.while_idle(|| io::stdin().lock().take(bytes_max).read_to_end(&mut bytes))?;
    if bytes.len() as u64 == bytes_max {
        let context = loaded.engine.plan().context;
        return Err(format!("the prompt on standard input has {bytes_max} bytes or more, which no context of {context} tokens holds; raise --ctx or shorten it").into());
    }
    String::from_utf8(bytes).map_err(|e| format!("the prompt on standard input is not UTF-8: {e}").into())
}

/// The prompt's tokens, and what is known of thoughts in the answer.
fn encode(args: &RunArgs, loaded: &Loaded, prompt: &str) -> Result<(Vec<TokenId>, Thoughts), Box<dyn Error>> {
    loaded.engine.check_prompt_size(prompt)?;
    let tokenizer = loaded.engine.tokenizer();
    if args.raw {
        return Ok((tokenizer.encode_special(prompt)?, Thoughts::none()));
    }
    let mut messages: Vec<_> = args.sampling.system.iter().map(Message::system).collect();
    messages.push(Message::user(prompt));
    let request = RenderRequest { thinking: loaded.thinking, ..RenderRequest::new(&messages) };
    let rendered = loaded.engine.template()?.render(&request)?;
    let thoughts = Thoughts::after(&rendered.text());
    Ok((rendered.encode(tokenizer)?, thoughts))
}

/// What `--json` prints.
#[derive(Serialize)]
struct Output<'a> {
    text: &'a str,
    thoughts: &'a str,
    tokens: Vec<u32>,
    finish_reason: FinishReason,
    #[serde(flatten)]
    telemetry: &'a Telemetry,
}

fn print_json(text: &str, thoughts: &str, report: &Report) -> Result<(), Box<dyn Error>> {
    let output = Output {
        text,
        thoughts,
        tokens: report.tokens.iter().map(|token| token.0).collect(),
        finish_reason: report.finish_reason,
        telemetry: &report.telemetry,
    };
    let mut stdout = io::stdout().lock();
    serde_json::to_writer(&mut stdout, &output)?;
    stdout.write_all(b"\n")?;
    Ok(())
}
