//! Every drafter there is, on the models that have what it takes: no answer changes by a token, no state by a bit.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use forerun_decode::config::DraftChoice;
use forerun_decode::{BackendChoice, Engine, EngineConfig, GenerationConfig, Report, SlotWish};
use forerun_model::TokenId;
use support::answers::{SLOTS, TEMPERATURES, answer, pico, prompts, sampling};
use support::{config, extra, fixture};

/// A prompt, how it is answered, and the answer of an engine that drafts nothing.
struct Wanted {
    what: String,
    prompt: Vec<TokenId>,
    how: GenerationConfig,
    answer: (Report, Vec<TokenId>, Vec<u32>),
}

/// Answers to `n` prompts without drafts. In a short run each prompt has one temperature, in a long one all.
fn answers_without_drafts(n: usize, base: &EngineConfig) -> Vec<Wanted> {
    let mut plain = Engine::open(base).unwrap();
    let mut wanted = Vec::new();
    for (i, prompt) in prompts(&plain, n).into_iter().enumerate() {
        let temperatures = if n > 10 { &TEMPERATURES[..] } else { &TEMPERATURES[i % 3..][..1] };
        for &temperature in temperatures {
            let how = sampling(temperature, i as u64);
            let answer = answer(&mut plain, &prompt, &how);
            let what = format!("T = {temperature}, prompt {i}");
            wanted.push(Wanted { what, prompt: prompt.clone(), how, answer });
        }
    }
    wanted
}

fn drafter_agrees(wanted: &[Wanted], base: &EngineConfig, draft: &DraftChoice, slots: SlotWish) {
    let config = EngineConfig { draft: draft.clone(), draft_length: Some(7), slots, ..base.clone() };
    let mut engine = Engine::open(&config).unwrap();
    let mut drafted = 0;
    for Wanted { what, prompt, how, answer: want } in wanted {
        let found = answer(&mut engine, prompt, how);
        assert_eq!(found.0.tokens, want.0.tokens, "{draft:?}, {slots:?}, {what}");
        assert_eq!((&found.1, &found.2), (&want.1, &want.2), "{draft:?}, {slots:?}, {what}");
        drafted += found.0.telemetry.draft_tokens;
    }
    assert!(drafted > 0, "{draft:?} drafts");
}

fn tiny() -> EngineConfig {
    config(&fixture("tiny-a-f32.gguf"), BackendChoice::Cpu)
}

/// The drafter of pico, where its file lies at hand.
fn dspark() -> Option<DraftChoice> {
    extra("models/pico/pico-dspark-bf16.gguf").map(DraftChoice::File)
}

/// Every drafter there is, on the models that have what it takes.
#[test]
fn every_drafter_leaves_ten_answers_as_they_are() {
    let picos = [Some(DraftChoice::Ngram), dspark()].into_iter().flatten().collect();
    for (base, drafts) in [(pico(), picos), (tiny(), vec![DraftChoice::Mtp])] {
        let wanted = answers_without_drafts(10, &base);
        for draft in drafts {
            for slots in SLOTS {
                drafter_agrees(&wanted, &base, &draft, slots);
            }
        }
    }
}

/// 200 prompts at every temperature: one test for each drafter and number of slots, so that all cores have work.
macro_rules! two_hundred_answers {
    ($($name:ident: $base:ident, $draft:expr, $slots:expr;)*) => {$(
        #[test]
        #[ignore = "600 answers twice; `cargo xtask long` runs it"]
        fn $name() {
            if let Some(draft) = $draft {
                drafter_agrees(&answers_without_drafts(200, &$base()), &$base(), &draft, $slots);
            }
        }
    )*};
}

two_hundred_answers! {
    dspark_leaves_two_hundred_answers_without_slots: pico, dspark(), SLOTS[0];
    dspark_leaves_two_hundred_answers_with_some_slots: pico, dspark(), SLOTS[1];
    dspark_leaves_two_hundred_answers_resident: pico, dspark(), SLOTS[2];
    ngram_leaves_two_hundred_answers_without_slots: pico, Some(DraftChoice::Ngram), SLOTS[0];
    ngram_leaves_two_hundred_answers_with_some_slots: pico, Some(DraftChoice::Ngram), SLOTS[1];
    ngram_leaves_two_hundred_answers_resident: pico, Some(DraftChoice::Ngram), SLOTS[2];
    mtp_leaves_two_hundred_answers_without_slots: tiny, Some(DraftChoice::Mtp), SLOTS[0];
    mtp_leaves_two_hundred_answers_with_some_slots: tiny, Some(DraftChoice::Mtp), SLOTS[1];
    mtp_leaves_two_hundred_answers_resident: tiny, Some(DraftChoice::Mtp), SLOTS[2];
}
