//! The gated delta-net: projections, convolution, the delta rule head by head, and the gated norm of its outputs.

#![expect(unsafe_code, reason = "threads write heads of the same rows, each its own")]

use std::ops::Range;

use forerun_model::{DeltaNetShape, LayerId, ModelShape};

use super::Scratch;
use super::mixer::MADE_ALIKE;
use crate::activation::Rows;
use crate::delta_net::{DeltaInput, convolve, step};
use crate::kernels::Loop;
use crate::ops::{l2_norm, rms_norm_in_place, sigmoid, silu, softplus};
use crate::products::{Product, Products};
use crate::sequence::{LayerMemory, Log, Recurrent, Sequence};
use crate::stepping::Current;
use crate::weights::DeltaNetWeights;
use crate::workers::SharedSlice;

/// Runs the delta-net on the step's rows and leaves its output in `scratch.out`.
pub(super) fn delta_net<P: Products>(
    shape: &ModelShape,
    w: &DeltaNetWeights,
    products: &mut P,
    scratch: &mut Scratch,
    (layer, sequences, step): (LayerId, &mut [Sequence], &Current),
) {
    let n = step.n_rows();
    let net = shape.delta_net.as_ref().expect("a layer of this kind has its shape");
    let (channels, width, heads) = (net.conv_channels(), net.value_width(), net.n_value_heads);
    let mut work = [
        Product { matrix: w.qkv.matrix(), out: &mut scratch.wide[..n * channels] },
        Product { matrix: w.gate.matrix(), out: &mut scratch.side[..n * width] },
        Product { matrix: w.beta.matrix(), out: &mut scratch.betas[..n * heads] },
        Product { matrix: w.alpha.matrix(), out: &mut scratch.third[..n * heads] },
    ];
    products.multiply(&mut scratch.normed, Rows::All, &mut work);
    for beta in &mut scratch.betas[..n * heads] {
        *beta = sigmoid(*beta);
    }
    for row in scratch.third[..n * heads].chunks_exact_mut(heads) {
        for ((alpha, a), dt) in row.iter_mut().zip(&w.a).zip(&w.dt) {
            *alpha = a * softplus(*alpha + dt);
        }
    }
    let all = Inputs {
        n_rows: n,
        projections: &scratch.wide[..n * channels],
        log_decays: &scratch.third[..n * heads],
        betas: &scratch.betas[..n * heads],
    };
    let inner = scratch.inner.start(n, width);
    for part in step.parts() {
        let (memory, committed) = sequences[part.sequence].layer(layer.idx());
        let LayerMemory::DeltaNet(copies, log) = memory else { unreachable!("{MADE_ALIKE}") };
        let rows = part.first..part.first + part.n_rows;
        let inputs = all.of(rows.clone(), channels, heads);
        if part.may_reject {
            inputs.copy_to(log);
        }
        let rows = rows.start * width..rows.end * width;
        let (old, new) = old_and_new(copies, committed);
        products.recur(Recurrence {
            net,
            eps: shape.norm_eps,
            conv: &w.conv,
            norm: &w.norm,
            inputs,
            old,
            new,
            convolved: &mut scratch.convolved,
            outputs: Some(Outputs { gates: &scratch.side[rows.clone()], inner: &mut inner[rows] }),
        });
    }
    let mut work = [Product { matrix: w.output.matrix(), out: &mut scratch.out[..n * shape.hidden] }];
    products.multiply(&mut scratch.inner, Rows::All, &mut work);
}

/// The committed copy and the other.
pub(super) fn old_and_new(copies: &mut [Recurrent; 2], committed: usize) -> (&Recurrent, &mut Recurrent) {
    let [a, b] = copies;
    if committed == 0 { (a, b) } else { (b, a) }
}

/// What a delta-net does between its projections and its output matrix, for consecutive rows of one sequence.
#[derive(Debug)]
pub struct Recurrence<'a> {
    /// The block's shape.
    pub net: &'a DeltaNetShape,
    /// What all norms add to a mean or a sum of squares.
    pub eps: f32,
    /// The convolution's weights, `[conv_kernel, channels]`.
    pub conv: &'a [f32],
    /// Weights of the norm of each head's output, `[value_dim]`.
    pub norm: &'a [f32],
    /// What enters.
    pub inputs: Inputs<'a>,
    /// The state before the first row.
    pub old: &'a Recurrent,
    /// Becomes the state after the last row.
    pub new: &'a mut Recurrent,
    /// Room for queries, keys and values, `[rows, channels]`.
    pub convolved: &'a mut [f32],
    /// Where the outputs go; `None` when only the state is wanted.
    pub outputs: Option<Outputs<'a>>,
}

/// What enters the recurrence.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Rows.
    pub n_rows: usize,
    /// Raw projections, `[rows, channels]`.
    pub projections: &'a [f32],
    /// Logarithms of the decay, at most 0, `[rows, value heads]`.
    pub log_decays: &'a [f32],
    /// Strengths of the correction, in (0, 1), `[rows, value heads]`.
    pub betas: &'a [f32],
}

impl Inputs<'_> {
    /// Those of some of the rows.
    fn of(&self, rows: Range<usize>, channels: usize, heads: usize) -> Self {
        Self {
            n_rows: rows.len(),
            projections: &self.projections[rows.start * channels..rows.end * channels],
            log_decays: &self.log_decays[rows.start * heads..rows.end * heads],
            betas: &self.betas[rows.start * heads..rows.end * heads],
        }
    }

    fn copy_to(&self, log: &mut Log) {
        for (log, values) in [
            (&mut log.projections, self.projections),
            (&mut log.log_decays, self.log_decays),
            (&mut log.betas, self.betas),
        ] {
            log.clear();
            log.extend_from_slice(values);
        }
    }
}

