//! A block of a drafter and its first drafts, weights from memory as they lie there. Unit of work: blocks.

use std::hint::black_box;
use std::thread;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use forerun_benches::drafter::{LARGE, PICO};
use forerun_model::TokenId;

/// Positions that were observed before.
const CONTEXT: usize = 1024;
/// Drafts that are taken of a block.
const DRAFTS: [usize; 4] = [0, 1, 4, 7];

fn dspark(c: &mut Criterion) {
    let mut group = c.benchmark_group("dspark");
    for sizes in [PICO, LARGE] {
        let n_threads = thread::available_parallelism().map_or(1, usize::from);
        let mut drafter = sizes.drafter(CONTEXT + 64, n_threads);
        let width = drafter.shape().feature_width();
        let row = vec![0.01; width];
        drafter.observe(0, &row.repeat(CONTEXT)).expect("room for it");
        for n_drafts in DRAFTS {
            group.bench_function(BenchmarkId::new(sizes.name, format!("{n_drafts} drafts")), |b| {
                b.iter(|| {
                    drafter.block(TokenId(1)).expect("a token of the vocabulary");
                    for draft in 0..n_drafts {
                        black_box(drafter.confidence(draft, TokenId(2)).expect("a token"));
                        black_box(drafter.logits(draft, TokenId(2)).expect("a token"));
                    }
                });
            });
        }
        for n_rows in [1, 4] {
            group.bench_function(BenchmarkId::new(sizes.name, format!("{n_rows} rows observed")), |b| {
                b.iter(|| drafter.observe(CONTEXT - n_rows, black_box(&row.repeat(n_rows))).expect("room"));
            });
        }
    }
    group.finish();
}

criterion_group!(benches, dspark);
criterion_main!(benches);
