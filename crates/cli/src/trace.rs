//! `forerun trace`: records which experts a model's routers choose, and what they guess one layer ahead.

mod files;
mod recorder;

use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use forerun_decode::text::{Message, RenderRequest, TokenReader};
use forerun_decode::{DecodeError, Engine, Generation, Logits, Session};
use forerun_model::TokenId;
use forerun_sim::trace::TOKENS_MAX;
use forerun_sim::{Document, TraceShape};
use serde::Serialize;

use crate::Outcome;
use crate::args::TraceArgs;
use crate::interrupt::Interrupt;
use crate::load::{Loaded, Wish, load};
use crate::progress::{Bar, Unit};
use crate::say::say;

use files::Spool;
use recorder::{Recall, Recorder};

/// Most experts of a layer whose ids fit the format.
const EXPERTS_MAX: usize = 256;

/// Records a trace.
pub(crate) fn trace(args: &TraceArgs) -> Result<Outcome, Box<dyn Error>> {
    let interrupt = Interrupt::install()?;
    let text = args.text.as_ref().map(|path| open(path)).transpose()?;
    let spool = Spool::create(&args.out, args.force)?;
    let Some(mut loaded) = load(&args.model, &args.sampling, Wish::default(), &interrupt)? else {
        return Ok(Outcome::Interrupted);
    };
    let moe = &loaded.engine.shape().moe;
    if moe.n_experts > EXPERTS_MAX {
        return Err(TraceError::TooManyExperts { found: moe.n_experts }.into());
    }
    let shape =
        TraceShape { n_layers: loaded.engine.shape().n_layers(), n_experts: moe.n_experts, top_k: moe.top_k };
    let recorder = Arc::new(Mutex::new(Recorder::new(shape, spool.columns()?)));
    loaded.engine.watch(Some(Box::new(recorder::Shared(Arc::clone(&recorder)))));
    let n_max = args.tokens.unwrap_or(TOKENS_MAX);
    let outcome = match (text, &args.prompt) {
        (Some(text), _) => {
            let (file, path) = text;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let walk = Walk { engine: &mut loaded.engine, n_max, interrupt: &interrupt, source: name };
            walk.read(file, args.model.quiet).map_err(|source| TraceError::Text {
                path: path.display().to_string(),
                source: Box::new(source),
            })?
        }
        (None, prompt) => {
            let said = (args.sampling.system.as_deref(), prompt.as_deref().unwrap_or(""));
            answer(&mut loaded, said, n_max, &interrupt)?
        }
    };
    loaded.engine.watch(None);
    let recorder = Arc::into_inner(recorder).expect("the engine has let go of it");
    let recorder = recorder.into_inner().unwrap_or_else(PoisonError::into_inner);
    let kind = if args.text.is_some() { "docs" } else { "chat" };
    save(args, spool, recorder, kind, &outcome.documents)?;
    Ok(if outcome.interrupted { Outcome::Interrupted } else { Outcome::Done })
}

fn open(path: &Path) -> Result<(File, &Path), TraceError> {
    let file = File::open(path).map_err(|source| TraceError::Text {
        path: path.display().to_string(),
        source: Box::new(DecodeError::ReadText { source }),
    })?;
    Ok((file, path))
}

/// What was fed, and whether the user stopped it.
struct Fed {
    documents: Vec<Document>,
    interrupted: bool,
}

/// A text, read token by token as in decoding.
struct Walk<'a> {
    engine: &'a mut Engine,
    n_max: usize,
    interrupt: &'a Interrupt,
    source: String,
}

impl Walk<'_> {
    /// Reads `text` in windows of the context.
    fn read(self, text: File, quiet: bool) -> Result<Fed, DecodeError> {
        let bar = Bar::new("recording", Unit::Tokens, self.n_max as u64, quiet);
        let context = self.engine.plan().context;
        let (mut reader, mut session, mut ahead) = (TokenReader::new(text), Session::new(), Vec::new());
        let mut fed = Fed { documents: Vec::new(), interrupted: false };
        let mut n = 0;
        while n < self.n_max {
            if ahead.is_empty() && !reader.next(self.engine.tokenizer(), &mut ahead)? {
                break;
            }
            for token in ahead.drain(..) {
                fed.interrupted = self.interrupt.is_set();
                if n == self.n_max || fed.interrupted {
                    return Ok(fed);
                }
                if n.is_multiple_of(context) {
                    session = Session::new();
                    fed.documents.push(Document { source: self.source.clone(), first: n, count: 0 });
                }
                session.extend(self.engine, &[token], Logits::None)?;
                n += 1;
                fed.documents.last_mut().expect("the first token begins one").count += 1;
                bar.set(n as u64);
            }
        }
        Ok(fed)
    }
}

