//! What a sequence remembers on a device: keys and values, recurrent states, convolution histories.
//!
//! Keys and values lie in tensors that are allocated once and written where they stand, behind what was accepted. Recurrent
//! states are never written: a step makes new ones, and accepting it puts them in the place of the old.

use std::ops::Range;

use candle_core::{DType, Tensor};
use forerun_compute::{KvType, StackConfig};
use forerun_model::{LayerKind, ModelShape};

use crate::device::{Machine, stored_type};
use crate::error::Failure;

/// A sequence's memory.
pub(crate) struct Sequence {
    /// Tokens accepted.
    pub(crate) len: usize,
    /// One entry per layer.
    pub(crate) layers: Vec<Memory>,
}

/// What one layer remembers.
pub(crate) enum Memory {
    Attention(KeysValues),
    DeltaNet(Recurrent),
}

/// Keys after rotation and values of one layer, each `[key heads, context, dim]`.
pub(crate) struct KeysValues {
    pub(crate) keys: Tensor,
    pub(crate) values: Tensor,
}

/// State `[value heads, key_dim, value_dim]` and convolution history `[conv_kernel - 1, channels]`, oldest first. Nothing writes to
/// them, so a clone is the same memory.
#[derive(Clone, Debug)]
pub(crate) struct Recurrent {
    pub(crate) state: Tensor,
    pub(crate) conv: Tensor,
}

impl KeysValues {
    fn new(shape: &ModelShape, kv: KvType, context: usize, machine: &Machine) -> Result<Self, Failure> {
        let att = &shape.attention;
        let dims = (att.n_kv_heads, context, att.head_dim);
        let zeros = || Tensor::zeros(dims, stored_type(kv), &machine.device);
        Ok(Self { keys: zeros()?, values: zeros()? })
    }

    /// Stores `keys` and `values`, `[rows, key heads, dim]`, from row `first` on.
    pub(crate) fn write(&self, first: usize, keys: &Tensor, values: &Tensor) -> Result<(), Failure> {
        for (kept, new) in [(&self.keys, keys), (&self.values, values)] {
            let new = new.transpose(0, 1)?.to_dtype(kept.dtype())?.contiguous()?;
            kept.slice_set(&new, 1, first)?;
        }
        Ok(())
    }

    /// Keys and values of `rows` as f32, `[key heads, rows, dim]`.
    pub(crate) fn read(&self, rows: Range<usize>) -> Result<(Tensor, Tensor), Failure> {
        let of = |kept: &Tensor| kept.narrow(1, rows.start, rows.len())?.to_dtype(DType::F32);
        Ok((of(&self.keys)?, of(&self.values)?))
    }
}

impl Recurrent {
    /// Nothing remembered.
    pub(crate) fn zero(shape: &ModelShape, machine: &Machine) -> Result<Option<Self>, Failure> {
        let Some(net) = &shape.delta_net else { return Ok(None) };
        let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &machine.device);
        Ok(Some(Self {
            state: zeros(&[net.n_value_heads, net.key_dim, net.value_dim])?,
            conv: zeros(&[net.conv_kernel - 1, net.conv_channels()])?,
        }))
    }
}

impl Sequence {
    /// An empty sequence with room for `config.context` tokens.
    pub(crate) fn new(
        shape: &ModelShape,
        config: &StackConfig,
        zero: Option<&Recurrent>,
        machine: &Machine,
    ) -> Result<Self, Failure> {
        let layer = |kind: &LayerKind| match (kind, zero) {
            (LayerKind::DeltaNet, Some(zero)) => Ok(Memory::DeltaNet(zero.clone())),
            (LayerKind::DeltaNet, None) => unreachable!("a layer of this kind has its shape"),
            (LayerKind::Attention, _) => {
                KeysValues::new(shape, config.kv, config.context, machine).map(Memory::Attention)
            }
        };
        Ok(Self { len: 0, layers: shape.layers.iter().map(layer).collect::<Result<_, _>>()? })
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self, zero: Option<&Recurrent>) {
        self.len = 0;
        for layer in &mut self.layers {
            if let (Memory::DeltaNet(kept), Some(zero)) = (layer, zero) {
                *kept = zero.clone();
            }
        }
    }

    /// Adds `n_rows` tokens, whose recurrent states are `states`, one per layer.
    pub(crate) fn commit(&mut self, n_rows: usize, states: Vec<Option<Recurrent>>) {
        self.len += n_rows;
        for (layer, state) in self.layers.iter_mut().zip(states) {
            if let (Memory::DeltaNet(kept), Some(state)) = (layer, state) {
                *kept = state;
            }
        }
    }

    /// The recurrent layers' memories, in order.
    pub(crate) fn recurrent(&self) -> impl Iterator<Item = &Recurrent> {
        self.layers.iter().filter_map(|layer| match layer {
            Memory::DeltaNet(kept) => Some(kept),
            Memory::Attention(_) => None,
        })
    }

    /// The attention layers' memories, in order.
    pub(crate) fn attention(&self) -> impl Iterator<Item = &KeysValues> {
        self.layers.iter().filter_map(|layer| match layer {
            Memory::Attention(kept) => Some(kept),
            Memory::DeltaNet(_) => None,
        })
    }

    /// Values of all recurrent states.
    pub(crate) fn n_state_values(&self) -> usize {
        self.recurrent().map(|kept| kept.state.elem_count() + kept.conv.elem_count()).sum()
    }
}
