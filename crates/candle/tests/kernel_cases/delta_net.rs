//! The recurrence's kernels against the functions that the stack's is made of.

use forerun_compute::delta_net::{DeltaInput, convolve, step};
use forerun_compute::ops::{l2_norm, rms_norm_in_place, silu};
use forerun_model::{DeltaNetShape, HeadOrder};

use super::{Chance, Gpu, HALF_UNIT, Report, bits};
use crate::host::HostBuffer as Buffer;
use crate::launch::DeltaNet;

const EPS: f32 = 1e-6;
/// Sizes of heads: less than a simdgroup, whole ones, and some of the next.
const DIMS: &[usize] = &[1, 5, 16, 32, 33, 64, 100, 128, 160];

fn shape(chance: &mut Chance) -> DeltaNetShape {
    let n_key_heads = 1 + chance.below(3);
    DeltaNetShape {
        n_key_heads,
        n_value_heads: n_key_heads * (1 + chance.below(3)),
        key_dim: chance.pick(DIMS),
        value_dim: chance.pick(DIMS),
        conv_kernel: 1 + chance.below(5),
        order: chance.pick(&[HeadOrder::Tiled, HeadOrder::Grouped]),
    }
}

/// History and raw projections, one after the other, and weights.
struct Raw {
    rows: Vec<f32>,
    weights: Vec<f32>,
}

/// Convolved rows and the next history, as `parts` of the rows give them one after the other.
fn convolved(gpu: &mut dyn Gpu, net: &DeltaNetShape, raw: &Raw, parts: &[usize]) -> (Vec<f32>, Vec<f32>) {
    let channels = net.conv_channels();
    let (history, mut rows) = raw.rows.split_at(net.conv_len());
    let (mut history, mut out) = (history.to_vec(), Vec::new());
    for &n_rows in parts {
        let (mut next, mut convolved) = (vec![f32::NAN; net.conv_len()], vec![f32::NAN; n_rows * channels]);
        let mut buffers = [
            Buffer::Floats(&history),
            Buffer::Floats(&rows[..n_rows * channels]),
            Buffer::Floats(&raw.weights),
            Buffer::Out(&mut next),
            Buffer::Out(&mut convolved),
        ];
        gpu.run(&DeltaNet::new(net, n_rows, EPS).unwrap().convolve(), &mut buffers);
        out.extend(convolved);
        (history, rows) = (next, &rows[n_rows * channels..]);
    }
    (out, history)
}

/// Convolution and norms; cutting the rows into two calls changes no bit.
pub(crate) fn delta_convolve(gpu: &mut dyn Gpu, seed: u64, report: &mut Report) {
    report.begin();
    let mut chance = Chance(seed);
    let (net, n_rows) = (shape(&mut chance), 1 + chance.below(7));
    let (channels, taps) = (net.conv_channels(), net.conv_kernel);
    let rows = chance.floats((taps - 1 + n_rows) * channels);
    let raw = Raw { rows, weights: chance.floats(taps * channels) };
    let (found, history) = convolved(gpu, &net, &raw, &[n_rows]);
    assert_eq!(bits(&history), bits(&raw.rows[n_rows * channels..]), "seed {seed}: the next history");
    let first = chance.below(n_rows);
    if first > 0 {
        let in_two = convolved(gpu, &net, &raw, &[first, n_rows - first]);
        assert_eq!((bits(&in_two.0), bits(&in_two.1)), (bits(&found), bits(&history)), "seed {seed}");
    }
    let key_heads = 2 * net.n_key_heads;
    for head in 0..key_heads + net.n_value_heads {
        let (start, dim) = match head.checked_sub(key_heads) {
            None => (head * net.key_dim, net.key_dim),
            Some(value) => (key_heads * net.key_dim + value * net.value_dim, net.value_dim),
        };
        for row in 0..n_rows {
            let at = |tap: usize| (row + tap) * channels + start;
            let taps = || (0..taps).map(|tap| (&raw.weights[tap * channels + start..], &raw.rows[at(tap)..]));
            let mut want = vec![0.0; dim];
            convolve(taps(), &mut want);
            let size = |c: usize| -> f64 { taps().map(|(w, x)| f64::from((w[c] * x[c]).abs())).sum() };
            // `silu` is at most 1.1 steep, and its functions add some units.
            let depth = 2.0 * (2 * net.conv_kernel + 8) as f64 * HALF_UNIT;
            let mut bounds: Vec<f64> =
                (0..dim).map(|c| 1.1 * depth * (size(c) + f64::from(want[c].abs()))).collect();
            if head < key_heads {
                let factor = if head < net.n_key_heads { 1.0 / (net.key_dim as f32).sqrt() } else { 1.0 };
                let squares: f64 = want.iter().map(|x| f64::from(x * x)).sum();
                l2_norm(&mut want, EPS, factor);
                let scale = f64::from(factor) / (squares + f64::from(EPS)).sqrt();
                let worst = bounds.iter().fold(0.0, |worst: f64, bound| worst.max(*bound));
                // What a value is off, and what all of them make the norm off.
                let off = scale * worst * (1.0 + (dim as f64).sqrt());
                let rounding = (2 * dim + 16) as f64 * HALF_UNIT;
                bounds = want.iter().map(|x| off + rounding * f64::from(x.abs())).collect();
            }
            let found = &found[row * channels + start..][..dim];
            report.compare(found, &want, |c| bounds[c], format!("{seed} head {head} row {row}"));
        }
    }
}

