//! The end of a layer against the stack's own loop.

use forerun_compute::ops::{add_scaled, sigmoid};

use super::{Chance, Gpu, HALF_UNIT, Report};
use crate::host::HostBuffer as Buffer;
use crate::launch::Close;

pub(crate) fn close_layer(gpu: &mut dyn Gpu, seed: u64, report: &mut Report) {
    report.begin();
    let mut chance = Chance(seed);
    let (n_rows, hidden, top_k) = (1 + chance.below(9), 1 + chance.below(300), 1 + chance.below(10));
    let close = Close { n_rows, hidden, top_k, has_shared: chance.below(4) > 0 };
    let shared_rows = if close.has_shared { n_rows } else { 0 };
    let (ranked, weights) = (chance.floats(n_rows * top_k * hidden), chance.floats(n_rows * top_k));
    let shared = chance.floats(shared_rows * hidden);
    let switches: Vec<f32> = chance.floats(shared_rows).into_iter().map(|x| 20.0 * x).collect();
    let before = chance.floats(n_rows * hidden);
    let mut found = before.clone();
    let mut buffers = [
        Buffer::Floats(&ranked),
        Buffer::Floats(&weights),
        Buffer::Floats(&shared),
        Buffer::Floats(&switches),
        Buffer::Out(&mut found),
    ];
    gpu.run(&close.launch().unwrap(), &mut buffers);

    let mut want = before.clone();
    let mut sizes: Vec<f64> = before.iter().map(|x| f64::from(x.abs())).collect();
    for (row, x) in want.chunks_exact_mut(hidden).enumerate() {
        let mut sum = vec![0.0; hidden];
        let mut add = |weight: f32, values: &[f32]| {
            add_scaled(&mut sum, weight, values);
            for (size, value) in sizes[row * hidden..].iter_mut().zip(values) {
                *size += f64::from((weight * value).abs());
            }
        };
        for rank in row * top_k..(row + 1) * top_k {
            add(weights[rank], &ranked[rank * hidden..(rank + 1) * hidden]);
        }
        if close.has_shared {
            let factor = sigmoid(switches[row]);
            let scaled: Vec<f32> =
                shared[row * hidden..(row + 1) * hidden].iter().map(|x| factor * x).collect();
            add(1.0, &scaled);
        }
        add_scaled(x, 1.0, &sum);
    }
    // A product and a sum a rank, and some for the switch; twice.
    let depth = 2.0 * (2 * top_k + 12) as f64;
    report.compare(&found, &want, |i| depth * HALF_UNIT * sizes[i], seed);
}
