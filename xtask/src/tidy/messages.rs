//! What typed errors say: the thing or the value that is wrong, as a field of the text; or they stand in a table here.

/// Texts without a field: what is wrong has no other name, or whoever passes the error on says of what it speaks.
const PLAIN: &[&str] = &[
    "--recipe auto needs --imatrix, which says what matters; `forerun imatrix` makes one",
    "--recipe auto needs --target-bytes: the size that the file may have, such as 14GB",
    "--target-bytes goes with --recipe auto; other recipes have a size of their own",
    "--upstream-key and --upstream-key-file both say the upstream's key; write one of them",
    "`--draft mtp` needs a prediction block (`nextn_predict_layers`), and the file has none; `ngram` needs nothing",
    "a big-endian GGUF file; only little-endian files are supported",
    "a budget can't be lowered while a device holds the slots; open the model without `pin_slots` and not on Metal",
    "a run can't be written as JSON",
    "a run inside failed",
    "an earlier call with this engine met a bug in forerun; the engine can only be closed",
    "answered with something that is no JSON object",
    "answered with something that is no stream of events",
    "can't move the keys and values of a saved sequence",
    "can't start the engine's thread",
    "conversations can't be kept",
    "ended its answer before the answer's end",
    "experts that were used where they lie have changed",
    "interrupted",
    "it is no kept prefix",
    "it was made with another model, type of keys and values, or set of kernels",
    "no home folder is known, so neither is the cache: set HF_HOME, or name a folder with --dir",
    "no memory for the stack of a thread",
    "no token is left to draw: all are banned or masked",
    "nothing was recorded: the text has no token, or the answer ended before its second one",
    "reading the text",
    "the answer with guesses or drafts of our own differs from the answer without",
    "the engine is gone; the server must be started again",
    "the engine is making an answer; wait until forerun_generate() has returned, or cancel it",
    "the memory budget has no room for grammars; `--grammars on` makes some, out of the expert slots",
    "the model's file can't be named for conversations on disk; see the decisions for the reason",
    "the model's file has no chat template, so it takes no messages; use `prompt`",
    "the model's header can't be written",
    "the prompt has no tokens",
    "the server is shutting down",
    "the trace's header can't be read",
    "the upstream's key is empty, or has characters that no header carries; use visible ASCII without spaces",
    "this machine has no Metal device",
];

/// What is wrong with the texts of errors in a source file.
pub(super) fn violations(path: &str, text: &str) -> Vec<String> {
    let found = errors(text).filter_map(|(line, said)| {
        let why = match said {
            _ if said.ends_with('.') => "ends with a full stop, and may be followed by its cause",
            _ if !said.contains('{') && !PLAIN.contains(&said) => {
                "names neither a thing nor a value; say which, or enter it in xtask/src/tidy/messages.rs"
            }
            _ => return None,
        };
        Some(format!("{path}:{line} the error \"{said}\" {why}"))
    });
    found.collect()
}

/// Texts of the table that no error has.
pub(super) fn idle<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut idle = PLAIN.to_vec();
    for text in texts {
        idle.retain(|plain| !errors(text).any(|(_, said)| said == *plain));
    }
    idle.iter()
        .map(|said| format!("no error says \"{said}\": drop it from xtask/src/tidy/messages.rs"))
        .collect()
}

/// Line and text of each `thiserror` attribute.
fn errors(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let attribute = concat!("#[error", "(");
    text.match_indices(attribute).filter_map(move |(at, _)| {
        let said = text[at + attribute.len()..].trim_start().strip_prefix('"')?;
        let mut is_escaped = false;
        let end = said.find(|c| {
            let ends = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            ends
        })?;
        Some((text[..at].matches('\n').count() + 1, &said[..end]))
    })
}
