//! The kernels in the stack over candle's devices: the recurrence on tensors, and experts where they lie in their slots.
//!
//! Calls go through candle's own encoder, which orders them with its kernels by the buffers that they read and write.

use std::sync::Arc;

use candle_core::op::BackpropOp;
use candle_core::{DType, Device, MetalDevice, MetalStorage, Storage, StorageRef, Tensor};
use forerun_arena::ReadLease;
use forerun_compute::ExpertJob;
use forerun_model::{ExpertLayout, ModelShape, Use};

use super::launch::{DeltaNet as DeltaCalls, Expert as ExpertCalls, ExpertSizes, Launch};
use super::{Bound, InFlight, MetalError, Pipelines, SlotBuffer};
use crate::delta_net::Inputs;
use crate::device::Machine;
use crate::error::Failure;
use crate::recurrence::{Recurrence, best};
use crate::state::Recurrent;
use crate::weights::DeltaNet;

/// The rule of a device, and what runs experts in slots where that is Metal.
pub(crate) fn own_kernels(machine: &Machine) -> Result<(Box<dyn Recurrence>, Option<InSlots>), Failure> {
    let Device::Metal(device) = &machine.device else { return Ok((best(machine)?, None)) };
    let pipelines = Arc::new(Pipelines::new(device.metal_device())?);
    let kernels = Kernels { device: device.clone(), pipelines };
    let in_slots =
        InSlots { kernels: kernels.clone(), slots: None, in_flight: InFlight::default(), kept_max: 1 };
    Ok((Box::new(Rule { kernels, others: best(machine)? }), Some(in_slots)))
}

impl From<MetalError> for Failure {
    fn from(error: MetalError) -> Self {
        let text = match &error {
            MetalError::Metal { source, .. } => format!("{error}: {source}"),
            _ => error.to_string(),
        };
        Self::Device(candle_core::Error::Msg(text))
    }
}

/// The kernels on one of candle's devices.
#[derive(Clone)]
struct Kernels {
    device: MetalDevice,
    pipelines: Arc<Pipelines>,
}

impl Kernels {
    /// A tensor whose values are unspecified until a kernel has written all of them.
    fn room(&self, dims: &[usize]) -> Result<Tensor, Failure> {
        let n = dims.iter().product();
        let buffer = self.device.new_buffer(n, DType::F32, "forerun")?;
        let storage = Storage::Metal(MetalStorage::new(buffer, self.device.clone(), n, DType::F32));
        Ok(Tensor::from_storage(storage, dims, BackpropOp::none(), false))
    }

    /// Encodes a call on contiguous tensors, after `slot` if there is one.
    fn call(&self, launch: &Launch, slot: Option<Bound<'_>>, tensors: &[&Tensor]) -> Result<(), Failure> {
        let held: Vec<_> = tensors.iter().map(|tensor| Held::new(tensor)).collect();
        let bound: Vec<_> = slot.into_iter().chain(held.iter().map(Held::bound)).collect();
        let encoder = self.device.command_encoder()?;
        Ok(self.pipelines.encode(encoder.as_ref(), launch, &bound)?)
    }
}

/// A tensor's storage while a call on it is encoded; the command buffer keeps the Metal buffer after that.
struct Held<'a> {
    storage: StorageRef<'a>,
    offset_bytes: usize,
}

impl<'a> Held<'a> {
    fn new(tensor: &'a Tensor) -> Self {
        let (storage, layout) = tensor.storage_and_layout();
        assert!(layout.is_contiguous(), "kernels take rows that follow each other");
        Self { storage, offset_bytes: layout.start_offset() * tensor.dtype().size_in_bytes() }
    }

    fn bound(&self) -> Bound<'_> {
        let Storage::Metal(storage) = &*self.storage else {
            unreachable!("a stack's tensors are on its device")
        };
        Bound { buffer: storage.buffer(), offset_bytes: self.offset_bytes }
    }
}

/// The recurrence in the kernels.
struct Rule {
    kernels: Kernels,
    /// For shapes that have none.
    others: Box<dyn Recurrence>,
}

