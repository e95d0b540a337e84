//! Compiles grammars for a vocabulary.

use std::fmt;
use std::sync::Arc;

use forerun_model::TokenId;
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{ParserFactory, panic_utils};
use serde_json::Value;

use super::lexicon::Lexicon;
use super::matcher::Matcher;
use super::{
    EXPRESSION_BYTES_MAX, GRAMMAR_BYTES_MAX, GrammarBegin, GrammarError, GrammarSpec, lark, schema, tools,
};
use crate::heap;
use crate::text::Vocabulary;

/// Stack to compile on: enough for the deepest grammar of [`GRAMMAR_BYTES_MAX`]. Memory is only taken for what is used.
const STACK_BYTES: usize = 256 << 20;

/// States of a grammar's lexer, each of up to 2 kB; a schema of usual size needs some hundreds.
const LEXER_STATES_MAX: usize = 16_384;

/// Work for a grammar's regular expressions, in llguidance's measure: 50,000 take about a millisecond.
const LEXER_FUEL: u64 = 250_000;

/// Symbols of a grammar's rules: ten thousand take some megabytes while it is compiled.
const SYMBOLS_MAX: usize = 50_000;

/// Most bytes of an error's reason that are kept.
const REASON_BYTES_MAX: usize = 400;

/// Compiles grammars for one vocabulary; a clone is cheap and shares all of it.
#[derive(Clone)]
pub struct GrammarFactory {
    shared: Arc<Shared>,
}

struct Shared {
    lexicon: Lexicon,
    parsers: ParserFactory,
    bytes: u64,
}

impl fmt::Debug for GrammarFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarFactory").field("bytes", &self.shared.bytes).finish_non_exhaustive()
    }
}

/// A compiled grammar at its beginning; a clone is cheap.
#[derive(Clone)]
pub struct Grammar {
    pub(super) shared: GrammarFactory,
    /// What each answer takes a copy of.
    pub(super) matcher: Arc<Matcher>,
    pub(super) begin: GrammarBegin,
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").field("begin", &self.begin).finish_non_exhaustive()
    }
}

impl Grammar {
    /// The same grammar, beginning elsewhere in the answer.
    #[must_use]
    pub fn beginning(self, begin: GrammarBegin) -> Self {
        Self { begin, ..self }
    }

    /// Most bytes of memory that compiling one takes, which it doesn't exceed once it is compiled: the costliest grammars that
    /// are taken were measured.
    pub const COMPILED_BYTES_MAX: u64 = 64 << 20;

    /// Most bytes of memory that following one takes, for each answer that does.
    pub const LIVE_BYTES_MAX: u64 = 22 << 20;

    /// Tokens of the vocabulary that it was compiled for.
    pub fn n_vocab(&self) -> usize {
        self.shared.lexicon().len()
    }
}