/// What the delta rule reads.
struct Rows {
    convolved: Vec<f32>,
    log_decays: Vec<f32>,
    betas: Vec<f32>,
}

impl Rows {
    fn new(net: &DeltaNetShape, n_rows: usize, chance: &mut Chance) -> Self {
        let (n_keys, n_coefficients) = (2 * net.n_key_heads, n_rows * net.n_value_heads);
        let mut convolved = chance.floats(n_rows * net.conv_channels());
        for row in convolved.chunks_exact_mut(net.conv_channels()) {
            for key in row[..n_keys * net.key_dim].chunks_exact_mut(net.key_dim) {
                l2_norm(key, EPS, 1.0);
            }
        }
        let mut decays = || if chance.below(8) == 0 { -100.0 } else { -chance.float().abs() };
        Self {
            convolved,
            log_decays: (0..n_coefficients).map(|_| decays()).collect(),
            betas: (0..n_coefficients).map(|_| chance.float().abs()).collect(),
        }
    }

    fn input(&self, net: &DeltaNetShape, row: usize, head: usize) -> DeltaInput<'_> {
        let x = &self.convolved[row * net.conv_channels()..][..net.conv_channels()];
        let (at, keys) = (net.key_head(head) * net.key_dim, net.n_key_heads * net.key_dim);
        DeltaInput {
            query: &x[at..][..net.key_dim],
            key: &x[keys + at..][..net.key_dim],
            value: &x[2 * keys + head * net.value_dim..][..net.value_dim],
            log_decay: self.log_decays[row * net.n_value_heads + head],
            beta: self.betas[row * net.n_value_heads + head],
        }
    }
}

/// States and outputs after rows, as `parts` of the rows give them one after the other.
fn stepped(
    gpu: &mut dyn Gpu,
    net: &DeltaNetShape,
    old: &[f32],
    rows: &Rows,
    parts: &[usize],
) -> (Vec<f32>, Vec<f32>) {
    let (mut state, mut out, mut first) = (old.to_vec(), Vec::new(), 0);
    for &n_rows in parts {
        let (mut new, mut outputs) =
            (vec![f32::NAN; state.len()], vec![f32::NAN; n_rows * net.value_width()]);
        let (channels, heads) = (net.conv_channels(), net.n_value_heads);
        let of = |width: usize| first * width..(first + n_rows) * width;
        let mut buffers = [
            Buffer::Floats(&state),
            Buffer::Floats(&rows.convolved[of(channels)]),
            Buffer::Floats(&rows.log_decays[of(heads)]),
            Buffer::Floats(&rows.betas[of(heads)]),
            Buffer::Out(&mut new),
            Buffer::Out(&mut outputs),
        ];
        gpu.run(&DeltaNet::new(net, n_rows, EPS).unwrap().step(), &mut buffers);
        out.extend(outputs);
        (state, first) = (new, first + n_rows);
    }
    (state, out)
}

