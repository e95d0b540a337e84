//! One routed expert of a 35B model: gate and up, SiLU, down. Unit of work: rows.

use std::hint::black_box;
use std::thread;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use forerun_compute::activation::{Activations, Rows};
use forerun_compute::kernels::best;
use forerun_compute::products::{ExpertBuffers, ExpertMatrices, Products, Quantised};
use forerun_compute::tensor::Matrix;
use forerun_compute::workers::Workers;
use forerun_model::{ExpertLayout, MatrixLayout, QuantType};
use forerun_sim::Rng;

const HIDDEN: usize = 2048;
const INNER: usize = 512;
/// The types of the experts in the files that people download.
const TYPES: [QuantType; 4] = [QuantType::Q3_K, QuantType::Q4_K, QuantType::Q6_K, QuantType::Q8_0];
/// Rows that want the expert: one in decode, few in verification, many in a prompt.
const ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// `n` bytes of seeded noise, so small that scales made of it are finite.
fn noise(n: usize) -> Vec<u8> {
    let mut rng = Rng::new(1);
    let words = n.div_ceil(8);
    let mut bytes: Vec<u8> = (0..words).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    bytes.truncate(n);
    bytes.iter_mut().for_each(|byte| *byte &= 0x3F);
    bytes
}

/// Records that are used in turn, so that each comes from memory as in a model and not from a cache.
const POOL_BYTES: usize = 256 << 20;

/// Inputs and outputs of one pass.
struct Rig {
    layout: ExpertLayout,
    records: Vec<u8>,
    /// Whose turn it is.
    next: usize,
    x: Activations,
    inner: Activations,
    gate: Vec<f32>,
    up: Vec<f32>,
    out: Vec<f32>,
}

impl Rig {
    fn new(quant: QuantType, n_rows: usize) -> Self {
        let matrix = |rows, cols| MatrixLayout::new(quant, rows, cols).expect("whole blocks of every type");
        let wide = matrix(INNER, HIDDEN);
        let layout = ExpertLayout { gate: wide, up: wide, down: matrix(HIDDEN, INNER) };
        let record = noise(layout.record_bytes());
        let records = record.repeat(POOL_BYTES / record.len());
        let floats = |width: usize| vec![0.0; n_rows * width];
        let (x, inner) =
            (Activations::with_capacity(n_rows, HIDDEN), Activations::with_capacity(n_rows, INNER));
        Self {
            layout,
            records,
            next: 0,
            x,
            inner,
            gate: floats(INNER),
            up: floats(INNER),
            out: floats(HIDDEN),
        }
    }

    fn run(&mut self, products: &mut Quantised, input: &[f32]) {
        let Self { layout, records, next, x, inner, gate, up, out } = self;
        let (n_rows, parts) = (input.len() / HIDDEN, layout.offsets());
        let record = &records[*next..*next + layout.record_bytes()];
        *next = (*next + layout.record_bytes()) % records.len();
        let matrix =
            |at: usize, layout: MatrixLayout| Matrix { layout, bytes: &record[at..at + layout.bytes()] };
        let expert = ExpertMatrices {
            gate: matrix(parts.gate, layout.gate),
            up: matrix(parts.up, layout.up),
            down: matrix(parts.down, layout.down),
        };
        x.start(n_rows, HIDDEN).copy_from_slice(black_box(input));
        products.expert(expert, x, Rows::All, ExpertBuffers { gates: gate, ups: up, inner }, out);
        black_box(out);
    }
}

fn expert(c: &mut Criterion) {
    let n_threads = thread::available_parallelism().map_or(1, usize::from);
    let workers = Workers::new(n_threads).expect("the threads start");
    let mut products = Quantised::new(best(), workers);
    for quant in TYPES {
        let mut group = c.benchmark_group(format!("expert/{quant}"));
        for n_rows in ROWS {
            let mut rig = Rig::new(quant, n_rows);
            let bytes = noise(n_rows * HIDDEN);
            let input: Vec<f32> = bytes.iter().map(|&byte| f32::from(byte) / 32.0 - 1.0).collect();
            group.throughput(Throughput::Elements(n_rows as u64));
            group.bench_function(BenchmarkId::from_parameter(n_rows), |b| {
                b.iter(|| rig.run(&mut products, &input));
            });
        }
        group.finish();
    }
}

criterion_group!(benches, expert);
criterion_main!(benches);