impl Recurrence for Rule {
    fn run(
        &self,
        w: &DeltaNet,
        shape: &ModelShape,
        inputs: &Inputs,
        old: &Recurrent,
    ) -> Result<(Tensor, Recurrent), Failure> {
        let (n, net) = (inputs.projections.dim(0)?, shape.delta_net.as_ref());
        let net = net.expect("a layer of this kind has its shape");
        // Metal has no empty buffers, so there is no history of a convolution with one tap.
        let calls = DeltaCalls::new(net, n, shape.norm_eps).filter(|_| net.conv_kernel > 1);
        let Some(calls) = calls else { return self.others.run(w, shape, inputs, old) };
        let [projections, log_decays, betas] =
            [&inputs.projections, &inputs.log_decays, &inputs.betas].map(Tensor::contiguous);
        let (projections, log_decays, betas) = (projections?, log_decays?, betas?);
        let Self { kernels, .. } = self;
        let conv = kernels.room(old.conv.dims())?;
        let convolved = kernels.room(projections.dims())?;
        kernels.call(&calls.convolve(), None, &[&old.conv, &projections, &w.conv, &conv, &convolved])?;
        let state = kernels.room(old.state.dims())?;
        let out = kernels.room(&[n, net.n_value_heads, net.value_dim])?;
        let tensors = [&old.state, &convolved, &log_decays, &betas, &state, &out];
        kernels.call(&calls.step(), None, &tensors)?;
        Ok((out, Recurrent { state, conv }))
    }
}

/// Runs experts where they lie.
pub(crate) struct InSlots {
    kernels: Kernels,
    /// The arena that leases came from last.
    slots: Option<SlotBuffer>,
    in_flight: InFlight,
    /// Most leases that are kept: with all of them kept, who reads the next expert would have no slot to read it into.
    kept_max: usize,
}

impl InSlots {
    /// The results of the uses, `[uses, hidden]`; `None` when the expert has no kernel, or lies in no slot.
    pub(crate) fn run(
        &mut self,
        job: &ExpertJob<'_>,
        layout: &ExpertLayout,
        x: &Tensor,
    ) -> Result<Option<Tensor>, Failure> {
        let (n_rows, n_uses) = (x.dim(0)?, job.uses.len());
        let calls = |n_rows| ExpertCalls::new(layout, job.parts, ExpertSizes { n_rows, top_k: 1, n_uses });
        let (Some(wide), Some(narrow)) = (calls(n_rows), calls(n_uses)) else { return Ok(None) };
        if self.in_flight.len() >= self.kept_max {
            self.release()?;
        }
        if !self.show(&job.weights)? {
            return Ok(None);
        }
        let Self { kernels, slots: Some(slots), in_flight, .. } = self else { return Ok(None) };
        let Ok(slot) = in_flight.bind(slots, job.weights.clone()) else { return Ok(None) };
        // Results lie in the order of the uses; the stack puts them where row and rank say.
        let by_row: Vec<_> = job.uses.iter().map(|u| Use { rank: 0, ..*u }).collect();
        let in_order: Vec<_> = (0..).zip(job.uses).map(|(row, u)| Use { row, rank: 0, ..*u }).collect();
        let device = Device::Metal(kernels.device.clone());
        let words = |words: Vec<u32>| Tensor::from_vec(words, 2 * n_uses, &device);
        let (by_row, in_order) = (words(wide.uses(&by_row))?, words(narrow.uses(&in_order))?);
        let x = x.contiguous()?;
        let inner = kernels.room(&[n_uses, layout.gate.n_rows])?;
        let out = kernels.room(&[n_uses, layout.down.n_rows])?;
        kernels.call(&wide.inner(), Some(slot), &[&x, &by_row, &inner])?;
        kernels.call(&narrow.down(), Some(slot), &[&inner, &in_order, &out])?;
        Ok(Some(out))
    }

    /// Waits for all that was encoded, and gives the leases back.
    pub(crate) fn release(&mut self) -> Result<(), Failure> {
        if self.in_flight.len() > 0 {
            self.kernels.device.wait_until_completed()?;
            self.in_flight.release();
        }
        Ok(())
    }

    /// Sees to it that the GPU has the lease's arena; `false` when its bytes lie in none.
    fn show(&mut self, lease: &ReadLease) -> Result<bool, Failure> {
        if self.slots.as_ref().is_some_and(|slots| slots.has(lease)) {
            return Ok(true);
        }
        let Some(arena) = lease.arena() else { return Ok(false) };
        self.hide()?;
        let slots = SlotBuffer::new(self.kernels.device.metal_device(), &arena)?;
        self.kernels.device.register_buffers(slots.buffers());
        (self.slots, self.kept_max) = (Some(slots), (arena.n_slots() / 4).max(1));
        Ok(true)
    }

    /// Takes the arena from the GPU, which would keep its memory.
    fn hide(&mut self) -> Result<(), Failure> {
        self.release()?;
        if let Some(slots) = self.slots.take() {
            self.kernels.device.unregister_buffers(slots.buffers());
        }
        Ok(())
    }
}

impl Drop for InSlots {
    fn drop(&mut self) {
        // A GPU that failed keeps the arena, and the leases with it.
        let _ = self.hide();
    }
}
