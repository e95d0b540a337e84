//! Whether drafts pay here: the same answers with a drafter and without, by turns.
//!
//! `cargo run --release -p forerun-decode --example draft_pairs -- DRAFT [MODEL [MEMORY [LIMIT [PAIRS [TOKENS]]]]]`, where DRAFT is `auto`,
//! `ngram`, `mtp` or a drafter's file, LIMIT bytes a second, and `-` leaves a thing as it is. Prints each pair's ratio of decode
//! times (below 1: drafts are faster) and the 95 % interval of their geometric mean.

#![expect(clippy::print_stdout, reason = "an example talks")]

use std::error::Error;
use std::num::NonZeroU64;
use std::path::PathBuf;

use forerun_decode::config::DraftChoice;
use forerun_decode::{
    Engine, EngineConfig, Generation, GenerationConfig, ModelSource, Session, Telemetry, parse_bytes,
};
use forerun_model::TokenId;

/// Words of each prompt.
const N_WORDS: usize = 40;
/// Two-sided 95 % points of Student's t for 9, 11, 14, 19 and more degrees of freedom.
const STUDENT: [(usize, f64); 5] = [(9, 2.262), (11, 2.201), (14, 2.145), (19, 2.093), (usize::MAX, 2.0)];

/// An answer's tokens and figures.
fn answer(
    engine: &mut Engine,
    prompt: &[TokenId],
    n: usize,
) -> Result<(Vec<TokenId>, Telemetry), Box<dyn Error>> {
    let how = GenerationConfig { max_tokens: Some(n), ..GenerationConfig::default() };
    let mut session = Session::new();
    let mut generation = Generation::new(engine, &mut session, prompt.to_vec(), &how)?;
    while generation.next()?.is_some() {}
    let report = generation.finish();
    Ok((report.tokens, report.telemetry))
}

#[expect(clippy::cast_precision_loss, reason = "a few pairs")]
fn interval(ratios: &[f64]) -> (f64, f64, f64) {
    let n = ratios.len() as f64;
    let mean = ratios.iter().map(|r| r.ln()).sum::<f64>() / n;
    let spread = ratios.iter().map(|r| (r.ln() - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let t = STUDENT.iter().find(|(freedom, _)| ratios.len() <= freedom + 1).map_or(2.0, |s| s.1);
    let half = t * (spread / n).sqrt();
    (mean.exp(), (mean - half).exp(), (mean + half).exp())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let arg = |i: usize| args.get(i).map(String::as_str).filter(|text| *text != "-");
    let fixture = |name: &str| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name);
    let draft = match arg(0).ok_or("which drafter?")? {
        "auto" => DraftChoice::Auto,
        "ngram" => DraftChoice::Ngram,
        "mtp" => DraftChoice::Mtp,
        file => DraftChoice::File(file.into()),
    };
    let model = arg(1).map_or_else(|| fixture("pico-q4_k_m.gguf"), PathBuf::from);
    let mut plain = EngineConfig::new(ModelSource::Path(model));
    plain.budget_bytes = arg(2).map(parse_bytes).transpose()?;
    plain.disk_limit = arg(3).map(parse_bytes).transpose()?.and_then(NonZeroU64::new);
    let n_pairs: usize = arg(4).map_or(Ok(12), str::parse)?;
    let n_tokens: usize = arg(5).map_or(Ok(128), str::parse)?;
    let mut with = Engine::open(&EngineConfig { draft, ..plain.clone() })?;
    let mut without = Engine::open(&plain)?;
    let text = std::fs::read_to_string(fixture("heldout.txt"))?;
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut ratios = Vec::new();
    let mut accepted = (0, 0);
    for pair in 0..=n_pairs {
        let start = pair * (words.len() - N_WORDS) / (n_pairs + 1);
        let prompt = without.tokenizer().encode_plain(&words[start..start + N_WORDS].join(" "))?;
        // The first of a pair is each in turn.
        let (drafted, alone) = if pair % 2 == 0 {
            let drafted = answer(&mut with, &prompt, n_tokens)?;
            (drafted, answer(&mut without, &prompt, n_tokens)?)
        } else {
            let alone = answer(&mut without, &prompt, n_tokens)?;
            (answer(&mut with, &prompt, n_tokens)?, alone)
        };
        assert_eq!(drafted.0, alone.0, "drafts change nothing");
        if pair == 0 || alone.0.len() < n_tokens / 4 {
            continue;
        }
        let ratio = drafted.1.decode_ms / alone.1.decode_ms;
        accepted = (accepted.0 + drafted.1.accepted_tokens, accepted.1 + drafted.1.draft_tokens);
        println!("{ratio:.3}  {:.1} and {:.1} tok/s", drafted.1.tokens_per_second, alone.1.tokens_per_second);
        ratios.push(ratio);
    }
    let (mean, low, high) = interval(&ratios);
    println!("{mean:.3} ({low:.3} to {high:.3}) of the time without, {} pairs", ratios.len());
    println!("{} of {} drafted tokens were accepted", accepted.0, accepted.1);
    for decision in with.decisions().iter().filter(|decision| decision.what.starts_with("draft")) {
        println!("{}: {} ({})", decision.what, decision.choice, decision.reason);
    }
    Ok(())
}
