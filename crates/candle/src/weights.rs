//! The resident part of a model on a device.

use candle_core::Tensor;
use forerun_compute::tensor::Matrix as HostMatrix;
use forerun_compute::weights::{self as host, AttentionWeights, DeltaNetWeights};
use forerun_compute::{Tensor as HostTensor, Weights};
use forerun_model::{AttentionShape, DeltaNetShape, ExpertLayout, ModelShape};

use crate::device::Machine;
use crate::error::Failure;
use crate::matrix::{Matrix, matrix_bytes};

/// What a stack keeps of a model.
pub(crate) struct DeviceWeights {
    pub(crate) shape: ModelShape,
    /// How an expert's matrices lie in a slot, per layer.
    pub(crate) experts: Vec<ExpertLayout>,
    /// Borrowed as it is: its rows are decoded one by one.
    pub(crate) embedding: HostTensor,
    pub(crate) output_norm: Tensor,
    pub(crate) output: Matrix,
    pub(crate) layers: Vec<Layer>,
    pub(crate) entry: Option<Entry>,
}

/// What stands before the layer of a prediction block.
pub(crate) struct Entry {
    pub(crate) matrix: Matrix,
    pub(crate) token_norm: Tensor,
    pub(crate) state_norm: Tensor,
}

pub(crate) struct Layer {
    pub(crate) attn_norm: Tensor,
    pub(crate) post_norm: Tensor,
    pub(crate) mixer: Mixer,
    pub(crate) router: Matrix,
    pub(crate) guess_router: Option<Matrix>,
    pub(crate) shared: Option<Shared>,
}

pub(crate) struct Shared {
    pub(crate) matrices: Expert,
    pub(crate) switch: Matrix,
}

/// The matrices of an expert.
pub(crate) struct Expert {
    pub(crate) gate: Matrix,
    pub(crate) up: Matrix,
    pub(crate) down: Matrix,
}

pub(crate) enum Mixer {
    Attention(Box<Attention>),
    DeltaNet(Box<DeltaNet>),
}

pub(crate) struct Attention {
    pub(crate) q: Matrix,
    pub(crate) k: Matrix,
    pub(crate) v: Matrix,
    /// Of queries, keys, values.
    pub(crate) biases: Option<[Tensor; 3]>,
    pub(crate) output: Matrix,
    /// Of queries and keys.
    pub(crate) head_norms: Option<[Tensor; 2]>,
}

pub(crate) struct DeltaNet {
    pub(crate) qkv: Matrix,
    pub(crate) gate: Matrix,
    pub(crate) beta: Matrix,
    pub(crate) alpha: Matrix,
    /// `[conv_kernel, channels]`.
    pub(crate) conv: Tensor,
    /// `-exp(A_log)`, `[value heads]`.
    pub(crate) a: Tensor,
    pub(crate) dt: Tensor,
    pub(crate) norm: Tensor,
    pub(crate) output: Matrix,
    /// The key head of every value head.
    pub(crate) key_heads: Tensor,
}

impl DeviceWeights {
    /// Copies everything but the table of embeddings to the device.
    pub(crate) fn new(weights: &Weights, machine: &Machine) -> Result<Self, Failure> {
        let shape = &weights.shape;
        let layer = |w| Layer::new(w, shape, machine);
        let entry = |w: &host::Entry| -> Result<Entry, Failure> {
            Ok(Entry {
                matrix: Matrix::new(w.matrix.matrix(), machine)?,
                token_norm: machine.vector(&w.token_norm)?,
                state_norm: machine.vector(&w.state_norm)?,
            })
        };
        Ok(Self {
            shape: shape.clone(),
            experts: weights.experts.clone(),
            embedding: weights.embedding.clone(),
            output_norm: machine.vector(&weights.output_norm)?,
            output: Matrix::new(weights.output.matrix(), machine)?,
            layers: weights.layers.iter().map(layer).collect::<Result<_, _>>()?,
            entry: weights.entry.as_ref().map(entry).transpose()?,
        })
    }

