//! Answers to snippets of a text, to be compared bit by bit.

use forerun_decode::{
    BackendChoice, Engine, EngineConfig, Generation, GenerationConfig, Logits, Report, SamplerConfig,
    Session, SlotWish,
};
use forerun_model::TokenId;

use super::{config, fixture};

pub(crate) const TEMPERATURES: [f32; 3] = [0.0, 0.7, 1.3];
pub(crate) const SLOTS: [SlotWish; 3] = [SlotWish::PerLayer(0), SlotWish::PerLayer(8), SlotWish::Fill];

pub(crate) fn pico() -> EngineConfig {
    config(&fixture("pico-q4_k_m.gguf"), BackendChoice::Cpu)
}

/// Snippets of held-out text.
pub(crate) fn prompts(engine: &Engine, n: usize) -> Vec<Vec<TokenId>> {
    let text = std::fs::read_to_string(fixture("heldout.txt")).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    let at = |i: usize| &words[i * (words.len() - 12) / n..][..12];
    (0..n).map(|i| engine.tokenizer().encode_plain(&at(i).join(" ")).unwrap()).collect()
}

pub(crate) fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|v| v.to_bits()).collect()
}

pub(crate) fn sampling(temperature: f32, seed: u64) -> GenerationConfig {
    // Repetition penalties look at what was said, drafts included while they are drawn.
    let sampler = SamplerConfig { temperature, seed, repetition_penalty: 1.05, ..SamplerConfig::default() };
    GenerationConfig { sampler, max_tokens: Some(64), ..GenerationConfig::default() }
}

/// An answer, what the session then holds, and the bits of the logits after one more token: they depend on every state.
pub(crate) fn answer(
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
    (report, held, bits(after))
}
