//! A parser with a lexer of its own, and a bound on what both keep.
//!
//! What does the matching bounds the work of a step, but not what many steps gather; and its clones share one lexer, which
//! fails for all when it fails for one. So every answer has a lexer of its own here, and what parser and lexer keep is
//! counted after every step.

use std::error::Error;
use std::panic::AssertUnwindSafe;

use forerun_model::TokenId;
use llguidance::toktrie::SimpleVob;
use llguidance::{TokenParser, panic_utils};

use super::GrammarError;
use super::factory::reason;

/// Most bytes that a parser and its lexer may keep, as counted here.
const KEPT_BYTES_MAX: usize = 12 << 20;

/// Bytes of an item of a row, with room to grow.
const ITEM_BYTES: usize = 16;
/// Bytes of a row and of what was matched in it, with room to grow.
const ROW_BYTES: usize = 192;
/// Bytes that each byte of an answer takes.
const PLACE_BYTES: usize = 20;

/// Follows one answer.
pub(super) struct Matcher {
    parser: TokenParser,
    /// Bytes of the rows before the first token, and behind each.
    row_bytes: Vec<usize>,
    /// Why it can't be used any more.
    broken: Option<String>,
}

/// The copy has a lexer of its own.
impl Clone for Matcher {
    fn clone(&self) -> Self {
        let Self { parser, row_bytes, broken } = self;
        Self { parser: parser.deep_clone(), row_bytes: row_bytes.clone(), broken: broken.clone() }
    }
}

impl Matcher {
    pub(super) fn new(mut parser: TokenParser) -> Self {
        if parser.is_fresh() {
            parser.start_without_prompt();
        }
        let row_bytes = vec![rows_ever(&parser)];
        Self { parser, row_bytes, broken: None }
    }

    /// What is odd about the grammar.
    pub(super) fn warning(&mut self) -> Option<String> {
        self.parser.grammar_warnings().into_iter().next()
    }

    /// The tokens that may come next; those that end the answer, when it is whole and can't go on.
    ///
    /// # Errors
    /// [`GrammarError::Runaway`], which is final.
    pub(super) fn mask(&mut self) -> Result<SimpleVob, GrammarError> {
        self.guarded(|matcher| {
            let parser = &mut matcher.parser;
            if parser.stopped() {
                Ok(parser.token_env.tok_trie().eos_token_set())
            } else {
                Ok(parser.compute_mask()?)
            }
        })
    }

    /// Goes on with `token`, unless it can't come next.
    ///
    /// # Errors
    /// [`GrammarError::Runaway`], which is final.
    pub(super) fn take(&mut self, token: TokenId) -> Result<bool, GrammarError> {
        self.guarded(|Self { parser, row_bytes, .. }| {
            if !parser.validate_token(token.0)? {
                return Ok(false);
            }
            let before = rows_ever(parser);
            parser.consume_token(token.0)?;
            let new = rows_ever(parser) - before;
            row_bytes.push(row_bytes.last().copied().unwrap_or(0) + new);
            parser.check_stop()?;
            Ok(true)
        })
    }

    /// Takes the last `n` tokens back.
    ///
    /// # Errors
    /// [`GrammarError::Runaway`], which is final.
    pub(super) fn back(&mut self, n: usize) -> Result<(), GrammarError> {
        self.guarded(|Self { parser, row_bytes, .. }| {
            parser.rollback(n)?;
            row_bytes.truncate(row_bytes.len().saturating_sub(n).max(1));
            Ok(())
        })
    }

    /// Bytes that are kept, as counted here.
    fn kept_bytes(&self) -> usize {
        let lexer = self.parser.parser.lexer_stats();
        let rows = self.row_bytes.last().copied().unwrap_or(0);
        lexer.num_bytes + rows + self.parser.final_bytes().len() * PLACE_BYTES
    }

    /// Does a step, if none failed before, and looks at what is kept behind it.
    fn guarded<T>(
        &mut self,
        step: impl FnOnce(&mut Self) -> Result<T, Box<dyn Error + Send + Sync>>,
    ) -> Result<T, GrammarError> {
        if let Some(reason) = &self.broken {
            return Err(GrammarError::Runaway { reason: reason.clone() });
        }
        let done = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(step(self))));
        let done = done.map_err(|error| reason(&error)).and_then(|done| done.map_err(|error| reason(&error)));
        let done = done.and_then(|done| match self.kept_bytes() {
            kept if kept > KEPT_BYTES_MAX => Err(format!(
                "following it takes {kept} bytes; at most {KEPT_BYTES_MAX} are kept for an answer"
            )),
            _ => Ok(done),
        });
        done.map_err(|reason| {
            self.broken = Some(reason.clone());
            GrammarError::Runaway { reason }
        })
    }
}

/// Bytes of all rows that were ever made, those that only tried something too.
fn rows_ever(parser: &TokenParser) -> usize {
    let stats = parser.parser_stats();
    stats.all_items * ITEM_BYTES + stats.rows * ROW_BYTES
}
