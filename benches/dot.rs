//! Products of the rows of a matrix and one or more rows of activations, on one thread. Unit of work: bytes of weights.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use forerun_compute::activation::{Activations, Form, Rows};
use forerun_compute::kernels::{Columns, Kernels, Scalar, best};
use forerun_compute::tensor::Matrix;
use forerun_compute::workers::Workers;
use forerun_model::{MatrixLayout, QuantType};
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

fn activations(n_rows: usize, n: usize, form: Form) -> Activations {
    let mut activations = Activations::with_capacity(n_rows, n);
    for (value, byte) in activations.start(n_rows, n).iter_mut().zip(noise(n_rows * n)) {
        *value = f32::from(byte) / 128.0 - 1.0;
    }
    activations.prepare(form, best().isa(), &Workers::single());
    activations
}

fn dot(c: &mut Criterion) {
    let kernels: [Box<dyn Kernels>; 2] = [Box::new(Scalar), best()];
    for n in LENGTHS {
        for quant in TYPES {
            let layout =
                MatrixLayout::new(quant, N_ROWS, n).expect("the lengths are whole blocks of every type");
            let (weights, form) = (noise(layout.bytes()), Form::of(quant));
            for m in [1, 2, 4, 8, 64] {
                let x = activations(m, n, form);
                let mut out = vec![0.0; m * N_ROWS];
                let mut group = c.benchmark_group(format!("dot/{n}/{quant}/{m}"));
                group.throughput(Throughput::Bytes(weights.len() as u64));
                for kernel in kernels.iter().filter(|k| m == 1 || k.name() != "scalar") {
                    group.bench_function(BenchmarkId::from_parameter(kernel.name()), |b| {
                        b.iter(|| {
                            let matrix = Matrix { layout, bytes: black_box(&weights) };
                            kernel.multiply(
                                matrix,
                                x.operand(form, Rows::All),
                                &mut Columns::all(&mut out, N_ROWS),
                            );
                        });
                    });
                }
                group.finish();
            }
        }
    }
}

criterion_group!(benches, dot);
criterion_main!(benches);
