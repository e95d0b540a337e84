//! A GPU with the kernels and a queue of its own, for calls on the host's memory: what the tests of the kernels run on.

#![expect(unsafe_code, reason = "what a GPU has written is read through a pointer")]

use std::{fmt, iter};

use candle_metal_kernels::metal::{Buffer, CommandBuffer, CommandQueue, ComputeCommandEncoder, Device};
use candle_metal_kernels::{Kernels as CandleKernels, RESOURCE_OPTIONS};
use forerun_arena::ReadLease;
use objc2_metal::MTLCommandQueue;

use super::borrowed::Borrowed;
use super::host::{self, HostBuffer};
use super::launch::Launch;
use super::{Bound, InFlight, MetalError, Pipelines, SlotBuffer};

/// A GPU.
pub struct Gpu {
    device: Device,
    queue: CommandQueue,
    pipelines: Pipelines,
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Gpu {
    /// The system's first GPU.
    ///
    /// # Errors
    /// [`MetalError::NoDevice`], and what [`Pipelines::new`] ends with.
    pub fn open() -> Result<Self, MetalError> {
        let device = Device::system_default().ok_or(MetalError::NoDevice)?;
        let queue = device.new_command_queue().map_err(MetalError::while_("make a queue"))?;
        let pipelines = Pipelines::new(&device)?;
        Ok(Self { device, queue, pipelines })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Runs one call on copies of the host's buffers, and copies back what it has written.
    ///
    /// # Errors
    /// [`MetalError`]: the buffers aren't what the call needs, or the GPU failed.
    pub fn run_on_host(&self, launch: &Launch, buffers: &mut [HostBuffer<'_>]) -> Result<(), MetalError> {
        host::check(launch, buffers).map_err(|error| MetalError::Buffer {
            kernel: launch.kernel,
            index: buffers.len(),
            rule: error.to_string(),
        })?;
        let copies = self.copies(buffers)?;
        self.run(|_, encoder| self.pipelines.encode(encoder, launch, &whole(&copies)))?;
        take_over(&copies, buffers);
        Ok(())
    }

    /// The same with a slot as first buffer, which is read where it lies; `buffers` are those after it.
    ///
    /// # Errors
    /// [`MetalError`], also when the lease is of no slot of `slots`.
    pub fn run_on_slot(
        &self,
        launch: &Launch,
        (slots, lease): (&SlotBuffer, ReadLease),
        buffers: &mut [HostBuffer<'_>],
    ) -> Result<(), MetalError> {
        let copies = self.copies(buffers)?;
        self.run(|in_flight, encoder| {
            let slot = in_flight.bind(slots, lease).map_err(|_| MetalError::Buffer {
                kernel: launch.kernel,
                index: 0,
                rule: "lies in no slot of this arena".to_owned(),
            })?;
            let bound: Vec<_> = iter::once(slot).chain(whole(&copies)).collect();
            self.pipelines.encode(encoder, launch, &bound)
        })?;
        take_over(&copies, buffers);
        Ok(())
    }

    /// The product of the matrix that begins at byte `at` of `bytes` with the rows `x`, by one of candle's kernels.
    ///
    /// # Errors
    /// [`MetalError`]: sizes don't fit each other, or the GPU failed.
    pub fn run_borrowed(
        &self,
        kernels: &CandleKernels,
        product: &Borrowed,
        (bytes, at): (&[u8], usize),
        x: &[f32],
    ) -> Result<Vec<f32>, MetalError> {
        let [.., out, _] = product.buffers();
        let mut out = vec![f32::NAN; out.bytes / 4];
        let buffers = &mut [
            HostBuffer::Bytes(bytes),
            HostBuffer::Floats(x),
            HostBuffer::Out(&mut out),
            HostBuffer::Words(&[0]),
        ];
        let copies = self.copies(buffers)?;
        self.run(|_, encoder| {
            let mut bound = [0, 1, 2, 3].map(|i| Bound { buffer: &copies[i], offset_bytes: 0 });
            bound[0].offset_bytes = at;
            Pipelines::encode_borrowed(encoder, (&self.device, kernels), product, &bound)
        })?;
        take_over(&copies, buffers);
        Ok(out)
    }

    /// A buffer with a copy of each.
    fn copies(&self, buffers: &[HostBuffer<'_>]) -> Result<Vec<Buffer>, MetalError> {
        let copy = |buffer: &HostBuffer<'_>| {
            let mut bytes = buffer.to_vec();
            // Metal makes no empty buffers.
            bytes.resize(bytes.len().max(4), 0);
            let copy = self.device.new_buffer_with_data(bytes.as_ptr().cast(), bytes.len(), RESOURCE_OPTIONS);
            copy.map_err(MetalError::while_("copy bytes to the GPU"))
        };
        buffers.iter().map(copy).collect()
    }

    /// Encodes with `encode`, runs what was encoded, and waits for it.
    fn run(
        &self,
        encode: impl FnOnce(&mut InFlight, &ComputeCommandEncoder) -> Result<(), MetalError>,
    ) -> Result<(), MetalError> {
        let commands = self.queue.commandBuffer().map(CommandBuffer::new);
        let commands = commands.ok_or_else(|| MetalError::Failed("no command buffer".to_owned()))?;
        let encoder = commands.compute_command_encoder_no_fence();
        let mut in_flight = InFlight::default();
        let encoded = encode(&mut in_flight, &encoder);
        // An encoder that is dropped without its end ends the program.
        encoder.end_encoding();
        commands.commit();
        let ran = in_flight.wait(&commands);
        encoded.and(ran)
    }
}

fn whole(copies: &[Buffer]) -> Vec<Bound<'_>> {
    copies.iter().map(|buffer| Bound { buffer, offset_bytes: 0 }).collect()
}

fn take_over(copies: &[Buffer], buffers: &mut [HostBuffer<'_>]) {
    for (copy, buffer) in copies.iter().zip(buffers) {
        // SAFETY: `Gpu::copies` made it in shared storage, so that its contents are `length` bytes of this process, written when it was
        // made. Only this call has it, and has waited for its one command buffer.
        let bytes = unsafe { std::slice::from_raw_parts(copy.contents(), copy.length()) };
        buffer.fill(bytes.iter().copied());
    }
}
