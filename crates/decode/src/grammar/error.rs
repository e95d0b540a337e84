//! What a grammar can get wrong.

/// A grammar that can't be enforced, or a vocabulary that can't be used for one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The memory plan has no room for any.
    #[error(
        "the memory budget has no room for grammars; `--grammars on` makes some, out of the expert slots"
    )]
    NoRoom,
    /// A keyword of a schema that nothing here enforces.
    #[error("schema keyword {keyword:?} at {path:?} is not supported: {hint}")]
    Keyword {
        /// JSON pointer to the schema that has it.
        path: String,
        /// The keyword.
        keyword: String,
        /// What would be right.
        hint: &'static str,
    },
    /// A keyword's value that is wrong, or can't be enforced.
    #[error("schema keyword {keyword:?} at {path:?} is {found}; it must be {expected}")]
    KeywordValue {
        /// JSON pointer to the schema that has it.
        path: String,
        /// The keyword.
        keyword: String,
        /// Its value, shortened.
        found: String,
        /// What it must be.
        expected: &'static str,
    },
    /// A schema that is neither an object nor a bool.
    #[error("the schema at {path:?} is {found}; it must be an object, or `true` or `false`")]
    NoSchema {
        /// JSON pointer to it.
        path: String,
        /// What stands there, shortened.
        found: String,
    },
    /// A grammar that is too long.
    #[error("the {kind} has {found_bytes} bytes; at most {max_bytes} are supported")]
    Size {
        /// Which kind of grammar.
        kind: &'static str,
        /// Its length.
        found_bytes: usize,
        /// Most bytes.
        max_bytes: usize,
    },
    /// A schema that is nested too deeply.
    #[error("the schema is nested more than {max} levels deep at {path:?}")]
    Nesting {
        /// JSON pointer to the place.
        path: String,
        /// Most levels.
        max: usize,
    },
    /// A part of a Lark grammar that isn't offered here.
    #[error("`{construct}` in line {line} of the Lark grammar is not supported: {hint}")]
    Construct {
        /// The part.
        construct: String,
        /// The line, from 1.
        line: usize,
        /// What would be right.
        hint: &'static str,
    },
    /// A grammar that can't be read, that is too costly, or that no text fulfils.
    #[error("the {kind} can't be used: {reason}")]
    Refused {
        /// Which kind of grammar.
        kind: &'static str,
        /// What is wrong, and where.
        reason: String,
    },
    /// A vocabulary that no grammar can be followed with.
    #[error("no grammar can be used with this vocabulary: {reason}")]
    Vocabulary {
        /// What is wrong.
        reason: String,
    },
    /// The system gives no thread to compile on.
    #[error("no stack of {stack_bytes} bytes to compile a grammar on: {reason}")]
    Stack {
        /// Bytes asked for.
        stack_bytes: usize,
        /// The system's reason.
        reason: String,
    },
    /// An answer that left its grammar; a draft may.
    #[error("token {token} at place {position} of the answer is outside the grammar")]
    Outside {
        /// The token.
        token: u32,
        /// Its place, from 0.
        position: usize,
    },
    /// A grammar that turned out to be too costly while it was followed.
    #[error("the grammar can't be followed any further: {reason}")]
    Runaway {
        /// What was exceeded.
        reason: String,
    },
}

impl GrammarError {
    /// What shows before there is an answer is wrong with the grammar.
    pub(super) fn at_once(self, kind: &'static str) -> Self {
        match self {
            Self::Runaway { reason } => Self::Refused { kind, reason },
            other => other,
        }
    }
}
