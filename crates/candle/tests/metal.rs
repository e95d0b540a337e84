//! The kernels on a Mac's GPU: the same random calls that `cargo xtask msl` runs on a CPU, and what only a GPU can show. `docs/metal.md`
//! says what each proves.

#![cfg(all(feature = "metal", target_os = "macos"))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "bounds needn't be exact")]
#![allow(clippy::print_stdout, reason = "how far each kernel is off is what one wants to know")]

mod kernel_cases;

use candle_metal_kernels::Kernels as CandleKernels;
use forerun_arena::{Arena, SlotIdx};
use forerun_candle::metal::borrowed::Borrowed;
use forerun_candle::metal::host::{self, HostBuffer};
use forerun_candle::metal::launch::{self, Expert, ExpertSizes, Launch};
use forerun_candle::metal::{Gpu as Device, MetalError, SlotBuffer};
use forerun_compute::dequant::dequantise;
use forerun_model::{ExpertId, ExpertLayout, MatrixLayout, PartOffsets, QuantType, Use};
use kernel_cases::{Chance, Gpu, HALF_UNIT, Report, bits, close, delta_net, expert};

struct Metal(Device);

impl Gpu for Metal {
    fn run(&mut self, launch: &Launch, buffers: &mut [HostBuffer<'_>]) {
        self.0.run_on_host(launch, buffers).unwrap();
    }
}

fn check(kernel: &str, run: impl Fn(&mut dyn Gpu, u64, &mut Report)) {
    let (mut gpu, mut report) = (Metal(Device::open().unwrap()), Report::default());
    for seed in 0..200 {
        run(&mut gpu, seed, &mut report);
    }
    assert!(!report.is_empty());
    println!("{kernel:<18} {report}");
}

#[test]
fn kernels_compile() {
    Device::open().unwrap();
}

#[test]
fn delta_net_kernels_are_as_their_twins() {
    check("delta_convolve", delta_net::delta_convolve);
    check("delta_step", delta_net::delta_step);
    check("delta_gate", delta_net::delta_gate);
}

#[test]
fn close_layer_is_as_its_twin() {
    check("close_layer", close::close_layer);
}

#[test]
fn expert_kernels_are_as_their_twins() {
    for &quant in expert::TYPES {
        let inner = |gpu: &mut dyn Gpu, seed, report: &mut Report| {
            expert::expert_inner(gpu, quant, seed, report);
        };
        check(&format!("expert_inner_{quant:?}"), inner);
        let down = |gpu: &mut dyn Gpu, seed, report: &mut Report| {
            expert::expert_down(gpu, quant, seed, report);
        };
        check(&format!("expert_down_{quant:?}"), down);
    }
}

const HIDDEN: usize = 512;
const FF: usize = 256;

/// An expert in a slot is read where it lies, and has the bits that it has in a buffer of its own; then its lease is given back. Slots
/// outlive their arena.
#[test]
fn slots_are_read_where_they_lie() {
    let gpu = Device::open().unwrap();
    let matrix = |n_rows, n_cols| MatrixLayout::new(QuantType::Q4_K, n_rows, n_cols).unwrap();
    let layout = ExpertLayout { gate: matrix(FF, HIDDEN), up: matrix(FF, HIDDEN), down: matrix(HIDDEN, FF) };
    let at = 34;
    let (up, down) = (at + layout.gate.bytes(), at + 2 * layout.gate.bytes());
    let parts = PartOffsets { gate: at, up, down };
    let sizes = ExpertSizes { n_rows: 2, top_k: 1, n_uses: 2 };
    let expert = Expert::new(&layout, parts, sizes).unwrap();
    let launch = expert.inner();
    let uses = [0, 1].map(|row| Use { expert: ExpertId(0), row, rank: 0, weight: 1.0 });
    let words = expert.uses(&uses);
    // More than 2 MiB, and slots that begin where the GPU has no page.
    let n_slots = 12;
    let arena = Arena::new(n_slots, down + layout.down.bytes()).unwrap();
    let slots = SlotBuffer::new(gpu.device(), &arena).unwrap();
    let mut chance = Chance(1);
    let x = chance.floats(2 * HIDDEN);
    let mut last = None;
    for slot in (0..n_slots).map(|slot| SlotIdx(u32::try_from(slot).unwrap())) {
        let mut lease = arena.try_write(slot).unwrap();
        for (at, matrix) in [(parts.gate, layout.gate), (parts.up, layout.up), (parts.down, layout.down)] {
            let bytes = expert::blocks(&mut chance, matrix);
            lease.bytes_mut()[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let lease = lease.seal();
        let (mut want, mut found) = (vec![f32::NAN; 2 * FF], vec![f32::NAN; 2 * FF]);
        let rows = || [HostBuffer::Floats(&x), HostBuffer::Words(&words)];
        let [rows_x, rows_uses] = rows();
        let buffers = &mut [HostBuffer::Bytes(lease.bytes()), rows_x, rows_uses, HostBuffer::Out(&mut want)];
        gpu.run_on_host(&launch, buffers).unwrap();
        assert!(want.iter().all(|value| value.is_finite()));
        let [rows_x, rows_uses] = rows();
        let buffers = &mut [rows_x, rows_uses, HostBuffer::Out(&mut found)];
        gpu.run_on_slot(&launch, (&slots, lease.clone()), buffers).unwrap();
        assert_eq!(bits(&found), bits(&want), "{slot:?}");
        assert!(lease.is_last(), "the GPU's lease was given back");
        last = Some((lease, want));
    }
    drop(arena);
    let (lease, want) = last.unwrap();
    let mut found = vec![f32::NAN; 2 * FF];
    let buffers = &mut [HostBuffer::Floats(&x), HostBuffer::Words(&words), HostBuffer::Out(&mut found)];
    gpu.run_on_slot(&launch, (&slots, lease), buffers).unwrap();
    assert_eq!(bits(&found), bits(&want), "without the arena");
}

#[test]
fn bytes_that_lie_in_no_slot_are_refused() {
    let gpu = Device::open().unwrap();
    let arena = Arena::new(1, 4096).unwrap();
    let slots = SlotBuffer::new(gpu.device(), &arena).unwrap();
    let elsewhere = Arena::new(1, 4096).unwrap().try_write(SlotIdx(0)).unwrap().seal();
    let launch = launch::Close { n_rows: 1, hidden: 1, top_k: 1, has_shared: false }.launch().unwrap();
    let error = gpu.run_on_slot(&launch, (&slots, elsewhere), &mut []).unwrap_err();
    assert!(matches!(error, MetalError::Buffer { index: 0, .. }), "{error}");
}

/// candle's kernels on a matrix at an offset, in its own arithmetic: sums in any order, with approximate products.
#[test]
fn candles_kernels_multiply_a_matrix_anywhere() {
    let gpu = Device::open().unwrap();
    let kernels = CandleKernels::new();
    let mut chance = Chance(2);
    for &quant in &expert::TYPES[1..] {
        let matrix = MatrixLayout::new(quant, 64, 512).unwrap();
        let bytes = expert::blocks(&mut chance, matrix);
        let (product, x) = (Borrowed::new(matrix, 3).unwrap(), chance.floats(3 * 512));
        let (at, slot) = (34, [&[0xFF; 34][..], &bytes].concat());
        let found = gpu.run_borrowed(&kernels, &product, (&slot, at), &x).unwrap();
        for (row, found) in found.chunks_exact(64).enumerate() {
            let x = &x[row * 512..][..512];
            for (r, found) in found.iter().enumerate() {
                let mut weights = vec![0.0; 512];
                let row_bytes = matrix.bytes() / 64;
                dequantise(quant, &bytes[r * row_bytes..][..row_bytes], &mut weights);
                let terms = weights.iter().zip(x).map(|(w, x)| f64::from(w * x));
                let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), t| (sum + t, size + t.abs()));
                let off = (f64::from(*found) - sum).abs();
                assert!(off <= 4.0 * 512.0 * HALF_UNIT * size, "{quant:?} {row} {r}: {found}, not {sum}");
            }
        }
    }
}
