//! Routers that are asked before their turn.

use forerun_compute::Scores;
use forerun_model::Stage;

use super::bench::layer_id;
use super::{Bench, FIRST, SECOND, Subject, part, text};
use crate::support::rig::text_rows;

/// Asked of every layer that is still to come, at every stage.
pub(crate) fn scores_change_nothing(subject: &Subject) {
    let mut bench = subject.bench();
    let tokens = text(1, 11);
    let want = bench.read(FIRST, 0, &tokens);
    let n_layers = bench.n_layers();
    bench.begin(&[part(SECOND, 0, tokens.len())], &text_rows(0, &tokens));
    let begun = ask(&mut bench, Stage::Begin, 0, tokens.len());
    for layer in 0..n_layers {
        bench.mix_route(layer);
        ask(&mut bench, Stage::Early, layer + 1, tokens.len());
        bench.experts_of(layer);
        ask(&mut bench, Stage::Closed, layer + 1, tokens.len());
    }
    let found = bench.finish();
    bench.same(&found, &want, "a step whose routers were asked ahead");
    // And a row's scores are its own.
    bench.begin(&[part(SECOND, 0, 1)], &text_rows(4, &tokens[4..5]));
    let alone = ask(&mut bench, Stage::Begin, 0, 1);
    let n_experts = bench.shape.moe.n_experts;
    let of_row = |begun: &Vec<f32>| begun[4 * n_experts..5 * n_experts].to_vec();
    bench.same(&alone.concat(), &begun.iter().flat_map(of_row).collect::<Vec<_>>(), "scores of a row");
}

/// The probabilities of the layers from `first` on.
fn ask(bench: &mut Bench, stage: Stage, first: usize, n_rows: usize) -> Vec<Vec<f32>> {
    let n_experts = bench.shape.moe.n_experts;
    let mut scores = Scores::default();
    let of = |layer: usize| {
        let id = layer_id(layer);
        bench.backend.scores(stage, id, &mut scores).unwrap();
        assert_eq!((scores.layer, scores.n_experts), (id, n_experts), "{stage:?}");
        assert_eq!(scores.probabilities.len(), n_rows * n_experts, "{stage:?}, layer {layer}");
        for row in scores.probabilities.chunks(n_experts) {
            let sum: f32 = row.iter().sum();
            assert!((sum - 1.0).abs() < 1e-3, "{stage:?}, layer {layer}: probabilities add up to {sum}");
            assert!(row.iter().all(|p| (0.0..=1.0).contains(p)), "{stage:?}, layer {layer}: {row:?}");
        }
        scores.probabilities.clone()
    };
    (first..bench.shape.n_layers()).map(of).collect()
}
