//! Answers of a batch, one after the other, and the same by themselves.

use forerun_decode::{
    Batch, BatchEvent, Engine, EngineConfig, Event, Generation, GenerationConfig, Piece, SamplerConfig,
    Session,
};
use forerun_model::TokenId;

/// What was said to one prompt.
pub(crate) struct Said {
    pub(crate) n_reused: usize,
    pub(crate) tokens: Vec<TokenId>,
    /// Tokens that were guessed on the way.
    pub(crate) n_drafted: usize,
    /// With the log-probabilities, which depend on every bit of the logits.
    pub(crate) pieces: Vec<Piece>,
}

/// Some tokens.
pub(crate) fn turn(seed: u32, len: u32) -> Vec<TokenId> {
    (0..len).map(|i| TokenId((seed * 131 + i * (17 + 2 * seed)) % 251)).collect()
}

pub(crate) fn how(seed: u64, n: usize) -> GenerationConfig {
    let sampler = SamplerConfig { temperature: 0.8, seed, ..SamplerConfig::default() };
    GenerationConfig { sampler, max_tokens: Some(n), logprobs: Some(3), ..GenerationConfig::default() }
}

/// An answer of a batch in which nobody else is.
pub(crate) fn say(batch: &mut Batch, prompt: &[TokenId], config: &GenerationConfig) -> Said {
    let admitted = batch.admit(prompt.to_vec(), config).unwrap().unwrap();
    let mut said = Said { n_reused: admitted.n_reused, tokens: Vec::new(), n_drafted: 0, pieces: Vec::new() };
    while batch.advance() {}
    while let Some((ticket, event)) = batch.next_event() {
        assert_eq!(ticket, admitted.ticket);
        match event {
            BatchEvent::Event(Event::Text(piece)) => said.pieces.push(piece),
            BatchEvent::Event(Event::Prompt { .. }) => {}
            BatchEvent::Over(report) => {
                said.n_drafted = report.telemetry.draft_tokens;
                said.tokens = report.tokens;
            }
            BatchEvent::Failed(error) => panic!("{error}"),
        }
    }
    said
}

/// The same answer by an engine that never did anything else.
pub(crate) fn alone(config: &EngineConfig, prompt: &[TokenId], how: &GenerationConfig) -> Vec<Piece> {
    let mut engine = Engine::open(config).unwrap();
    let mut session = Session::new();
    let mut answer = Generation::new(&mut engine, &mut session, prompt.to_vec(), how).unwrap();
    let mut pieces = Vec::new();
    while let Some(event) = answer.next().unwrap() {
        if let Event::Text(piece) = event {
            pieces.push(piece);
        }
    }
    pieces
}
