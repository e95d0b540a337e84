//! A backend against the definition of right.

use forerun_compute::{Backend, Reference, Rounding, StackConfig, Taps, Weights};
use forerun_model::Position;

use super::bench::layer_id;
use super::{CONFIG, FIRST, Subject, Tolerance, part, text};
use crate::support::rig::text_rows;

/// Logits and everything that can be tapped are the reference's, which rounds as `rounding` says, within the subject's
/// tolerance or `bound`; also where the axes of positions part, as in a picture.
pub(crate) fn with_the_reference(subject: &Subject, rounding: Rounding, bound: Option<f32>) {
    let tolerance = bound.map_or(subject.tolerance, Tolerance::Within);
    let reference = Subject {
        make: match rounding {
            Rounding::None => exact,
            Rounding::LikeQuantised => rounded,
        },
        ..*subject
    };
    let n_layers = subject.bench().n_layers();
    let results = |subject: &Subject| {
        let taps = Taps { layers: (0..n_layers).map(layer_id).collect(), normed: true };
        let mut bench = subject.bench_of(CONFIG, taps);
        let mut rows = text_rows(0, &text(1, 30));
        for (i, row) in (0..).zip(&mut rows).skip(10) {
            row.position = Position([10, 10 + i / 4, 10 + i % 4]);
        }
        let logits = bench.run(&[part(FIRST, 0, rows.len())], &rows);
        (logits, bench.output.taps, bench.output.normed)
    };
    let (found, want) = (results(subject), results(&reference));
    tolerance.same(&found.1, &want.1, "outputs of layers");
    tolerance.same(&found.2, &want.2, "states after the last norm");
    tolerance.same(&found.0, &want.0, "logits");
}

/// The reference with plain products.
pub(crate) fn exact(weights: Weights, config: StackConfig, taps: Taps) -> Box<dyn Backend> {
    Box::new(Reference::reference(weights, config, Rounding::None).bringing(taps))
}

/// The reference with activations in 8 bits where kernels have them.
pub(crate) fn rounded(weights: Weights, config: StackConfig, taps: Taps) -> Box<dyn Backend> {
    Box::new(Reference::reference(weights, config, Rounding::LikeQuantised).bringing(taps))
}