impl GrammarFactory {
    /// Builds the tree of a vocabulary's tokens.
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`]: no token that ends an answer, or more text than the tree takes.
    pub fn new(vocabulary: &Vocabulary) -> Result<Self, GrammarError> {
        let refused = |error: &dyn fmt::Display| GrammarError::Vocabulary { reason: reason(error) };
        let lexicon = Lexicon::new(vocabulary)?;
        // What the tree asserts of its tokens was checked; this is for what was overlooked.
        let build = || ParserFactory::new(&lexicon.env, InferenceCapabilities::default(), &[]);
        let parsers = panic_utils::catch_unwind(std::panic::AssertUnwindSafe(build));
        let mut parsers = parsers.map_err(|error| refused(&error))?;
        parsers.quiet();
        *parsers.limits_mut() = ParserLimits {
            initial_lexer_fuel: LEXER_FUEL,
            max_lexer_states: LEXER_STATES_MAX,
            max_grammar_size: SYMBOLS_MAX,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        heap::release();
        let bytes = Self::bytes_of(vocabulary.len(), vocabulary.text_bytes());
        Ok(Self { shared: Arc::new(Shared { lexicon, parsers, bytes }) })
    }

    /// Most bytes of memory that a factory takes while it is built, for `n_vocab` tokens with `text_bytes` of text: three
    /// trees and what they are made from. Measured, since the trees are another crate's: vocabularies of 8,192, 151,936 and
    /// 248,320 tokens took 2.0, 33 and 105 MB at their peak.
    pub fn bytes_of(n_vocab: usize, text_bytes: usize) -> u64 {
        const PER_TOKEN: u64 = 64;
        const PER_BYTE: u64 = 44;
        n_vocab as u64 * PER_TOKEN + text_bytes as u64 * PER_BYTE
    }

    /// [`Self::bytes_of`] its vocabulary.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes
    }

    pub(super) fn lexicon(&self) -> &Lexicon {
        &self.shared.lexicon
    }

    /// Compiles a grammar.
    ///
    /// # Errors
    /// [`GrammarError`] names what can't be read or isn't enforced.
    pub fn compile(&self, spec: &GrammarSpec) -> Result<Grammar, GrammarError> {
        check_size(spec)?;
        if let GrammarSpec::FormOrCalls { form, .. } = spec {
            // A form that no text has would leave nothing but calls.
            self.compile(form)?;
        }
        let is_special = |marker: &str| self.lexicon().is_special(marker);
        on_deep_stack(|| {
            let top = match spec {
                GrammarSpec::JsonSchema(schema) => {
                    TopLevelGrammar::from_json_schema(schema::checked(schema)?)
                }
                GrammarSpec::JsonObject => TopLevelGrammar::from_json_schema(schema::any_object()),
                GrammarSpec::Regex(regex) => TopLevelGrammar::from_regex(regex),
                GrammarSpec::Lark(text) => {
                    lark::check(text)?;
                    TopLevelGrammar::from_lark(text.clone())
                }
                GrammarSpec::ToolCalls(calls) => tools::grammar(None, calls, &is_special)?,
                GrammarSpec::FormOrCalls { form, calls } => tools::grammar(Some(form), calls, &is_special)?,
            };
            self.build(spec.kind(), top)
        })
    }

    /// Compiles what was checked.
    fn build(&self, kind: &'static str, top: TopLevelGrammar) -> Result<Grammar, GrammarError> {
        let refused = |error: &dyn fmt::Display| GrammarError::Refused { kind, reason: reason(error) };
        let parser = self.shared.parsers.create_parser_from_init_default(GrammarInit::Serialized(top));
        let mut matcher = Matcher::new(parser.map_err(|error| refused(&error))?);
        if let Some(warning) = matcher.warning() {
            return Err(refused(&warning));
        }
        // A grammar that allows nothing, or is too costly, shows it here.
        let mut mask = matcher.mask().map_err(|error| error.at_once(kind))?;
        self.lexicon().ends.iter().for_each(|end| mask.disallow_token(end.0));
        let first = mask.first_bit_set().and_then(|id| u32::try_from(id).ok());
        let first = first.ok_or_else(|| refused(&"it allows nothing but an empty text"))?;
        matcher.take(TokenId(first)).map_err(|error| error.at_once(kind))?;
        matcher.back(1).map_err(|error| error.at_once(kind))?;
        Ok(Grammar { shared: self.clone(), matcher: Arc::new(matcher), begin: GrammarBegin::AtOnce })
    }
}

impl GrammarSpec {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) | Self::JsonObject => "schema",
            Self::Regex(_) => "regular expression",
            Self::Lark(_) => "Lark grammar",
            Self::ToolCalls(_) => "tools",
            Self::FormOrCalls { form, .. } => form.kind(),
        }
    }
}

fn check_size(spec: &GrammarSpec) -> Result<(), GrammarError> {
    let (found_bytes, max_bytes) = match spec {
        GrammarSpec::JsonSchema(schema) => (json_bytes(schema), GRAMMAR_BYTES_MAX),
        GrammarSpec::ToolCalls(spec) => (spec.tools.iter().map(json_bytes).sum(), GRAMMAR_BYTES_MAX),
        GrammarSpec::JsonObject => return Ok(()),
        GrammarSpec::FormOrCalls { form, calls } => {
            check_size(form)?;
            return check_size(&GrammarSpec::ToolCalls(calls.clone()));
        }
        GrammarSpec::Regex(text) | GrammarSpec::Lark(text) => (text.len(), EXPRESSION_BYTES_MAX),
    };
    if found_bytes <= max_bytes {
        return Ok(());
    }
    Err(GrammarError::Size { kind: spec.kind(), found_bytes, max_bytes })
}

/// Bytes of a value's text.
fn json_bytes(value: &Value) -> usize {
    /// Counts what is written.
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting doesn't fail.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// Runs `work` where long chains of references and deep groups have room.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> Result<T, GrammarError> + Send) -> Result<T, GrammarError> {
    let stack = |error: &dyn fmt::Display| GrammarError::Stack {
        stack_bytes: STACK_BYTES,
        reason: error.to_string(),
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, work).map_err(|error| stack(&error))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// An error's own words, without the state that is dumped behind them.
pub(super) fn reason(error: &dyn fmt::Display) -> String {
    shortened(&format!("{error:#}"))
}

fn shortened(text: &str) -> String {
    let end =
        ["<backtrace>", "<state>", "<non-verbose/>"].into_iter().filter_map(|mark| text.find(mark)).min();
    let text = text[..end.unwrap_or(text.len())].trim();
    let cut = &text[..text.floor_char_boundary(REASON_BYTES_MAX)];
    if cut.len() < text.len() { format!("{cut}…") } else { cut.to_owned() }
}