    /// Bytes that the matrices take on the device, and the decoded vectors.
    pub(crate) fn bytes(weights: &Weights) -> u64 {
        let mut sum = weights.own_bytes() - weights.regrouped_bytes();
        let mut add = |tensor: &HostTensor| sum += matrix_bytes(tensor.matrix().layout);
        add(&weights.output);
        weights.entry.iter().for_each(|entry| add(&entry.matrix));
        for layer in &weights.layers {
            add(&layer.router);
            layer.guess_router.iter().for_each(&mut add);
            if let Some(w) = &layer.shared {
                [&w.gate, &w.up, &w.down, &w.switch].into_iter().for_each(&mut add);
            }
            match &layer.mixer {
                host::Mixer::Attention(w) => {
                    add(&w.output);
                    match &w.qkv {
                        host::Qkv::Fused(all) => add(all),
                        host::Qkv::Separate { q, k, v } => [q, k, v].into_iter().for_each(&mut add),
                    }
                }
                host::Mixer::DeltaNet(w) => {
                    [&w.qkv, &w.gate, &w.beta, &w.alpha, &w.output].into_iter().for_each(&mut add);
                }
            }
        }
        sum
    }
}

impl Layer {
    fn new(w: &host::LayerWeights, shape: &ModelShape, machine: &Machine) -> Result<Self, Failure> {
        let matrix = |tensor: &HostTensor| Matrix::new(tensor.matrix(), machine);
        let mixer = match (&w.mixer, &shape.delta_net) {
            (host::Mixer::DeltaNet(w), Some(net)) => {
                Mixer::DeltaNet(Box::new(DeltaNet::new(w, net, machine)?))
            }
            (host::Mixer::DeltaNet(_), None) => unreachable!("a layer of this kind has its shape"),
            (host::Mixer::Attention(w), _) => {
                Mixer::Attention(Box::new(Attention::new(w, &shape.attention, machine)?))
            }
        };
        let shared = |w: &host::SharedExpert| -> Result<Shared, Failure> {
            let matrices = Expert { gate: matrix(&w.gate)?, up: matrix(&w.up)?, down: matrix(&w.down)? };
            Ok(Shared { matrices, switch: matrix(&w.switch)? })
        };
        Ok(Self {
            attn_norm: machine.vector(&w.attn_norm)?,
            post_norm: machine.vector(&w.post_norm)?,
            mixer,
            router: matrix(&w.router)?,
            guess_router: w.guess_router.as_ref().map(matrix).transpose()?,
            shared: w.shared.as_ref().map(shared).transpose()?,
        })
    }

    /// The router that guesses are made with.
    pub(crate) fn guess_router(&self) -> &Matrix {
        self.guess_router.as_ref().unwrap_or(&self.router)
    }
}

impl Attention {
    fn new(w: &AttentionWeights, att: &AttentionShape, machine: &Machine) -> Result<Self, Failure> {
        let matrix = |matrix: HostMatrix<'_>| Matrix::new(matrix, machine);
        let [q, k, v] = match &w.qkv {
            host::Qkv::Separate { q, k, v } => [q.matrix(), k.matrix(), v.matrix()],
            host::Qkv::Fused(all) => {
                let (all, k, v) = (all.matrix(), att.query_rows(), att.query_rows() + att.kv_width());
                [all.rows(0, k), all.rows(k, v), all.rows(v, v + att.kv_width())]
            }
        };
        let biases = |b: &host::Biases| -> Result<[Tensor; 3], Failure> {
            Ok([machine.vector(&b.q)?, machine.vector(&b.k)?, machine.vector(&b.v)?])
        };
        let norms = |n: &host::HeadNorms| -> Result<[Tensor; 2], Failure> {
            Ok([machine.vector(&n.q)?, machine.vector(&n.k)?])
        };
        Ok(Self {
            q: matrix(q)?,
            k: matrix(k)?,
            v: matrix(v)?,
            biases: w.biases.as_ref().map(biases).transpose()?,
            output: matrix(w.output.matrix())?,
            head_norms: w.head_norms.as_ref().map(norms).transpose()?,
        })
    }
}

impl DeltaNet {
    #[expect(clippy::cast_possible_truncation, reason = "a layer has far fewer than 2^32 heads")]
    fn new(w: &DeltaNetWeights, net: &DeltaNetShape, machine: &Machine) -> Result<Self, Failure> {
        let matrix = |tensor: &HostTensor| Matrix::new(tensor.matrix(), machine);
        let key_heads: Vec<_> = (0..net.n_value_heads).map(|head| net.key_head(head) as u32).collect();
        Ok(Self {
            qkv: matrix(&w.qkv)?,
            gate: matrix(&w.gate)?,
            beta: matrix(&w.beta)?,
            alpha: matrix(&w.alpha)?,
            conv: machine.rows(&w.conv, net.conv_channels())?,
            a: machine.vector(&w.a)?,
            dt: machine.vector(&w.dt)?,
            norm: machine.vector(&w.norm)?,
            output: matrix(&w.output)?,
            key_heads: machine.indices(&key_heads)?,
        })
    }
}
