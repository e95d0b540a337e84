//! A measurement runs the passes that it says, over tokens that fit.

mod support;

use forerun_decode::{
    BackendChoice, Bench, BenchEvent, DecodeError, Engine, EngineConfig, PredictorChoice, SlotWish,
};
use forerun_model::TokenId;
use support::{config, fixture};

fn tiny() -> EngineConfig {
    config(&fixture("tiny-b-q3_k_m.gguf"), BackendChoice::Cpu)
}

fn tokens(n: u32) -> Vec<TokenId> {
    (0..n).map(|i| TokenId(i * 19 % 512)).collect()
}

#[test]
fn one_pass_warms_up_and_the_others_count() {
    let mut engine = Engine::open(&tiny()).unwrap();
    let mut bench = Bench::new(&mut engine, tokens(20), tokens(5), 3).unwrap();
    let (mut fed, mut passes) = (0, Vec::new());
    while let Some(event) = bench.next().unwrap() {
        match event {
            BenchEvent::Fed(n) => fed += n,
            BenchEvent::Pass { n, pass } => {
                assert_eq!((n, fed), (passes.len(), 25 * (n + 1)));
                passes.push(pass);
            }
        }
    }
    assert_eq!(passes[1..], *bench.passes());
    assert_eq!(bench.passes().len(), 3);
    let telemetry = bench.telemetry();
    assert_eq!((telemetry.prompt_tokens, telemetry.decode_tokens), (60, 15));
    assert!(bench.warm_up_bytes() > 0, "the first pass reads the experts");
    assert_eq!((telemetry.bytes_demand, telemetry.experts_again), (0, 0), "the others find them in place");
}

#[test]
fn every_pass_streams_when_nothing_is_kept() {
    let mut config = tiny();
    config.slots = SlotWish::PerLayer(0);
    // What is guessed differs from pass to pass.
    config.predictor = PredictorChoice::None;
    let mut engine = Engine::open(&config).unwrap();
    let mut bench = Bench::new(&mut engine, tokens(20), tokens(5), 2).unwrap();
    while bench.next().unwrap().is_some() {}
    assert_eq!(bench.telemetry().bytes_demand, 2 * bench.warm_up_bytes());
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut config = tiny();
    config.context = Some(24);
    let mut engine = Engine::open(&config).unwrap();
    let mut new = |prompt, decode| Bench::new(&mut engine, tokens(prompt), tokens(decode), 1).map(|_| ());
    assert!(matches!(new(20, 5), Err(DecodeError::BenchContext { need: 25, context: 24 })));
    assert!(matches!(new(0, 5), Err(DecodeError::EmptyPrompt)));
    assert!(new(20, 4).is_ok());
}

/// pico: every tensor but the embedding, of which a token reads one row of 256 values in Q4_K; four of 32 experts.
#[test]
fn a_token_reads_the_dense_weights_and_the_experts_that_it_uses() {
    let engine = Engine::open(&config(&fixture("pico-q4_k_m.gguf"), BackendChoice::Cpu)).unwrap();
    let traffic = engine.token_traffic();
    let table = 8192 * 144;
    assert_eq!(traffic.dense, engine.resident_bytes() - table + 144);
    assert_eq!(traffic.experts % 4, 0);
    let records = [110_592_u64, 127_488];
    let (least, most) = (8 * 4 * records[0], 8 * 4 * records[1]);
    assert!((least..=most).contains(&traffic.experts), "{traffic:?}");
    assert_eq!(traffic.total(), traffic.dense + traffic.experts);
}
