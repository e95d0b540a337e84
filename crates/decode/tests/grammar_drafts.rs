//! Under a grammar too, drafts change no token and no state; and a model's answers are what was asked for.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use forerun_decode::config::DraftChoice;
use forerun_decode::{
    BackendChoice, Engine, EngineConfig, FinishReason, Generation, GenerationConfig, Grammar, GrammarBegin,
    GrammarFactory, GrammarSpec, Logits, Parts, Report, SamplerConfig, Session,
};
use forerun_model::TokenId;
use serde_json::{Value, json};
use support::drafters::{Script, Scripted};
use support::{config, fixture};

fn pico() -> EngineConfig {
    config(&fixture("pico-q4_k_m.gguf"), BackendChoice::Cpu)
}

fn people() -> GrammarSpec {
    GrammarSpec::JsonSchema(json!({
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "name": { "type": "string", "maxLength": 8 },
                "age": { "type": "integer", "minimum": 1, "maximum": 99 },
                "city": { "enum": ["Rome", "Paris"] },
            },
            "required": ["name", "age", "city"],
            "additionalProperties": false,
        },
        "minItems": 1,
        "maxItems": 1,
    }))
}

fn how(grammar: &Grammar, temperature: f32, seed: u64) -> GenerationConfig {
    let sampler = SamplerConfig { temperature, seed, repetition_penalty: 1.05, ..SamplerConfig::default() };
    GenerationConfig {
        sampler,
        max_tokens: Some(120),
        grammar: Some(grammar.clone()),
        ..GenerationConfig::default()
    }
}

/// An answer, what the session holds, and the bits of the logits after one more token.
fn answer(
    engine: &mut Engine,
    prompt: &[TokenId],
    how: &GenerationConfig,
) -> (Report, Vec<TokenId>, Vec<u32>) {
    let mut session = Session::new();
    let mut generation = Generation::new(engine, &mut session, prompt.to_vec(), how).unwrap();
    while generation.next().unwrap().is_some() {}
    let report = generation.finish();
    let held = session.tokens().to_vec();
    let after = session.extend(engine, &[TokenId(42)], Logits::Last).unwrap().unwrap();
    (report, held, after.iter().map(|logit| logit.to_bits()).collect())
}

#[test]
fn drafts_change_nothing_under_a_grammar() {
    let mut plain = Engine::open(&pico()).unwrap();
    let n_vocab = plain.shape().n_vocab;
    let factory = GrammarFactory::new(plain.tokenizer().vocabulary()).unwrap();
    let grammar = factory.compile(&people()).unwrap();
    let prompt = plain.tokenizer().encode_plain("Someone with age and city:\n").unwrap();
    let begins = [GrammarBegin::AtOnce, GrammarBegin::AfterThoughts, GrammarBegin::MayThink];
    for (i, begin) in begins.into_iter().cycle().take(4).enumerate() {
        let how = how(&grammar.clone().beginning(begin), [0.0, 0.8][i % 2], i as u64);
        let want = answer(&mut plain, &prompt, &how);
        let text = [&prompt[..], &want.0.tokens, &[TokenId(0); 8]].concat();
        if begin == GrammarBegin::AtOnce {
            let said = plain.tokenizer().decode(&want.0.tokens);
            assert_eq!(want.0.finish_reason, FinishReason::Stop, "{said:?}");
            let people: Vec<Value> = serde_json::from_str(&said).unwrap();
            assert!(people.len() == 1 && people.iter().all(|p| p["age"].is_u64() && p["city"].is_string()));
        }
        for script in [Script::Right, Script::Wrong, Script::Mixed(3)] {
            let parts = Parts { drafter: Some(Scripted::new(&text, script, n_vocab)), ..Parts::default() };
            let config = EngineConfig { draft_length: Some(7), ..pico() };
            let mut engine = Engine::open_with(&config, parts).unwrap();
            let found = answer(&mut engine, &prompt, &how);
            assert_eq!(found.0.tokens, want.0.tokens, "{begin:?}, {script:?}");
            assert_eq!(
                (found.0.finish_reason, &found.1),
                (want.0.finish_reason, &want.1),
                "{begin:?}, {script:?}"
            );
            assert_eq!(found.2, want.2, "{begin:?}, {script:?}");
            assert!(found.0.telemetry.draft_tokens > 0);
        }
        let config = EngineConfig { draft: DraftChoice::Ngram, draft_length: Some(7), ..pico() };
        let found = answer(&mut Engine::open(&config).unwrap(), &prompt, &how);
        assert_eq!((found.0.tokens, found.1, found.2), (want.0.tokens, want.1, want.2), "{begin:?}");
    }
}

/// A drafter that chooses from logits of its own follows the grammar as it drafts.
#[test]
fn a_prediction_block_drafts_under_a_grammar() {
    let tiny = config(&fixture("tiny-a-f32.gguf"), BackendChoice::Cpu);
    let mut plain = Engine::open(&tiny).unwrap();
    let factory = GrammarFactory::new(plain.tokenizer().vocabulary()).unwrap();
    let grammar = factory.compile(&people()).unwrap();
    let prompt = plain.tokenizer().encode_plain("Someone:\n").unwrap();
    for seed in 0..3 {
        let how = how(&grammar, 1.0, seed);
        let want = answer(&mut plain, &prompt, &how);
        let config = EngineConfig { draft: DraftChoice::Mtp, draft_length: Some(7), ..tiny.clone() };
        let found = answer(&mut Engine::open(&config).unwrap(), &prompt, &how);
        assert!(found.0.telemetry.draft_tokens > 0);
        assert_eq!((found.0.tokens, found.1, found.2), (want.0.tokens, want.1, want.2), "seed {seed}");
    }
}
