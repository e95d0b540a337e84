//! What a vocabulary, a template or a request can get wrong.

/// Text that can't become tokens, or a vocabulary that can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A required key is absent.
    #[error("metadata key `{key}` is missing")]
    MissingKey {
        /// The key.
        key: &'static str,
    },
    /// A key holds a value of another type.
    #[error("metadata key `{key}` must be {expected} but is {found}")]
    KeyType {
        /// The key.
        key: &'static str,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A kind of tokenizer that we don't have.
    #[error("tokenizer model `{}` is not supported; supported: {supported}", found.escape_debug())]
    UnsupportedModel {
        /// What the file says.
        found: String,
        /// What we have.
        supported: &'static str,
    },
    /// A way to cut text into words that we don't have.
    #[error("pre-tokenizer `{}` is not supported; supported: {supported}", found.escape_debug())]
    UnsupportedPre {
        /// What the file says.
        found: String,
        /// What we have.
        supported: &'static str,
    },
    /// Too few or too many tokens.
    #[error("the vocabulary has {found} tokens; it must have 1 to {max}")]
    VocabularySize {
        /// Tokens in the file.
        found: usize,
        /// Most tokens.
        max: usize,
    },
    /// The token types don't belong to the tokens.
    #[error("there are {found} token types for {expected} tokens")]
    TypesLength {
        /// Types in the file.
        found: usize,
        /// Tokens in the file.
        expected: usize,
    },
    /// A token type outside ggml's list.
    #[error("token {token} has type {found}; types are 0 to 6")]
    TokenType {
        /// The token.
        token: usize,
        /// Its type in the file.
        found: i128,
    },
    /// A named token outside the vocabulary.
    #[error("metadata key `{key}` is {value}; the vocabulary has tokens 0 to {last}")]
    TokenRange {
        /// The key.
        key: &'static str,
        /// The file's value.
        value: i128,
        /// Last token of the vocabulary.
        last: usize,
    },
    /// A merge rule that isn't two symbols.
    #[error("merge {index} is {found:?}; it must be two symbols with one space between them")]
    MergeForm {
        /// Its position in the file.
        index: usize,
        /// What it says.
        found: String,
    },
    /// A merge rule about tokens that don't exist.
    #[error("merge {index} names {found:?}, which is not a token")]
    MergeToken {
        /// Its position in the file.
        index: usize,
        /// The unknown token.
        found: String,
    },
    /// More literals than a matcher is built for.
    #[error("{found_bytes} bytes of special tokens; at most {max_bytes} are supported")]
    SpecialTokens {
        /// Bytes of all literals.
        found_bytes: usize,
        /// Most bytes.
        max_bytes: usize,
    },
    /// Text with this byte would be lost.
    #[error("no token stands for byte {byte:#04x}; text with it would be lost")]
    MissingByte {
        /// The byte.
        byte: u8,
    },
    /// The BPE model refuses vocabulary or text.
    #[error("the BPE model failed: {reason}")]
    Bpe {
        /// Its reason.
        reason: String,
    },
    /// A chat template that is not Jinja, or too large.
    #[error("the chat template can't be read: {reason}")]
    TemplateSyntax {
        /// What is wrong, and where.
        reason: String,
    },
    /// A chat template that failed while it ran.
    #[error("the chat template failed: {reason}")]
    TemplateFailed {
        /// What is wrong, and where.
        reason: String,
    },
    /// The template itself refused the messages, with `raise_exception`.
    #[error("the chat template refuses these messages: {reason}")]
    TemplateRefused {
        /// The template's words.
        reason: String,
    },
    /// A chat template that ran for too long or made too much text.
    #[error("the chat template used up its {fuel} steps; it loops, or the conversation is too long for it")]
    TemplateRunaway {
        /// Steps allowed.
        fuel: u64,
    },
    /// The system gives no stack to run a template on.
    #[error("no stack of {stack_bytes} bytes for the chat template")]
    Stack {
        /// Bytes asked for.
        stack_bytes: usize,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Arguments of a tool call that no template can show.
    #[error(
        "message {message}: the arguments of the call of `{function}` must be a JSON object, or a string that \
         holds one, but are {found}"
    )]
    ToolArguments {
        /// Position of the message.
        message: usize,
        /// Name of the function.
        function: String,
        /// The arguments, shortened.
        found: String,
    },
    /// JSON that is nested too deeply.
    #[error("{place} is nested more than {max} levels deep")]
    Nesting {
        /// Which value.
        place: &'static str,
        /// Most levels.
        max: usize,
    },
    /// More different private-use characters than there are stand-ins.
    #[error("the messages hold more than {max} different characters of Unicode's plane 16")]
    PrivateCharacters {
        /// Most that fit.
        max: usize,
    },
    /// A stop string that would stop everything.
    #[error("stop string {index} is empty; it must have at least one character")]
    EmptyStop {
        /// Its position in the list.
        index: usize,
    },
    /// Too many or too long stop strings.
    #[error("{found_bytes} bytes in {n_stops} stop strings; at most {max_bytes} bytes are supported")]
    StopSize {
        /// Bytes of all stop strings.
        found_bytes: usize,
        /// Number of stop strings.
        n_stops: usize,
        /// Most bytes.
        max_bytes: usize,
    },
}
