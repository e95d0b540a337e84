//! Decode steps of the small model, everything resident. Unit of work: tokens.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use forerun_decode::{Engine, EngineConfig, Logits, ModelSource, Session};
use forerun_model::TokenId;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/pico-q4_k_m.gguf");
/// A conversation of usual length lies behind the measured steps.
const N_PAST: u32 = 64;
/// Steps of one pass, each of one token.
const N_STEPS: u32 = 16;

/// Ordinary tokens; which ones decides the routing and nothing else.
fn tokens(n: u32) -> Vec<TokenId> {
    (0..n).map(|i| TokenId(100 + i * 37 % 4000)).collect()
}

fn token(c: &mut Criterion) {
    let mut engine =
        Engine::open(&EngineConfig::new(ModelSource::Path(MODEL.into()))).expect("the fixture opens");
    let (past, steps) = (tokens(N_PAST), tokens(N_STEPS));
    let mut group = c.benchmark_group("token");
    group.throughput(Throughput::Elements(u64::from(N_STEPS)));
    group.bench_function("resident", |b| {
        // A session that starts anew takes the engine's caches over, so both lie in one place.
        let engine = std::cell::RefCell::new(&mut engine);
        let read = || {
            let mut session = Session::new();
            session.extend(&mut engine.borrow_mut(), &past, Logits::None).expect("the prompt fits");
            session
        };
        let answer = |mut session: Session| {
            for &token in &steps {
                session
                    .extend(&mut engine.borrow_mut(), &[token], Logits::Last)
                    .expect("the context has room");
            }
        };
        b.iter_batched(read, answer, BatchSize::PerIteration);
    });
    group.finish();
}

criterion_group!(benches, token);
criterion_main!(benches);
