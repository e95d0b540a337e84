//! What verification costs and what it brings: a drafter that knows the answer is right as often as it is told.
//!
//! `cargo run --release -p forerun-decode --example forced_drafts -- [MODEL [TOKENS [ROUNDS]]]`. Prints, for drafts of 1, 3 and 7
//! tokens, the cost of a step of so many rows, the speed-up that this cost and the tokens accepted allow, and the speed-up
//! that there was. Everything is resident; rounds alternate.

#![expect(clippy::print_stdout, reason = "an example talks")]

use std::error::Error;
use std::path::PathBuf;

use forerun_compute::Taps;
use forerun_decode::draft::{Anchor, Draft, Drafter, Seen};
use forerun_decode::{
    DecodeError, Engine, EngineConfig, Generation, GenerationConfig, Logits, ModelSource, Parts, Session,
    Telemetry,
};
use forerun_model::{Clock, SystemClock, TokenId};
use forerun_scheduler::Scheduler;

/// Knows the text; a token of it in `every` is said wrong.
struct Forced {
    text: Vec<TokenId>,
    wrong_every: usize,
    n_vocab: u32,
}

impl Drafter for Forced {
    fn name(&self) -> &'static str {
        "forced"
    }

    fn taps(&self) -> Taps {
        Taps::default()
    }

    fn n_max(&self) -> usize {
        7
    }

    fn observe(&mut self, _: &mut Scheduler, _: Seen<'_>) -> Result<(), DecodeError> {
        Ok(())
    }

    fn propose(
        &mut self,
        _: &mut Scheduler,
        anchor: Anchor<'_>,
        draft: &mut dyn Draft,
    ) -> Result<(), DecodeError> {
        for position in anchor.held.len() + 1..self.text.len() {
            if !draft.admits(f32::NAN) {
                break;
            }
            let token = self.text[position];
            let is_wrong = position % self.wrong_every == 0;
            draft.push(if is_wrong { TokenId((token.0 + 1) % self.n_vocab) } else { token });
        }
        Ok(())
    }

    fn truncate(&mut self, _: usize) {}

    fn resume(&mut self, _: &[TokenId]) {}
}

/// An answer to `prompt` of `n` tokens.
fn answer(
    engine: &mut Engine,
    prompt: &[TokenId],
    n: usize,
) -> Result<(Vec<TokenId>, Telemetry), DecodeError> {
    let how = GenerationConfig { max_tokens: Some(n), ..GenerationConfig::default() };
    let mut session = Session::new();
    let mut generation = Generation::new(engine, &mut session, prompt.to_vec(), &how)?;
    while generation.next()?.is_some() {}
    let report = generation.finish();
    Ok((report.tokens, report.telemetry))
}

/// Seconds of a step of `rows` rows whose logits are all wanted, the median of some after `prompt`.
fn step_seconds(
    engine: &mut Engine,
    text: &[TokenId],
    prompt: usize,
    rows: usize,
) -> Result<f64, DecodeError> {
    let clock = SystemClock::new();
    let mut session = Session::new();
    session.extend(engine, &text[..prompt], Logits::None)?;
    let mut times = Vec::new();
    for part in text[prompt..].chunks_exact(rows) {
        let begin = clock.now();
        session.extend(engine, part, if rows == 1 { Logits::Last } else { Logits::All })?;
        times.push((clock.now() - begin).as_millis_f64() / 1e3);
    }
    Ok(median(&mut times))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/pico-q4_k_m.gguf");
    let model = args.next().map_or_else(|| PathBuf::from(fixture), PathBuf::from);
    let n_tokens: usize = args.next().map_or(Ok(128), |n| n.parse())?;
    let n_rounds: usize = args.next().map_or(Ok(5), |n| n.parse())?;
    let base = EngineConfig { logit_rows: 8, ..EngineConfig::new(ModelSource::Path(model)) };
    let mut plain = Engine::open(&base)?;
    let prompt: Vec<_> = (100..116).map(TokenId).collect();
    let n_vocab = u32::try_from(plain.shape().n_vocab)?;
    // Whatever an answer ends with is in the way of a measurement: texts are long enough where it doesn't end early.
    let (said, _) = answer(&mut plain, &prompt, n_tokens)?;
    let text = [&prompt[..], &said].concat();
    println!("{} tokens; drafts of a token that is right but for each 4th position", said.len());
    println!("drafted  rows cost  tokens a step  allowed  found  found/allowed");
    for length in [1, 3, 7] {
        let drafter = Forced { text: text.clone(), wrong_every: 4, n_vocab };
        let config = EngineConfig { draft_length: Some(length), ..base.clone() };
        let parts = Parts { drafter: Some(Box::new(drafter)), ..Parts::default() };
        let mut drafted = Engine::open_with(&config, parts)?;
        let (mut costs, mut found, mut per_step) = (Vec::new(), Vec::new(), 0.0);
        // The first round brings pages in and isn't counted.
        for round in 0..=n_rounds {
            let alone = answer(&mut plain, &prompt, n_tokens)?.1.tokens_per_second;
            let one = step_seconds(&mut plain, &text, prompt.len(), 1)?;
            let (tokens, telemetry) = answer(&mut drafted, &prompt, n_tokens)?;
            assert_eq!(tokens, said, "drafts change nothing");
            let cost = step_seconds(&mut plain, &text, prompt.len(), length + 1)? / one;
            if round > 0 {
                costs.push(cost);
                found.push(telemetry.tokens_per_second / alone);
            }
            per_step = telemetry.tokens_per_step;
        }
        let (cost, found) = (median(&mut costs), median(&mut found));
        let allowed = per_step / cost;
        println!(
            "{length:>7}  {cost:>9.2}  {per_step:>13.2}  {allowed:>7.2}  {found:>5.2}  {:>13.2}",
            found / allowed
        );
    }
    Ok(())
}
