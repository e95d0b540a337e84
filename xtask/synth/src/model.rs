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
    write(&args.out, keys(args, &geometry, &knobs, vocabulary), &tensors, args.seed)
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::measure::walk;

    /// A model of four small layers in `folder`, with fifty script tokens.
    fn tiny(folder: &Path, name: &str, more: &[&str]) -> Args {
        let out = folder.join(name);
        let shape: &[&str] = if more.contains(&"--shape") { &[] } else { &["--shape", "pico"] };
        let numbers = ["--layers", "4", "--experts-per-layer", "8", "--script", "50"];
        let program = ["synth", "--out", out.to_str().unwrap()];
        Args::try_parse_from(program.iter().chain(shape).chain(&numbers).chain(more)).unwrap()
    }

    #[test]
    fn a_reader_walks_the_script_in_every_recipe_and_begins_anew_at_its_end() {
        let folder = tempfile::tempdir().unwrap();
        for recipe in ["q4_k_m", "q3_k_m", "les", "q8_0", "f16", "bf16", "f32"] {
            let args = tiny(folder.path(), recipe, &["--quant", recipe, "--threads", "1"]);
            let bytes = create(&args).unwrap();
            assert_eq!(std::fs::metadata(&args.out).unwrap().len(), bytes);
            let walk = walk(&args, 50).unwrap();
            assert_eq!(walk.n_followed, 50, "{recipe}");
        }
    }

    #[test]
    fn a_reader_walks_the_script_where_every_layer_has_attention() {
        let folder = tempfile::tempdir().unwrap();
        let numbers = ["--shape", "qwen3-30b-a3b", "--hidden", "256", "--expert-ff", "32", "--top-k", "4"];
        let args = tiny(folder.path(), "a", &[&numbers[..], &["--vocab", "8192", "--threads", "1"]].concat());
        create(&args).unwrap();
        assert_eq!(walk(&args, 50).unwrap().n_followed, 50);
    }

    #[test]
    fn one_seed_gives_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = |name: &str, seed: &str| {
            let args = tiny(folder.path(), name, &["--seed", seed]);
            create(&args).unwrap();
            std::fs::read(&args.out).unwrap()
        };
        let (a, b, c) = (bytes("a", "7"), bytes("b", "7"), bytes("c", "8"));
        assert!(a == b, "the same seed gave two files");
        assert!(a != c, "two seeds gave the same file");
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left.len(), 3, "{left:?}");
    }

    #[test]
    fn a_model_that_is_not_ours_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut args = tiny(folder.path(), "a", &[]);
        args.out = tokenizer();
        let error = walk(&args, 1).unwrap_err().to_string();
        assert!(
            error.ends_with("has no `forerun.synth.first_token`: only models of this tool can be measured")
        );
    }

    #[test]
    fn a_walk_is_no_longer_than_the_script() {
        let folder = tempfile::tempdir().unwrap();
        let args = tiny(folder.path(), "a", &[]);
        create(&args).unwrap();
        let error = walk(&args, 51).unwrap_err();
        assert!(matches!(error, SynthError::TooLong { wanted: 51, n_script: 50, .. }), "{error}");
    }
}
