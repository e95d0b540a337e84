//! Every kernel against its scalar twin, bit for bit, and the twin against plain decoded products.

use proptest::prelude::*;

use super::*;
use crate::activation::{Activations, Form};
use crate::dequant::is_supported;

fn kernels() -> Vec<Box<dyn Dot>> {
    #[cfg(target_arch = "x86_64")]
    return Avx2::detect().map(|k| Box::new(k) as Box<dyn Dot>).into_iter().collect();
    #[cfg(not(target_arch = "x86_64"))]
    Vec::new()
}

/// Raw bytes of `n_blocks` blocks with finite scales: random bits, extreme scales among them.
fn weights(quant: QuantType, n_blocks: usize) -> impl Strategy<Value = Vec<u8>> {
    let halves: &[usize] = match quant {
        QuantType::F16 | QuantType::Q4_0 | QuantType::Q5_0 | QuantType::Q8_0 | QuantType::IQ4_NL => &[0],
        QuantType::IQ4_XS => &[0],
        QuantType::Q4_1 | QuantType::Q5_1 | QuantType::Q4_K | QuantType::Q5_K => &[0, 2],
        QuantType::Q2_K => &[80, 82],
        QuantType::Q3_K => &[108],
        QuantType::Q6_K => &[208],
        _ => &[],
    };
    let scale = prop_oneof![
        5 => (-1.0_f32..1.0).prop_map(half::f16::from_f32),
        1 => prop::sample::select(vec![half::f16::ZERO, half::f16::NEG_ZERO, half::f16::MIN_POSITIVE_SUBNORMAL]),
        1 => prop::sample::select(vec![half::f16::MAX, half::f16::MIN]),
    ];
    let bytes = prop::collection::vec(any::<u8>(), n_blocks * quant.block_bytes());
    let scales = prop::collection::vec(scale, n_blocks * halves.len().max(1));
    (bytes, scales).prop_map(move |(mut bytes, scales)| {
        let mut scales = scales.into_iter();
        for block in bytes.chunks_exact_mut(quant.block_bytes()) {
            for &at in halves {
                block[at..at + 2].copy_from_slice(&scales.next().unwrap().to_le_bytes());
            }
            match quant {
                QuantType::MXFP4 => block[0] = 100 + block[0] % 40,
                // Keeps exponents away from infinities.
                QuantType::F32 => block[3] = 0x3F,
                QuantType::BF16 => block[1] = 0xBF,
                _ => {}
            }
        }
        bytes
    })
}

fn inputs() -> impl Strategy<Value = (QuantType, Vec<u8>, Vec<f32>)> {
    let types: Vec<_> = QuantType::all().filter(|&q| is_supported(q)).collect();
    (prop::sample::select(types), 1_usize..5).prop_flat_map(|(quant, n)| {
        let n_blocks = if quant.block_len() == 1 { 61 * n } else { n };
        let value = prop_oneof![8 => -3.0_f32..3.0, 1 => Just(0.0), 1 => Just(-0.0), 1 => Just(1e-39), 1 => Just(400.0)];
        let x = prop::collection::vec(value, n_blocks * quant.block_len());
        (Just(quant), weights(quant, n_blocks), x)
    })
}

fn activations(x: &[f32], form: Form) -> Activations {
    let mut rows = Activations::default();
    rows.start(1, x.len()).copy_from_slice(x);
    rows.prepare(form);
    rows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_kernel_agrees_with_its_scalar_twin((quant, weights, x) in inputs(), shift in 0_usize..4) {
        let rows = activations(&x, Form::of(quant));
        let row = rows.row(0, Form::of(quant));
        let want = Scalar.dot(quant, &weights, row);
        let mut moved = vec![0; shift];
        moved.extend_from_slice(&weights);
        for kernel in kernels() {
            let found = kernel.dot(quant, &moved[shift..], row);
            prop_assert_eq!(found.to_bits(), want.to_bits(), "{} {}: {} {}", kernel.name(), quant, found, want);
        }
    }

    #[test]
    fn the_twin_is_the_product_of_decoded_values((quant, weights, x) in inputs()) {
        let form = Form::of(quant);
        let rows = activations(&x, form);
        let found = f64::from(Scalar.dot(quant, &weights, rows.row(0, form)));
        let mut rounded = x.clone();
        crate::activation::round_trip(&mut rounded, form);
        let mut values = vec![0.0; x.len()];
        dequantise(quant, &weights, &mut values);
        let products = values.iter().zip(&rounded).map(|(&w, &x)| f64::from(w) * f64::from(x));
        let want: f64 = products.clone().sum();
        // f32 rounding of each block and of the sum, relative to the sizes of what is summed: minima are
        // subtracted per block, so the sizes before that subtraction count.
        let size = values.iter().map(|w| f64::from(w.abs())).fold(0.0, f64::max)
            + weights_scale(quant, &weights);
        let x_size: f64 = rounded.iter().map(|x| f64::from(x.abs())).sum();
        let bound = 1e-6 * size * x_size + 1e-30;
        prop_assert!((found - want).abs() <= bound, "{}: {} want {} bound {}", quant, found, want, bound);
    }
}

/// The largest value that a scale and a minimum of this row can make, before they cancel.
fn weights_scale(quant: QuantType, weights: &[u8]) -> f64 {
    let at = match quant {
        QuantType::Q4_K | QuantType::Q5_K => [0, 2],
        QuantType::Q2_K => [80, 82],
        _ => return 0.0,
    };
    let half = |b: &[u8], at: usize| f64::from(crate::dequant::half_at(b, at).abs());
    let blocks = weights.chunks_exact(quant.block_bytes());
    blocks.map(|b| 63.0 * 31.0 * half(b, at[0]) + 63.0 * half(b, at[1])).fold(0.0, f64::max)
}

/// With `FORERUN_REQUIRE_KERNELS` a runner must have the kernels, or it would test nothing.
#[test]
fn required_kernels_are_present() {
    let Ok(names) = std::env::var("FORERUN_REQUIRE_KERNELS") else { return };
    for name in names.split(',') {
        assert!(kernels().iter().any(|k| k.name() == name), "this CPU lacks the kernel `{name}`");
    }
}
