//! One routed expert on borrowed bytes: a slot is filled, sealed, and multiplied where it lies.
//!
//! `cargo run -p forerun-compute --example moe_block`

#![expect(clippy::print_stdout, reason = "an example talks")]

use std::error::Error;

use forerun_compute::activation::{Activations, Rows};
use forerun_compute::arena::{Arena, SlotIdx};
use forerun_compute::kernels::best;
use forerun_compute::model::{ExpertLayout, MatrixLayout, QuantType};
use forerun_compute::products::{ExpertBuffers, ExpertMatrices, Products, Quantised};
use forerun_compute::tensor::Matrix;
use forerun_compute::workers::Workers;

const HIDDEN: usize = 512;
const INNER: usize = 256;
const N_ROWS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let wide = MatrixLayout::new(QuantType::Q8_0, INNER, HIDDEN)?;
    let down = MatrixLayout::new(QuantType::Q8_0, HIDDEN, INNER)?;
    let layout = ExpertLayout { gate: wide, up: wide, down };

    // Whoever reads from flash fills the slot; here every block is scale 1/1024 and codes that go up and down.
    let arena = Arena::new(1, layout.record_bytes())?;
    let mut slot = arena.try_write(SlotIdx(0)).ok_or("a fresh slot is free")?;
    for (i, block) in slot.bytes_mut()[..layout.record_bytes()].chunks_exact_mut(34).enumerate() {
        block[..2].copy_from_slice(&0x1400_u16.to_le_bytes());
        for (j, code) in block[2..].iter_mut().enumerate() {
            *code = u8::try_from((i * 7 + j * 5) % 61)?;
        }
    }
    let slot = slot.seal();

    let parts = layout.offsets();
    let matrix =
        |at: usize, layout: MatrixLayout| Matrix { layout, bytes: &slot.bytes()[at..at + layout.bytes()] };
    let mut products = Quantised::new(best(), Workers::single());
    let mut x = Activations::default();
    for (i, value) in x.start(N_ROWS, HIDDEN).iter_mut().enumerate() {
        *value = ((i * 13 % 17) as f32 - 8.0) / 8.0;
    }
    let (mut gate, mut up) = (vec![0.0; N_ROWS * INNER], vec![0.0; N_ROWS * INNER]);
    let expert = ExpertMatrices {
        gate: matrix(parts.gate, layout.gate),
        up: matrix(parts.up, layout.up),
        down: matrix(parts.down, layout.down),
    };
    let mut inner = Activations::default();
    let buffers = ExpertBuffers { gates: &mut gate, ups: &mut up, inner: &mut inner };
    let mut out = vec![0.0; N_ROWS * HIDDEN];
    products.expert(expert, &mut x, Rows::All, buffers, &mut out);

    println!("kernels {}, {} bytes of weights in one slot", products.kernels(), layout.weight_bytes());
    for (row, out) in out.chunks_exact(HIDDEN).enumerate() {
        println!("row {row}: {:?} ...", &out[..4]);
    }
    Ok(())
}