/// Answers a prompt; only the answer is recorded, for a prompt is read many tokens at once.
fn answer(
    loaded: &mut Loaded,
    (system, prompt): (Option<&str>, &str),
    n_max: usize,
    interrupt: &Interrupt,
) -> Result<Fed, Box<dyn Error>> {
    loaded.engine.check_prompt_size(prompt)?;
    let system = system.map(Message::system);
    let messages: Vec<_> = system.into_iter().chain([Message::user(prompt)]).collect();
    let request = RenderRequest { thinking: loaded.thinking, ..RenderRequest::new(&messages) };
    let tokens: Vec<TokenId> =
        loaded.engine.template()?.render(&request)?.encode(loaded.engine.tokenizer())?;
    let mut config = loaded.generation.clone();
    // The last token of an answer isn't fed any more.
    config.max_tokens = Some(config.max_tokens.unwrap_or(usize::MAX).min(n_max + 1));
    let mut session = Session::new();
    let mut generation = Generation::new(&mut loaded.engine, &mut session, tokens, &config)?;
    let mut interrupted = false;
    while !interrupted && generation.next()?.is_some() {
        interrupted = interrupt.is_set();
    }
    Ok(Fed { documents: Vec::new(), interrupted })
}

/// What `--json` prints.
#[derive(Serialize)]
struct Output<'a> {
    header: String,
    arrays: String,
    tokens: usize,
    documents: usize,
    layers: usize,
    experts: usize,
    top_k: usize,
    /// After the mixer of the layer before, and after the whole layer.
    prev_mid: &'a Recall,
    prev_out: &'a Recall,
}

fn save(
    args: &TraceArgs,
    spool: Spool,
    recorder: Recorder,
    kind: &str,
    documents: &[Document],
) -> Result<(), Box<dyn Error>> {
    let (recording, shape, recalls) = recorder.finish().map_err(|source| spool.failed(source))?;
    let tokens = recording.n_tokens();
    if tokens == 0 {
        return Err(TraceError::Empty.into());
    }
    let whole = [Document { source: kind.to_owned(), first: 0, count: tokens }];
    let documents = if documents.is_empty() { &whole } else { documents };
    let header = recording.header(kind, documents);
    let (header, arrays) = spool.save(&header, recording.into_columns())?;
    let [prev_mid, prev_out] = &recalls;
    let output = Output {
        header: header.display().to_string(),
        arrays: arrays.display().to_string(),
        tokens,
        documents: documents.len(),
        layers: shape.n_layers,
        experts: shape.n_experts,
        top_k: shape.top_k,
        prev_mid,
        prev_out,
    };
    if args.json {
        let mut stdout = io::stdout().lock();
        serde_json::to_writer(&mut stdout, &output)?;
        stdout.write_all(b"\n")?;
    } else if !args.model.quiet {
        say!("{tokens} tokens recorded in {} and {}", output.header, output.arrays);
        for (name, recall) in [("after the mixer before", prev_mid), ("after the layer before", prev_out)] {
            let (few, many) = (100.0 * recall.recall_top_k, 100.0 * recall.recall_predicted);
            let (k, p) = (shape.top_k, shape.n_predicted());
            say!(
                "routers asked {name} find {few:.0}% of a layer's experts in {k} guesses, {many:.0}% in {p}"
            );
        }
    }
    Ok(())
}

/// A trace that can't be recorded.
#[derive(Debug, thiserror::Error)]
enum TraceError {
    #[error("can't record {path}")]
    Text { path: String, source: Box<DecodeError> },
    #[error("nothing was recorded: the text has no token, or the answer ended before its second one")]
    Empty,
    #[error("the model has {found} experts a layer; the trace format holds at most {EXPERTS_MAX}")]
    TooManyExperts { found: usize },
    #[error("{path} exists; --force replaces it")]
    Exists { path: String },
    #[error("can't write the trace {path}")]
    Write { path: String, source: io::Error },
}
