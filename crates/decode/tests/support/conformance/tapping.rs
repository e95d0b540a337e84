//! What drafters read of a step.

use forerun_compute::Taps;

use super::bench::layer_id;
use super::{CONFIG, FIRST, SECOND, Subject, THIRD, part, text};
use crate::support::rig::text_rows;

/// Of every row, wanted or not, alone or with others, put aside or not; and the logits are what they are without.
pub(crate) fn taps_bring_out_every_row(subject: &Subject) {
    let mut plain = subject.bench();
    let n_layers = plain.n_layers();
    let layers = vec![layer_id(0), layer_id(n_layers / 2), layer_id(n_layers - 1)];
    let n_taps = layers.len();
    let mut bench = subject.bench_of(CONFIG, Taps { layers, normed: true });
    let (tokens, d) = (text(1, 13), bench.shape.hidden);
    let want = plain.read(FIRST, 0, &tokens);
    let (mut taps, mut normed, mut logits) = (Vec::new(), Vec::new(), Vec::new());
    for (past, token) in tokens.iter().enumerate() {
        logits.extend(bench.read(FIRST, past, &[*token]));
        taps.extend_from_slice(&bench.output.taps);
        normed.extend_from_slice(&bench.output.normed);
    }
    bench.same(&logits, &want, "logits beside taps");
    assert_eq!((taps.len(), normed.len()), (tokens.len() * n_taps * d, tokens.len() * d));
    let (first, last) = taps.split_at(d);
    bench.tolerance.differ(first, &last[..d], "layers are tapped each for itself");

    let mut rows = text_rows(0, &tokens);
    rows.iter_mut().for_each(|row| row.wants_logits = false);
    bench.begin(&[part(SECOND, 0, tokens.len())], &rows);
    for layer in 0..n_layers {
        bench.layers(layer..layer + 1);
        bench.backend.exchange();
        bench.read(THIRD, 0, &text(2, 5));
        assert_eq!((bench.output.taps.len(), bench.output.normed.len()), (5 * n_taps * d, 5 * d));
        bench.backend.exchange();
    }
    bench.finish();
    bench.same(&bench.output.taps, &taps, "outputs of layers");
    bench.same(&bench.output.normed, &normed, "states after the last norm");

    plain.read(SECOND, 0, &tokens);
    assert!(plain.output.taps.is_empty() && plain.output.normed.is_empty(), "what nobody tapped");
}
