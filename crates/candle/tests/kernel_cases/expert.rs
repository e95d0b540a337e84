//! Experts of every type that has kernels, anywhere in a slot, against decoded weights and plain products.

use forerun_compute::Rounding;
use forerun_compute::activation::{Activations, Rows};
use forerun_compute::dequant::dequantise;
use forerun_compute::ops::silu;
use forerun_compute::products::{Exact, ExpertBuffers, ExpertMatrices, Products};
use forerun_compute::tensor::Matrix;
use forerun_model::{ExpertLayout, MatrixLayout, PartOffsets, QuantType};
use half::f16;

use super::{Chance, Gpu, HALF_UNIT, Report, bits};
use crate::host::HostBuffer as Buffer;
use crate::launch::{Expert, ExpertSizes};

/// Types with kernels.
pub(crate) const TYPES: &[QuantType] =
    &[QuantType::F32, QuantType::Q8_0, QuantType::Q3_K, QuantType::Q4_K, QuantType::Q5_K, QuantType::Q6_K];

/// An expert in a slot, and the rows that want it.
struct Case {
    layout: ExpertLayout,
    parts: PartOffsets,
    slot: Vec<u8>,
    sizes: ExpertSizes,
    x: Vec<f32>,
    /// Row and rank of each use.
    uses: Vec<[u32; 2]>,
}

/// A multiple of what both types' rows are whole blocks of.
fn width(chance: &mut Chance, quant: QuantType) -> usize {
    let whole = quant.block_len().max(16);
    whole * (1 + chance.below(if whole == 256 { 3 } else { 9 }))
}

/// Random codes, with scales that keep sums small.
pub(crate) fn blocks(chance: &mut Chance, layout: MatrixLayout) -> Vec<u8> {
    let n = layout.n_rows * layout.n_cols;
    if layout.quant == QuantType::F32 {
        return chance.floats(n).into_iter().flat_map(f32::to_le_bytes).collect();
    }
    let scales: &[usize] = match layout.quant {
        QuantType::Q8_0 => &[0],
        QuantType::Q4_K | QuantType::Q5_K => &[0, 2],
        QuantType::Q3_K => &[108],
        QuantType::Q6_K => &[208],
        other => panic!("{other:?} has no kernel"),
    };
    let mut bytes: Vec<u8> = (0..layout.bytes()).map(|_| chance.bits().to_le_bytes()[0]).collect();
    for block in bytes.chunks_exact_mut(layout.quant.block_bytes()) {
        for &at in scales {
            block[at..at + 2].copy_from_slice(&f16::from_f32(chance.float() / 512.0).to_le_bytes());
        }
    }
    bytes
}

impl Case {
    fn new(chance: &mut Chance, wide: QuantType, down: QuantType) -> Self {
        let (hidden, ff) = (width(chance, wide), width(chance, down));
        let gate = MatrixLayout::new(wide, ff, hidden).unwrap();
        let layout = ExpertLayout { gate, up: gate, down: MatrixLayout::new(down, hidden, ff).unwrap() };
        let mut slot = Vec::new();
        let mut place = |matrix: MatrixLayout, chance: &mut Chance| {
            let step = if matrix.quant == QuantType::F32 { 4 } else { 2 };
            let at = (slot.len() + chance.below(40)).next_multiple_of(step);
            slot.resize(at, 0xFF);
            slot.extend(blocks(chance, matrix));
            at
        };
        let parts = PartOffsets {
            down: place(layout.down, chance),
            gate: place(layout.gate, chance),
            up: place(layout.up, chance),
        };
        let (n_rows, top_k) = (1 + chance.below(20), 1 + chance.below(4));
        let mut uses: Vec<[u32; 2]> = Vec::new();
        for row in 0..u32::try_from(n_rows).unwrap() {
            if chance.below(2) == 0 || uses.is_empty() {
                uses.push([row, u32::try_from(chance.below(top_k)).unwrap()]);
            }
        }
        let sizes = ExpertSizes { n_rows, top_k, n_uses: uses.len() };
        Self { layout, parts, slot, sizes, x: chance.floats(n_rows * hidden), uses }
    }

