//! How large the inputs of every matrix are: sums of squares per column, added up while steps run.
//!
//! A sum is f32, and takes a column's squares in the order of the tokens, one after the other; nothing else has a say, so
//! that steps, threads, slots and a pause in between change no bit (a pause: up to 2^24 tokens a matrix, which a file counts exactly). Inputs that several matrices share are kept once.
//!
//! Of inputs that all tokens share, the products of every two columns of a block of 256 are added up as well
//! ([`moments`]), in the same way; for each routed expert they would be too many.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forerun_compute::activation::{Activations, Rows};
use forerun_compute::kernels::Isa;
use forerun_compute::{InputTap, Inputs, TapPoint, moments};
use forerun_model::{LayerId, LayerKind, ModelShape};

/// Whose inputs are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collect {
    /// Those of all matrices of layers.
    Layers,
    /// Those of the head as well.
    LayersAndHead,
}

/// What was seen at one place.
#[derive(Clone, Debug, PartialEq)]
pub struct Sums {
    /// Columns of each matrix.
    n_cols: usize,
    /// Sums of squares, `[n_matrices, n_cols]`.
    sums: Vec<f32>,
    /// Tokens that each matrix saw.
    counts: Vec<u32>,
    /// Second moments of the only matrix; none where there are several.
    moments: Vec<f32>,
}

impl Sums {
    fn new(size: Size) -> Self {
        let Size { n_matrices, n_cols } = size;
        Self {
            n_cols,
            sums: vec![0.0; n_matrices * n_cols],
            counts: vec![0; n_matrices],
            moments: vec![0.0; size.n_moments()],
        }
    }

    /// Sums of squares, `[n_matrices, n_cols]`.
    pub fn sums(&self) -> &[f32] {
        &self.sums
    }

    /// Tokens that each matrix saw; a routed expert, those that were routed to it.
    pub fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// Sums of the [second moments](moments) of inputs that all tokens share; empty elsewhere.
    pub fn moments(&self) -> &[f32] {
        &self.moments
    }

    /// Goes on from what an earlier run had; `false` when that is of other sizes.
    pub fn restore(&mut self, sums: &[f32], counts: &[u32], moments: &[f32]) -> bool {
        let fits = sums.len() == self.sums.len()
            && counts.len() == self.counts.len()
            && moments.len() == self.moments.len();
        if fits {
            self.sums.copy_from_slice(sums);
            self.counts.copy_from_slice(counts);
            self.moments.copy_from_slice(moments);
        }
        fits
    }

    fn add(&mut self, matrix: usize, x: &Activations, rows: Rows<'_>, isa: Isa) {
        let n = rows.len(x.n_rows());
        if !self.moments.is_empty() {
            moments::add(isa, x, rows, &mut self.moments);
        }
        let sums = &mut self.sums[matrix * self.n_cols..(matrix + 1) * self.n_cols];
        for i in 0..n {
            for (sum, value) in sums.iter_mut().zip(x.values(rows.get(i))) {
                *sum += value * value;
            }
        }
        self.counts[matrix] = self.counts[matrix].saturating_add(u32::try_from(n).unwrap_or(u32::MAX));
    }
}

/// Matrices of one place, and their columns.
#[derive(Clone, Copy, Debug)]
struct Size {
    n_matrices: usize,
    n_cols: usize,
}

impl Size {
    fn n_moments(self) -> usize {
        if self.n_matrices == 1 { moments::len(self.n_cols) } else { 0 }
    }

    /// Bytes of [`Sums`].
    fn bytes(self) -> usize {
        4 * (self.n_matrices * (self.n_cols + 1) + self.n_moments())
    }
}

/// The places of a layer, in the order of [`Inputs`].
const OF_LAYER: [Inputs; 6] = [
    Inputs::Mixer,
    Inputs::MixerOutput,
    Inputs::Router,
    Inputs::SharedDown,
    Inputs::Experts,
    Inputs::ExpertsDown,
];

