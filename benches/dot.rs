//! Products of one row of weights and one of activations. Unit of work: bytes of weights.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use forerun_compute::activation::{Activations, Form};
use forerun_compute::dot::{Dot, Scalar, best};
use forerun_model::QuantType;
use forerun_sim::Rng;

/// The types of the experts in the files that people download.
const TYPES: [QuantType; 5] =
    [QuantType::Q3_K, QuantType::Q4_K, QuantType::Q5_K, QuantType::Q6_K, QuantType::Q8_0];
/// Row lengths of a 35B model's experts: gate and up, then down.
const LENGTHS: [usize; 2] = [2048, 512];
/// Rows of one pass: together they don't fit a first-level cache, as an expert's don't.
const N_ROWS: usize = 256;

/// `n` bytes of seeded noise. A block's scales are noise too, which costs an integer kernel no time.
fn noise(n: usize) -> Vec<u8> {
    let mut rng = Rng::new(1);
    let words = n.div_ceil(8);
    let mut bytes: Vec<u8> = (0..words).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    bytes.truncate(n);
    bytes
}

fn activations(n: usize, form: Form) -> Activations {
    let mut activations = Activations::with_capacity(1, n);
    for (value, byte) in activations.start(1, n).iter_mut().zip(noise(n)) {
        *value = f32::from(byte) / 128.0 - 1.0;
    }
    activations.prepare(form);
    activations
}

fn dot(c: &mut Criterion) {
    let kernels: [Box<dyn Dot>; 2] = [Box::new(Scalar), best()];
    for n in LENGTHS {
        let mut group = c.benchmark_group(format!("dot/{n}"));
        for quant in TYPES {
            let row_bytes = quant.row_bytes(n).expect("the lengths are whole blocks of every type");
            let weights = noise(row_bytes * N_ROWS);
            let form = Form::of(quant);
            let activations = activations(n, form);
            group.throughput(Throughput::Bytes(weights.len() as u64));
            for kernel in &kernels {
                group.bench_function(BenchmarkId::new(kernel.name(), quant), |b| {
                    b.iter(|| {
                        let products = weights
                            .chunks_exact(row_bytes)
                            .map(|row| kernel.dot(quant, black_box(row), activations.row(0, form)));
                        products.sum::<f32>()
                    });
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, dot);
criterion_main!(benches);
