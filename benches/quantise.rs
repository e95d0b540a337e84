//! Rows of values encoded as blocks, on one thread, with and without weights. Unit of work: rows of 2048 values.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use forerun_compute::kernels::Isa;
use forerun_compute::quantise::quantise_on;
use forerun_model::QuantType;
use forerun_sim::Rng;

/// The types that recipes choose, and the plainest.
const TYPES: [QuantType; 8] = [
    QuantType::Q8_0,
    QuantType::Q4_0,
    QuantType::IQ4_NL,
    QuantType::Q2_K,
    QuantType::Q3_K,
    QuantType::Q4_K,
    QuantType::Q5_K,
    QuantType::Q6_K,
];
/// Values of a row: a 35B model's experts have these in gate and up.
const ROW: usize = 2048;
const N_ROWS: usize = 16;

/// Sums of seeded uniform numbers: near enough to a bell.
fn values(n: usize) -> Vec<f32> {
    let mut rng = Rng::new(1);
    (0..n).map(|_| rng.next_u64().to_le_bytes().map(|b| f32::from(b) - 127.5).iter().sum::<f32>()).collect()
}

fn quantise(c: &mut Criterion) {
    let rows = values(N_ROWS * ROW);
    let weights: Vec<f32> = values(ROW).iter().map(|v| v * v).collect();
    for quant in TYPES {
        let row_bytes = quant.row_bytes(ROW).expect("the length is whole blocks of every type");
        let mut out = vec![0; row_bytes];
        let mut group = c.benchmark_group(format!("quantise/{quant}"));
        group.throughput(Throughput::Elements(N_ROWS as u64));
        for (name, isa) in [("baseline", Isa::BASELINE), ("best", Isa::detect())] {
            for (kind, weights) in [("even", None), ("weighted", Some(&weights[..]))] {
                group.bench_function(BenchmarkId::new(name, kind), |b| {
                    b.iter(|| {
                        for row in rows.chunks(ROW) {
                            quantise_on(isa, quant, black_box(row), weights, &mut out);
                        }
                    });
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, quantise);
criterion_main!(benches);