/// The delta rule; cutting the rows into two calls changes no bit.
pub(crate) fn delta_step(gpu: &mut dyn Gpu, seed: u64, report: &mut Report) {
    report.begin();
    let mut chance = Chance(seed);
    let (net, n_rows) = (shape(&mut chance), 1 + chance.below(5));
    let (old, rows) = (chance.floats(net.state_len()), Rows::new(&net, n_rows, &mut chance));
    let (state, out) = stepped(gpu, &net, &old, &rows, &[n_rows]);
    let first = chance.below(n_rows);
    if first > 0 {
        let in_two = stepped(gpu, &net, &old, &rows, &[first, n_rows - first]);
        assert_eq!((bits(&in_two.0), bits(&in_two.1)), (bits(&state), bits(&out)), "seed {seed}");
    }
    let (dim, head_state) = (net.value_dim, net.key_dim * net.value_dim);
    for head in 0..net.n_value_heads {
        let mut want = old[head * head_state..][..head_state].to_vec();
        // Keys are at most 1 long, and decays and corrections at most 1, so that a row passes on what it was given off, and adds
        // what it rounds: both sums have as many terms as keys.
        let mut largest = 0.0_f64;
        for row in 0..n_rows {
            let input = rows.input(&net, row, head);
            largest = largest.max(longest(&want, input.value));
            let mut outputs = vec![0.0; dim];
            step(None, &mut want, input, &mut outputs);
            largest = largest.max(longest(&want, input.value));
            let bound = bound(&net, row + 1, largest);
            let found = &out[(row * net.n_value_heads + head) * dim..][..dim];
            report.compare(found, &outputs, |_| bound, format!("{seed} head {head} row {row}"));
        }
        let bound = bound(&net, n_rows, largest);
        report.compare(
            &state[head * head_state..][..head_state],
            &want,
            |_| bound,
            format!("{seed} state of {head}"),
        );
    }
}

fn bound(net: &DeltaNetShape, rows: usize, largest: f64) -> f64 {
    rows as f64 * 4.0 * (2 * net.key_dim + 8) as f64 * HALF_UNIT * largest
}

/// The longest column of a state, and its value.
fn longest(state: &[f32], value: &[f32]) -> f64 {
    let column = |j: usize| -> f64 {
        let squares = state.iter().skip(j).step_by(value.len()).map(|&s| f64::from(s).powi(2));
        squares.sum::<f64>().sqrt() + f64::from(value[j].abs())
    };
    (0..value.len()).map(column).fold(0.0, f64::max)
}

/// The gated norm.
pub(crate) fn delta_gate(gpu: &mut dyn Gpu, seed: u64, report: &mut Report) {
    report.begin();
    let mut chance = Chance(seed);
    let (net, n_rows) = (shape(&mut chance), 1 + chance.below(5));
    let (dim, n) = (net.value_dim, n_rows * net.value_width());
    let gates: Vec<f32> = chance.floats(n).into_iter().map(|gate| 20.0 * gate).collect();
    let (norm, before) = (chance.floats(dim), chance.floats(n));
    let (mut found, mut want) = (before.clone(), before);
    let mut buffers = [Buffer::Floats(&gates), Buffer::Floats(&norm), Buffer::Out(&mut found)];
    gpu.run(&DeltaNet::new(&net, n_rows, EPS).unwrap().gate(), &mut buffers);
    for (out, gates) in want.chunks_exact_mut(dim).zip(gates.chunks_exact(dim)) {
        rms_norm_in_place(out, &norm, EPS);
        out.iter_mut().zip(gates).for_each(|(out, gate)| *out *= silu(*gate));
    }
    // The norm's sum is of squares, so that it is off by its own share; then some factors.
    let depth = (2 * dim + 32) as f64 * HALF_UNIT;
    report.compare(&found, &want, |i| depth * f64::from(want[i].abs()), seed);
}
