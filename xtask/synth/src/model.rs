//! From the command line to a file: geometry, script, vocabulary, tensors.

use std::path::{Path, PathBuf};

use forerun_storage::gguf::Value;

use crate::args::Args;
use crate::error::SynthError;
use crate::geometry::{Geometry, number};
use crate::knobs::Knobs;
use crate::plan::{Recipes, plan};
use crate::script::{Channels, Script};
use crate::vocabulary::Vocabulary;
use crate::write::write;

/// Keys by which a model says how it was made.
pub(crate) const FIRST_TOKEN: &str = "forerun.synth.first_token";
pub(crate) const N_SCRIPT: &str = "forerun.synth.script";
pub(crate) const SEED: &str = "forerun.synth.seed";
pub(crate) const KNOBS: &str = "forerun.synth.knobs";

/// Writes the model that `args` describe, and returns its bytes.
///
/// # Errors
/// [`SynthError`]: numbers or knobs out of range, a full disk, a file.
pub(crate) fn create(args: &Args) -> Result<u64, SynthError> {
    let geometry = args.geometry();
    geometry.check()?;
    let knobs = args.knobs.over_defaults(&geometry);
    knobs.check()?;
    let script = Script::new(args.seed, Channels::of(geometry.hidden), args.script.into(), &knobs);
    let vocabulary = Vocabulary::extended(&tokenizer(), script.len(), geometry.n_vocab)?;
    let tensors = plan(&Recipes {
        geometry: &geometry,
        recipe: args.quant,
        knobs: &knobs,
        seed: args.seed,
        script: &script,
        first_token: vocabulary.first_token,
        n_vocab: vocabulary.n_vocab,
    });
    write(&args.out, &keys(args, &geometry, &knobs, vocabulary), &tensors, args.seed)
}

/// The file whose tokenizer is borrowed.
fn tokenizer() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.join("../../fixtures/pico-q4_k_m.gguf")
}

fn keys(args: &Args, geometry: &Geometry, knobs: &Knobs, vocabulary: Vocabulary) -> Vec<(String, Value)> {
    let architecture = geometry.architecture.name();
    let text = |text: &str| Value::Text(text.to_owned());
    let mut keys = vec![
        ("general.architecture".to_owned(), text(architecture)),
        ("general.type".into(), text("model")),
        ("general.name".into(), Value::Text(format!("synthetic {} {}", args.shape, args.quant.name()))),
        ("general.file_type".into(), Value::U32(args.quant.file_type())),
        ("general.quantization_version".into(), Value::U32(2)),
        (SEED.into(), Value::U64(args.seed)),
        (KNOBS.into(), Value::Text(knobs.text())),
        (FIRST_TOKEN.into(), number(vocabulary.first_token)),
        (N_SCRIPT.into(), number(args.script.into())),
    ];
    let numbers = geometry.keys().into_iter();
    keys.extend(numbers.map(|(key, value)| (format!("{architecture}.{key}"), value)));
    keys.extend(vocabulary.keys);
    keys
}