/// What becomes of the heads' outputs, `[rows, value heads, value_dim]`.
#[derive(Debug)]
pub struct Outputs<'a> {
    /// Logits of their gates.
    pub gates: &'a [f32],
    /// Outputs, normalised and gated.
    pub inner: &'a mut [f32],
}

/// Runs convolution, norms and the delta rule over the rows: reads `old`, leaves `new` after the last row. Channels, then
/// heads, are shared among the threads, each head over all rows while its state is in a cache.
pub(crate) fn recur<P: Products>(products: &P, job: Recurrence<'_>) {
    let Recurrence { net, eps, conv, norm, inputs, old, new, convolved, outputs } = job;
    let (n, channels, taps) = (inputs.n_rows, net.conv_channels(), net.conv_kernel);
    let raw = |row: usize| {
        // Rows before the step's first lie in the history, which holds `taps - 1` of them.
        let (rows, row) =
            if row < taps - 1 { (&old.conv[..], row) } else { (inputs.projections, row - (taps - 1)) };
        &rows[row * channels..(row + 1) * channels]
    };
    for (i, history) in new.conv.chunks_exact_mut(channels).enumerate() {
        history.copy_from_slice(raw(n + i));
    }
    let isa = products.isa();
    let head_state = net.key_dim * net.value_dim;
    let work_bytes = 4 * (new.state.len() + channels) * n;
    let (gates, inner) = match outputs {
        Some(Outputs { gates, inner }) => (gates, inner),
        None => (&[][..], &mut [][..]),
    };
    let (new, convolved, inner) =
        (SharedSlice::new(&mut new.state), SharedSlice::new(convolved), SharedSlice::new(inner));
    products.workers().share(work_bytes, |share| {
        let key_heads = 2 * net.n_key_heads;
        let per_row = key_heads + net.n_value_heads;
        for i in share.range(n * per_row, 1) {
            let (row, head) = (i / per_row, i % per_row);
            let (start, len) = match head.checked_sub(key_heads) {
                None => (head * net.key_dim, net.key_dim),
                Some(value) => (key_heads * net.key_dim + value * net.value_dim, net.value_dim),
            };
            // SAFETY: heads' channels don't overlap, and each head of a row is one thread's.
            let out = unsafe { convolved.part(row * channels + start..row * channels + start + len) };
            let window = (0..taps).map(|tap| (&conv[tap * channels + start..], &raw(row + tap)[start..]));
            let root =
                (head < key_heads).then_some(if head < net.n_key_heads { root(net.key_dim) } else { 1.0 });
            isa.run(Convolve { window, norm: root.map(|root| 1.0 / root), eps, out });
        }
        share.wait();
        // SAFETY: nobody writes convolved channels after the barrier.
        let convolved = unsafe { convolved.whole() };
        for head in share.range(net.n_value_heads, 1) {
            let states = head * head_state..(head + 1) * head_state;
            // SAFETY: heads' states don't overlap, and each head is one thread's.
            let new = unsafe { new.part(states.clone()) };
            let old = &old.state[states];
            isa.run(Head { net, eps, norm, inputs, convolved, head, old, new, gates, inner });
        }
    });
}

/// Convolution of one head's channels of one token, with its norm if it is a query's or a key's.
struct Convolve<'a, W> {
    window: W,
    norm: Option<f32>,
    eps: f32,
    out: &'a mut [f32],
}

impl<'a, W: Iterator<Item = (&'a [f32], &'a [f32])>> Loop for Convolve<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        convolve(self.window, self.out);
        if let Some(factor) = self.norm {
            l2_norm(self.out, self.eps, factor);
        }
    }
}

/// The delta rule of one value head over all rows.
struct Head<'a> {
    net: &'a DeltaNetShape,
    eps: f32,
    norm: &'a [f32],
    inputs: Inputs<'a>,
    /// Queries, keys and values, `[rows, channels]`.
    convolved: &'a [f32],
    head: usize,
    old: &'a [f32],
    new: &'a mut [f32],
    /// Empty when outputs aren't wanted.
    gates: &'a [f32],
    inner: SharedSlice<'a, f32>,
}

impl Loop for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { net, eps, norm, inputs, convolved, head, old, new, gates, inner } = self;
        let (channels, dim, n_heads) = (net.conv_channels(), net.value_dim, net.n_value_heads);
        let (key_head, key_width) = (net.key_head(head) * net.key_dim, net.n_key_heads * net.key_dim);
        let mut spare = [0.0; forerun_model::HEAD_DIM_MAX];
        for row in 0..inputs.n_rows {
            let x = &convolved[row * channels..(row + 1) * channels];
            let input = DeltaInput {
                query: &x[key_head..][..net.key_dim],
                key: &x[key_width + key_head..][..net.key_dim],
                value: &x[2 * key_width + head * dim..][..dim],
                log_decay: inputs.log_decays[row * n_heads + head],
                beta: inputs.betas[row * n_heads + head],
            };
            let at = (row * n_heads + head) * dim..(row * n_heads + head + 1) * dim;
            let before = (row == 0).then_some(old);
            if gates.is_empty() {
                step(before, new, input, &mut spare[..dim]);
                continue;
            }
            // SAFETY: heads' outputs don't overlap, and each head is one thread's.
            let out = unsafe { inner.part(at.clone()) };
            step(before, new, input, out);
            rms_norm_in_place(out, norm, eps);
            for (out, gate) in out.iter_mut().zip(&gates[at]) {
                *out *= silu(*gate);
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a head has few channels")]
fn root(n: usize) -> f32 {
    (n as f32).sqrt()
}
