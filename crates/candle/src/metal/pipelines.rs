//! The kernels, compiled for one GPU, and calls of them on checked buffers.

use std::collections::BTreeMap;

use candle_metal_kernels::Kernels as CandleKernels;
use candle_metal_kernels::metal::{Buffer, ComputeCommandEncoder, ComputePipeline, Device};
use candle_metal_kernels::source::Source;
use objc2::available;
use objc2::rc::Retained;
use objc2_metal::{
    MTLCompileOptions, MTLComputePipelineState, MTLMathFloatingPointFunctions, MTLMathMode, MTLSize,
};

use super::MetalError;
use super::borrowed::{Borrowed, TABLE_BYTES};
use super::launch::{Access, KERNELS, LANES, Launch, Need};

/// All files, in the order in which each finds what it needs.
const SOURCE: &str = concat!(
    include_str!("../../metal/common.metal"),
    include_str!("../../metal/blocks.metal"),
    include_str!("../../metal/delta_net.metal"),
    include_str!("../../metal/expert.metal"),
    include_str!("../../metal/close_layer.metal"),
);

/// A part of a buffer, from some byte on.
#[derive(Clone, Copy, Debug)]
pub struct Bound<'a> {
    /// The buffer.
    pub buffer: &'a Buffer,
    /// Its first byte that the kernel sees.
    pub offset_bytes: usize,
}

/// The kernels of one GPU.
#[derive(Debug)]
pub struct Pipelines {
    own: BTreeMap<&'static str, ComputePipeline>,
}

impl Pipelines {
    /// Compiles all kernels: the one slow call.
    ///
    /// # Errors
    /// [`MetalError::Metal`] with the compiler's words, and [`MetalError::Simdgroups`].
    pub fn new(device: &Device) -> Result<Self, MetalError> {
        let library = device.new_library_with_source(SOURCE, Some(&options()));
        let library = library.map_err(MetalError::while_("compile the kernels"))?;
        let mut own = BTreeMap::new();
        for &kernel in KERNELS {
            let function = library.get_function(kernel, None).map_err(MetalError::while_("find a kernel"))?;
            let pipeline = device.new_compute_pipeline_state_with_function(&function);
            let pipeline = pipeline.map_err(MetalError::while_("make a pipeline"))?;
            let found = pipeline.as_ref().threadExecutionWidth();
            if found != LANES {
                return Err(MetalError::Simdgroups { found, need: LANES });
            }
            own.insert(kernel, pipeline);
        }
        Ok(Self { own })
    }

    /// Encodes one call. It runs when the encoder's command buffer does, after what was encoded before it and writes what it reads.
    ///
    /// Nobody may write the bytes that it reads before it has run: for slots, [`InFlight`](super::InFlight) keeps their leases.
    ///
    /// # Errors
    /// [`MetalError::Buffer`] and [`MetalError::Threads`]; then nothing is encoded.
    ///
    /// # Panics
    /// When the launch names no kernel of ours.
    pub fn encode(
        &self,
        encoder: &ComputeCommandEncoder,
        launch: &Launch,
        buffers: &[Bound<'_>],
    ) -> Result<(), MetalError> {
        let Launch { kernel, groups, simdgroups, buffers: needs, shape } = launch;
        let pipeline = self.own.get(kernel).expect("launches are of the kernels that KERNELS lists");
        let (max, threads) = (pipeline.max_total_threads_per_threadgroup(), simdgroups * LANES);
        if threads > max {
            return Err(MetalError::Threads { kernel, max, found: threads });
        }
        check(kernel, needs, buffers)?;
        encoder.set_compute_pipeline_state(pipeline);
        bind(encoder, needs, buffers);
        encoder.set_bytes_directly(needs.len(), shape.len(), shape.as_ptr().cast());
        encoder.dispatch_thread_groups(size([*groups, 1, 1]), size([threads, 1, 1]));
        Ok(())
    }

    /// Encodes a product with one of candle's kernels. `buffers` are the matrix, the rows, the products, and one zero.
    ///
    /// # Errors
    /// [`MetalError::Buffer`]; [`MetalError::Metal`] when candle can't compile its kernels.
    pub fn encode_borrowed(
        encoder: &ComputeCommandEncoder,
        (device, kernels): (&Device, &CandleKernels),
        product: &Borrowed,
        buffers: &[Bound<'_>; 4],
    ) -> Result<(), MetalError> {
        let needs = product.buffers();
        check(product.kernel(), &needs, buffers)?;
        let pipeline = kernels.load_pipeline(device, Source::Quantized, product.kernel());
        let pipeline = pipeline.map_err(MetalError::while_("make a pipeline of candle's"))?;
        encoder.set_compute_pipeline_state(&pipeline);
        bind(encoder, &needs, buffers);
        for (index, number) in (needs.len()..).zip(product.numbers()) {
            encoder.set_bytes(index, &number);
        }
        encoder.set_threadgroup_memory_length(0, TABLE_BYTES);
        let [width, height] = product.threads();
        encoder.dispatch_thread_groups(size(product.groups()), size([width, height, 1]));
        Ok(())
    }
}

/// IEEE arithmetic, as the kernels' sums have one order. Newer systems are asked by the source as well.
fn options() -> Retained<MTLCompileOptions> {
    let options = MTLCompileOptions::new();
    if available!(macos = 15, ios = 18) {
        options.setMathMode(MTLMathMode::Safe);
        options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
    } else {
        #[expect(deprecated, reason = "older systems have no other way")]
        options.setFastMathEnabled(false);
    }
    options
}

/// Compares buffers with what a call needs.
fn check(kernel: &'static str, needs: &[Need], buffers: &[Bound<'_>]) -> Result<(), MetalError> {
    let wrong = |index, rule| Err(MetalError::Buffer { kernel, index, rule });
    if needs.len() != buffers.len() {
        return wrong(buffers.len(), format!("isn't one of {}", needs.len()));
    }
    for (index, (need, bound)) in needs.iter().zip(buffers).enumerate() {
        let found = bound.buffer.length().saturating_sub(bound.offset_bytes);
        if found < need.bytes {
            return wrong(index, format!("has {found} bytes of {}", need.bytes));
        }
        if !bound.offset_bytes.is_multiple_of(need.align) {
            return wrong(index, format!("begins at {}, no multiple of {}", bound.offset_bytes, need.align));
        }
    }
    Ok(())
}

fn bind(encoder: &ComputeCommandEncoder, needs: &[Need], buffers: &[Bound<'_>]) {
    for (index, (need, bound)) in needs.iter().zip(buffers).enumerate() {
        match need.access {
            Access::Read => encoder.set_input_buffer(index, Some(bound.buffer), bound.offset_bytes),
            Access::Write => encoder.set_output_buffer(index, Some(bound.buffer), bound.offset_bytes),
        }
    }
}

fn size([width, height, depth]: [usize; 3]) -> MTLSize {
    MTLSize { width, height, depth }
}
