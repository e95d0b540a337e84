//! Products of every type against decoded values.

use candle_core::{Device, Tensor};
use forerun_compute::dequant::is_supported;
use proptest::prelude::*;

use super::*;
use crate::device::read;

fn devices() -> Vec<Machine> {
    let mut names = vec![DeviceName::Cpu];
    if candle_core::utils::cuda_is_available() {
        names.push(DeviceName::Cuda(0));
    }
    if candle_core::utils::metal_is_available() {
        names.push(DeviceName::Metal(0));
    }
    names.into_iter().map(|name| Machine::open(name).unwrap()).collect()
}

/// Numbers in -1..1 that a seed decides.
fn noise(seed: u32, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Blocks of `layout` that hold numbers of some size.
fn blocks(layout: MatrixLayout, seed: u32) -> Vec<u8> {
    let values = noise(seed, layout.n_rows * layout.n_cols);
    let dtype = match layout.quant {
        QuantType::F16 => Some(GgmlDType::F16),
        QuantType::BF16 => Some(GgmlDType::BF16),
        QuantType::F32 => Some(GgmlDType::F32),
        other => block_type(other),
    };
    if let Some(dtype) = dtype {
        let dims = (layout.n_rows, layout.n_cols);
        let values = Tensor::from_vec(values, dims, &Device::Cpu).unwrap();
        return QTensor::quantize(&values, dtype).unwrap().data().unwrap().into_owned();
    }
    // Any bits are numbers in these types, but for the block's scale.
    let mut bytes: Vec<u8> = noise(seed, layout.bytes()).iter().map(|v| v.to_le_bytes()[1]).collect();
    for block in bytes.chunks_exact_mut(layout.quant.block_bytes()) {
        match layout.quant {
            QuantType::MXFP4 => block[0] = 125,
            _ => block[..2].copy_from_slice(&half::f16::from_f32(0.01).to_le_bytes()),
        }
    }
    bytes
}

fn times(matrix: &Matrix, machine: &Machine, x: &[f32], n_cols: usize) -> Vec<f32> {
    read(&matrix.times(&machine.rows(x, n_cols).unwrap()).unwrap()).unwrap()
}

/// Activations are rounded to 8 bits in groups of 32 or 256 for types of blocks: each to at most one step, a 127th of the largest.
/// Scales of groups may be half floats, and f32 sums have their own rounding: a thousandth of what is added covers both.
#[test]
fn products_of_every_type_are_those_of_decoded_weights() {
    let n_rows = 7;
    for quant in QuantType::all().filter(|quant| is_supported(*quant)) {
        // Devices have other kernels for few rows.
        for (n, n_cols) in [(3, 256), (1, 1024), (11, 1024)] {
            let layout = MatrixLayout::new(quant, n_rows, n_cols).unwrap();
            let bytes = blocks(layout, 1);
            let mut weights = vec![0.0; n_rows * n_cols];
            dequantise(quant, &bytes, &mut weights);
            let x = noise(2, n * n_cols);
            for machine in devices() {
                // At an odd address too, as a slot may have it.
                let odd = [&[0], &bytes[..]].concat();
                let matrices = [&bytes[..], &odd[1..]].map(|bytes| {
                    Matrix::new(forerun_compute::tensor::Matrix { layout, bytes }, &machine).unwrap()
                });
                let found = times(&matrices[0], &machine, &x, n_cols);
                assert_eq!(found, times(&matrices[1], &machine, &x, n_cols), "{quant} at an odd address");
                for (i, found) in found.iter().enumerate() {
                    let x = &x[i / n_rows * n_cols..][..n_cols];
                    let w = &weights[i % n_rows * n_cols..][..n_cols];
                    let want: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                    let sum = |f: fn(f32, f32) -> f32| x.iter().zip(w).map(|(x, w)| f(*x, *w)).sum::<f32>();
                    let step = if block_type(quant).is_some() { 1.0 / 127.0 } else { 0.0 };
                    let bound = step * sum(|_, w| w.abs()) + 1e-3 * sum(|x, w| (x * w).abs());
                    let off = (f64::from(*found) - want).abs();
                    assert!(off <= f64::from(bound), "{quant} {}: off by {off} of {bound}", machine.name);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, failure_persistence: None, ..ProptestConfig::default() })]

    /// On the processor: the bits of a row don't depend on the others.
    #[test]
    fn a_row_has_the_same_bits_alone(n in 1_usize..20, n_rows in 1_usize..40, seed: u32, pick: prop::sample::Index) {
        let quants: Vec<_> = QuantType::all().filter(|quant| is_supported(*quant)).collect();
        let quant = *pick.get(&quants);
        let layout = MatrixLayout::new(quant, n_rows, 512).unwrap();
        let bytes = blocks(layout, seed);
        let machine = Machine::open(DeviceName::Cpu).unwrap();
        let matrix = Matrix::new(forerun_compute::tensor::Matrix { layout, bytes: &bytes }, &machine).unwrap();
        let x = noise(seed ^ 1, n * 512);
        let all = times(&matrix, &machine, &x, 512);
        for (x, all) in x.chunks_exact(512).zip(all.chunks_exact(n_rows)) {
            prop_assert_eq!(&times(&matrix, &machine, x, 512), all, "{}", quant);
        }
    }
}

#[test]
fn what_a_matrix_takes_is_what_is_said() {
    let bytes = |quant| matrix_bytes(MatrixLayout::new(quant, 4, 256).unwrap());
    assert_eq!(bytes(QuantType::Q4_K), 4 * 144);
    assert_eq!([QuantType::F32, QuantType::BF16, QuantType::MXFP4].map(bytes), [4096; 3]);
}

#[test]
fn rows_of_another_width_are_refused() {
    let layout = MatrixLayout::new(QuantType::F32, 2, 8).unwrap();
    for machine in devices() {
        let bytes = &[0; 64];
        let matrix = Matrix::new(forerun_compute::tensor::Matrix { layout, bytes }, &machine).unwrap();
        assert!(matrix.times(&machine.rows(&[0.0; 14], 7).unwrap()).is_err());
    }
}