    fn matrix(&self, at: usize, layout: MatrixLayout) -> Matrix<'_> {
        Matrix { layout, bytes: &self.slot[at..at + layout.bytes()] }
    }

    fn matrices(&self) -> ExpertMatrices<'_> {
        let ExpertLayout { gate, up, down } = self.layout;
        ExpertMatrices {
            gate: self.matrix(self.parts.gate, gate),
            up: self.matrix(self.parts.up, up),
            down: self.matrix(self.parts.down, down),
        }
    }

    /// Values of a row of activations, and of an inner one.
    fn widths(&self) -> (usize, usize) {
        (self.layout.gate.n_cols, self.layout.gate.n_rows)
    }

    fn call(&self, n_uses: usize) -> Expert {
        let sizes = ExpertSizes { n_uses, ..self.sizes };
        Expert::new(&self.layout, self.parts, sizes).unwrap()
    }

    /// Inner values of these uses.
    fn inner(&self, gpu: &mut dyn Gpu, uses: &[[u32; 2]]) -> Vec<f32> {
        let mut inner = vec![f32::NAN; uses.len() * self.widths().1];
        let mut buffers = [
            Buffer::Bytes(&self.slot),
            Buffer::Floats(&self.x),
            Buffer::Words(uses.as_flattened()),
            Buffer::Out(&mut inner),
        ];
        gpu.run(&self.call(uses.len()).inner(), &mut buffers);
        inner
    }

    /// Results by row and rank; places of other experts aren't numbers.
    fn down(&self, gpu: &mut dyn Gpu, inner: &[f32], uses: &[[u32; 2]]) -> Vec<f32> {
        let n_places = self.sizes.n_rows * self.sizes.top_k;
        let mut ranked = vec![f32::NAN; n_places * self.widths().0];
        let mut buffers = [
            Buffer::Bytes(&self.slot),
            Buffer::Floats(inner),
            Buffer::Words(uses.as_flattened()),
            Buffer::Out(&mut ranked),
        ];
        gpu.run(&self.call(uses.len()).down(), &mut buffers);
        ranked
    }

    /// The twin's inner values and results, use by use.
    fn twin(&self) -> (Vec<f32>, Vec<f32>) {
        let (hidden, ff) = self.widths();
        let n = self.uses.len();
        let rows: Vec<u32> = self.uses.iter().map(|[row, _]| *row).collect();
        let (mut x, mut inner) = (Activations::default(), Activations::default());
        x.start(self.sizes.n_rows, hidden).copy_from_slice(&self.x);
        let (mut gates, mut ups, mut out) = (vec![0.0; n * ff], vec![0.0; n * ff], vec![0.0; n * hidden]);
        let buffers = ExpertBuffers { gates: &mut gates, ups: &mut ups, inner: &mut inner };
        Exact::new(Rounding::None).expert(self.matrices(), &mut x, Rows::Some(&rows), buffers, &mut out);
        (gates, out)
    }

    fn place(&self, i: usize) -> usize {
        let [row, rank] = self.uses[i].map(|i| i as usize);
        row * self.sizes.top_k + rank
    }
}

/// The product of a row of a matrix with a row of activations, and how far apart two sums of it may be: each half of the lanes' sums and
/// folds, at most as many terms as there are values, and all that are multiplied are rounded once more.
fn product(matrix: Matrix<'_>, r: usize, x: &[f32]) -> (f64, f64) {
    let mut weights = vec![0.0; x.len()];
    dequantise(matrix.layout.quant, matrix.row(r), &mut weights);
    let terms = weights.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
    let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
    // A lane of a kernel adds 16 values of every 512, one of the twin 2 roundings of every 32; then each folds 32 lanes.
    let n = x.len();
    let depth = 16 * n.div_ceil(512) + 5 + 2 * n.div_ceil(32) + 5;
    (sum, depth as f64 * HALF_UNIT * size)
}

/// Gate and up; a use alone has the same bits as among others.
pub(crate) fn expert_inner(gpu: &mut dyn Gpu, quant: QuantType, seed: u64, report: &mut Report) {
    report.begin();
    let mut chance = Chance(seed);
    let down = chance.pick(TYPES);
    let case = Case::new(&mut chance, quant, down);
    let (hidden, ff) = case.widths();
    let found = case.inner(gpu, &case.uses);
    let (want, _) = case.twin();
    let alone = chance.below(case.uses.len());
    let of_alone = case.inner(gpu, &case.uses[alone..=alone]);
    assert_eq!(bits(&of_alone), bits(&found[alone * ff..][..ff]), "seed {seed}");
    let ExpertMatrices { gate, up, .. } = case.matrices();
    let bound = |i: usize| {
        let x = &case.x[case.uses[i / ff][0] as usize * hidden..][..hidden];
        let ((g, g_off), (u, u_off)) = (product(gate, i % ff, x), product(up, i % ff, x));
        let gate = f64::from(silu(g as f32)).abs();
        // `silu` is at most 1.1 steep; its own functions and the last product round some units.
        1.1 * g_off * (u.abs() + u_off) + gate * u_off + 16.0 * HALF_UNIT * gate * u.abs()
    };
    report.compare(&found, &want, bound, seed);
}

/// Down, from the twin's inner values; a use alone has the same bits as among others, and no other place is written.
pub(crate) fn expert_down(gpu: &mut dyn Gpu, quant: QuantType, seed: u64, report: &mut Report) {
    report.begin();
    let mut chance = Chance(seed);
    let wide = chance.pick(TYPES);
    let case = Case::new(&mut chance, wide, quant);
    let (hidden, ff) = case.widths();
    let (inner, want) = case.twin();
    let found = case.down(gpu, &inner, &case.uses);
    let alone = chance.below(case.uses.len());
    let of_alone = case.down(gpu, &inner[alone * ff..][..ff], &case.uses[alone..=alone]);
    let at = case.place(alone) * hidden;
    assert_eq!(bits(&of_alone[at..][..hidden]), bits(&found[at..][..hidden]), "seed {seed}");
    let written = found.iter().filter(|value| !value.is_nan()).count();
    assert_eq!(written, case.uses.len() * hidden, "seed {seed}: only the uses' places are written");
    for (i, want) in want.chunks_exact(hidden).enumerate() {
        let found = &found[case.place(i) * hidden..][..hidden];
        let row = &inner[i * ff..(i + 1) * ff];
        let bound = |r: usize| product(case.matrices().down, r, row).1;
        report.compare(found, want, bound, format!("{seed} use {i}"));
    }
}