/// Every place of `shape`, the head last.
fn places(shape: &ModelShape, collect: Collect) -> impl Iterator<Item = (LayerId, Inputs, Size)> + '_ {
    let layers = shape.layer_ids().flat_map(|layer| OF_LAYER.map(|inputs| (layer, inputs)));
    let last = shape.layer_ids().last().filter(|_| collect == Collect::LayersAndHead);
    let all = layers.chain(last.map(|layer| (layer, Inputs::Head)));
    all.filter_map(|(layer, inputs)| Some((layer, inputs, size(shape, layer, inputs)?)))
}

/// `None` where the layer has no such product.
fn size(shape: &ModelShape, layer: LayerId, inputs: Inputs) -> Option<Size> {
    let mixed = match (shape.layers[layer.idx()], &shape.delta_net) {
        (LayerKind::DeltaNet, Some(net)) => net.value_width(),
        _ => shape.attention.q_width(),
    };
    let (n_matrices, n_cols) = match inputs {
        Inputs::Mixer | Inputs::Router | Inputs::Head => (1, shape.hidden),
        Inputs::MixerOutput => (1, mixed),
        Inputs::SharedDown => (1, shape.moe.shared_ff?),
        Inputs::Experts => (shape.moe.n_experts, shape.hidden),
        Inputs::ExpertsDown => (shape.moe.n_experts, shape.moe.expert_ff),
    };
    Some(Size { n_matrices, n_cols })
}

/// The sums of a whole model.
#[derive(Debug)]
pub struct InputSums {
    /// By layer, then by place; the head's last.
    places: Vec<(LayerId, Inputs, Sums)>,
    /// First of each layer in `places`.
    first: Vec<usize>,
    /// Runs the loops.
    isa: Isa,
}

impl InputSums {
    /// Sums of nothing yet.
    pub fn new(shape: &ModelShape, collect: Collect) -> Self {
        let places: Vec<_> =
            places(shape, collect).map(|(layer, inputs, size)| (layer, inputs, Sums::new(size))).collect();
        let first = shape.layer_ids().map(|layer| places.partition_point(|place| place.0 < layer)).collect();
        Self { places, first, isa: Isa::detect() }
    }

    /// Bytes that [`Self::new`] allocates.
    pub fn bytes(shape: &ModelShape, collect: Collect) -> u64 {
        let entry = size_of::<(LayerId, Inputs, Sums)>();
        places(shape, collect).map(|(_, _, size)| (size.bytes() + entry) as u64).sum()
    }

    /// What was seen, by layer and place.
    pub fn iter(&self) -> impl Iterator<Item = (LayerId, Inputs, &Sums)> {
        self.places.iter().map(|(layer, inputs, sums)| (*layer, *inputs, sums))
    }

    /// The same, to go on from.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (LayerId, Inputs, &mut Sums)> {
        self.places.iter_mut().map(|(layer, inputs, sums)| (*layer, *inputs, sums))
    }

    fn add(&mut self, point: TapPoint, x: &Activations, rows: Rows<'_>) {
        let of_layer = &mut self.places[self.first[point.layer.idx()]..];
        let place = of_layer.iter_mut().find(|place| place.1 == point.inputs);
        let (_, _, sums) = place.expect("the stack and the sums are of one shape");
        sums.add(point.matrix, x, rows, self.isa);
    }
}

/// Sums that a stack adds to and a driver reads between steps.
#[derive(Clone, Debug)]
pub(crate) struct SharedSums {
    collect: Collect,
    sums: Arc<Mutex<InputSums>>,
}

impl SharedSums {
    pub(crate) fn new(shape: &ModelShape, collect: Collect) -> Self {
        Self { collect, sums: Arc::new(Mutex::new(InputSums::new(shape, collect))) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, InputSums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InputTap for SharedSums {
    fn asks_head(&self) -> bool {
        self.collect == Collect::LayersAndHead
    }

    fn inputs(&mut self, point: TapPoint, x: &Activations, rows: Rows<'_>) {
        self.lock().add(point, x, rows);
    }
}
