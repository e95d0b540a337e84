//! What to read, and how often.

use std::path::PathBuf;

use super::Outcome;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/pico-q4_k_m.gguf");

pub(super) struct Args {
    pub(super) models: Vec<PathBuf>,
    pub(super) n_steps: usize,
    pub(super) n_rounds: usize,
    pub(super) n_rows: usize,
    pub(super) trace: Option<String>,
}

impl Args {
    pub(super) fn parse(mut words: impl Iterator<Item = String>) -> Outcome<Self> {
        let mut args = Self { models: Vec::new(), n_steps: 48, n_rounds: 5, n_rows: 1, trace: None };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                // What cargo adds.
                "--bench" | "--test" | "--nocapture" => {}
                "--steps" => args.n_steps = value()?.parse()?,
                "--rounds" => args.n_rounds = value()?.parse()?,
                "--rows" => args.n_rows = value()?.parse()?,
                "--trace" => args.trace = Some(value()?),
                flag if flag.starts_with('-') => return Err(format!("there is no option {flag}").into()),
                model => args.models.push(model.into()),
            }
        }
        if args.models.is_empty() {
            (args.models, args.n_steps, args.n_rounds) = (vec![FIXTURE.into()], 4, 1);
        }
        Ok(args)
    }
}
