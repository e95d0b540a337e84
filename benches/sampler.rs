//! A token from the logits of the largest vocabulary. Unit of work: tokens.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use forerun_decode::SamplerConfig;
use forerun_decode::sampler::{Draw, History, Sampler};
use forerun_model::TokenId;

/// Entries of the vocabulary of a Qwen3.5 model.
const N_VOCAB: u32 = 248_320;
/// Its control tokens lie at the end.
const N_BANNED: u32 = 24;
/// Tokens that a penalty looks at.
const N_SEEN: u32 = 500;

/// Sums of four hashes, which are close to normal, with a spread like that of a model's logits.
fn logits() -> Vec<f32> {
    let hash = |i: u32| (i.wrapping_mul(0x9e37_79b9) ^ (i >> 7)).wrapping_mul(0x85eb_ca6b) >> 16;
    let unit = |i: u32| f32::from(u16::try_from(hash(i)).unwrap_or(0)) / 65_536.0;
    (0..N_VOCAB).map(|i| (0..4).map(|j| unit(4 * i + j)).sum::<f32>() * 5.0 - 10.0).collect()
}

fn configs() -> [(&'static str, SamplerConfig); 6] {
    let default = SamplerConfig { seed: 1, ..SamplerConfig::default() };
    [
        ("greedy", SamplerConfig::greedy()),
        ("top-k 20, top-p", default.clone()),
        ("top-k 20, top-p, penalties", SamplerConfig { presence_penalty: 1.5, ..default.clone() }),
        ("top-k 1000", SamplerConfig { top_k: 1000, top_p: 1.0, ..default.clone() }),
        ("top-p", SamplerConfig { top_k: 0, ..default.clone() }),
        ("all", SamplerConfig { top_k: 0, top_p: 1.0, ..default }),
    ]
}

fn sampler(c: &mut Criterion) {
    let (logits, history) =
        (logits(), History::new(&(0..N_SEEN).map(|i| TokenId(i * 400)).collect::<Vec<_>>()));
    let mut group = c.benchmark_group("sampler");
    group.throughput(Throughput::Elements(1));
    for (name, config) in configs() {
        let banned = (N_VOCAB - N_BANNED..N_VOCAB).map(TokenId);
        let mut sampler = Sampler::new(config, logits.len(), banned).expect("the parameters are right");
        let mut position = 0;
        group.bench_function(BenchmarkId::from_parameter(name), |b| {
            b.iter(|| {
                position += 1;
                sampler.sample(&logits, &history, Draw { choice: 0, position })
            });
        });
    }
    group.finish();
}

criterion_group!(benches, sampler);
criterion_main!(benches);
