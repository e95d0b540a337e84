//! Every kernel against its scalar twin, bit for bit, and the twin against plain decoded products.

use proptest::prelude::*;

use forerun_model::{MatrixLayout, QuantType};
use proptest::strategy::ValueTree;

use super::*;
use crate::activation::{Activations, Form, Rows};
use crate::dequant::{dequantise, is_supported};
use crate::workers::Workers;

/// Every kernel set of this CPU but the scalar one.
fn kernels() -> Vec<Box<dyn Kernels>> {
    let mut all: Vec<Box<dyn Kernels>> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        all.extend(Avx512::detect().map(|k| Box::new(k) as Box<dyn Kernels>));
        all.extend(Avx2::detect().map(|k| Box::new(k) as Box<dyn Kernels>));
    }
    #[cfg(target_arch = "aarch64")]
    {
        all.extend(Neon::detect().map(|k| Box::new(k) as Box<dyn Kernels>));
        all.extend(NeonDot::detect().map(|k| Box::new(k) as Box<dyn Kernels>));
        all.extend(NeonI8mm::detect().map(|k| Box::new(k) as Box<dyn Kernels>));
    }
    all
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

/// A matrix of random blocks and rows of activations for it.
#[derive(Clone, Debug)]
struct Case {
    quant: QuantType,
    n_rows: usize,
    n_cols: usize,
    weights: Vec<u8>,
    x: Vec<f32>,
}

fn cases(
    n_rows: impl Strategy<Value = usize>,
    m: impl Strategy<Value = usize>,
) -> impl Strategy<Value = Case> {
    let types: Vec<_> = QuantType::all().filter(|&q| is_supported(q)).collect();
    (prop::sample::select(types), 1_usize..5, n_rows, m).prop_flat_map(|(quant, n, n_rows, m)| {
        let n_blocks = if quant.block_len() == 1 { 61 * n } else { n };
        let n_cols = n_blocks * quant.block_len();
        let value = prop_oneof![8 => -3.0_f32..3.0, 1 => Just(0.0), 1 => Just(-0.0), 1 => Just(1e-39), 1 => Just(400.0)];
        let x = prop::collection::vec(value, m * n_cols);
        (weights(quant, n_rows * n_blocks), x).prop_map(move |(weights, x)| Case { quant, n_rows, n_cols, weights, x })
    })
}

impl Case {
    fn matrix<'a>(&self, bytes: &'a [u8]) -> Matrix<'a> {
        let layout = MatrixLayout::new(self.quant, self.n_rows, self.n_cols).unwrap();
        Matrix { layout, bytes }
    }

    fn activations(&self, x: &[f32]) -> Activations {
        let mut rows = Activations::default();
        rows.start(x.len() / self.n_cols, self.n_cols).copy_from_slice(x);
        rows.prepare(Form::of(self.quant), Isa::detect(), &Workers::single());
        rows
    }

    /// `[m, n_rows]`, from weights that begin `shift` bytes after an aligned address.
    fn products(&self, kernels: &dyn Kernels, x: &[f32], shift: usize) -> Vec<f32> {
        let mut moved = vec![0; shift];
        moved.extend_from_slice(&self.weights);
        let rows = self.activations(x);
        let mut out = vec![f32::NAN; x.len() / self.n_cols * self.n_rows];
        let operand = rows.operand(Form::of(self.quant), Rows::All);
        kernels.multiply(self.matrix(&moved[shift..]), operand, &mut Columns::all(&mut out, self.n_rows));
        out
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|v| v.to_bits()).collect()
}

/// Enough to meet every type in every shape of tile, unless `PROPTEST_CASES` says otherwise (emulators are slow).
fn config() -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(600),
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_kernel_agrees_with_its_scalar_twin(
        case in cases(1_usize..40, 1_usize..10),
        // Where blocks of 18 and 34 bytes begin, among others.
        shift in prop::sample::select(vec![0_usize, 1, 2, 3, 4, 18, 34]),
    ) {
        let want = case.products(&Scalar, &case.x, 0);
        for kernel in kernels() {
            let found = case.products(&*kernel, &case.x, shift);
            prop_assert_eq!(bits(&found), bits(&want), "{} {}", kernel.name(), case.quant);
        }
    }

    #[test]
    fn many_rows_have_the_bits_of_one(case in cases(1_usize..20, 1_usize..65)) {
        let scalar: Box<dyn Kernels> = Box::new(Scalar);
        for kernel in kernels().into_iter().chain([scalar]) {
            let all = case.products(&*kernel, &case.x, 0);
            for (i, x) in case.x.chunks_exact(case.n_cols).enumerate() {
                let one = case.products(&*kernel, x, 0);
                let found = &all[i * case.n_rows..(i + 1) * case.n_rows];
                prop_assert_eq!(bits(found), bits(&one), "{} {} row {}", kernel.name(), case.quant, i);
            }
        }
    }

    #[test]
    fn the_twin_is_the_product_of_decoded_values(case in cases(Just(1), Just(1))) {
        let Case { quant, weights, x, .. } = &case;
        let found = f64::from(case.products(&Scalar, x, 0)[0]);
        let mut rounded = x.clone();
        crate::activation::round_trip(&mut rounded, Form::of(*quant));
        let mut values = vec![0.0; x.len()];
        dequantise(*quant, weights, &mut values);
        let products = values.iter().zip(&rounded).map(|(&w, &x)| f64::from(w) * f64::from(x));
        let want: f64 = products.clone().sum();
        // f32 rounding of each block and of the sum, relative to the sizes of what is summed: minima are
        // subtracted per block, so the sizes before that subtraction count.
        let size = values.iter().map(|w| f64::from(w.abs())).fold(0.0, f64::max)
            + weights_scale(*quant, weights);
        let x_size: f64 = rounded.iter().map(|x| f64::from(x.abs())).sum();
        let bound = 1e-6 * size * x_size + 1e-30;
        prop_assert!((found - want).abs() <= bound, "{}: {} want {} bound {}", quant, found, want, bound);
    }
}

/// One row of a long matrix: more blocks than a kernel takes at once.
#[test]
fn long_rows_agree_too() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for quant in [QuantType::Q3_K, QuantType::Q4_K, QuantType::Q5_K, QuantType::Q6_K, QuantType::Q8_0] {
        let (n_rows, n_cols, m) = (33, 5120, 19);
        let blocks = weights(quant, n_rows * n_cols / quant.block_len());
        let weights = blocks.new_tree(&mut runner).unwrap().current();
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let x = (0..m * n_cols).map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0).collect();
        let case = Case { quant, n_rows, n_cols, weights, x };
        let want = case.products(&Scalar, &case.x, 1);
        for kernel in kernels() {
            assert_eq!(bits(&case.products(&*kernel, &case.x, 1)), bits(&want), "{} {quant}", kernel.name());
        }
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
