//! Shows the tokens of a text: `cargo run -p forerun-decode --example tokenize -- MODEL.gguf TEXT`.

use std::error::Error;
use std::io::Write;
use std::path::Path;

use forerun_decode::storage::Gguf;
use forerun_decode::text::{Tokenizer, VocabularyParts};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(model), Some(text)) = (arguments.next(), arguments.next()) else {
        return Err("usage: tokenize MODEL.gguf TEXT".into());
    };
    let gguf = Gguf::open(Path::new(&model))?;
    let tokenizer = Tokenizer::new(&VocabularyParts::from_metadata(&gguf.metadata)?)?;
    let mut out = std::io::stdout().lock();
    for id in tokenizer.encode_special(&text)? {
        let vocabulary = tokenizer.vocabulary();
        if let (Some(bytes), Some(kind)) = (vocabulary.token_bytes(id), vocabulary.kind(id)) {
            writeln!(out, "{id}\t{}\t{kind:?}", bytes.escape_ascii())?;
        }
    }
    Ok(())
}
