//! What the shipped predictor finds on recorded routers, ahead of their turn: as much as was measured with the model.

#![cfg(test)]

use std::path::PathBuf;

use forerun_model::{LayerId, Routing, Stage};
use forerun_scheduler::{Guess, GuessInput, Predictor, RouterAhead, View};
use forerun_sim::{Guesses, Trace};

/// Recall may differ so much from what was measured, in points: rounding, and ties.
const POINTS: f64 = 1.0;

/// Percent found of the true top-k, among k guesses and among 2k.
type Recall = [f64; 2];

/// What was measured when the trace was recorded, by the statistics beside it: the means over layers 1 and up of guesses
/// after the mixer of the layer before and after that whole layer, and those of layer 0 on the embedding.
struct Measured {
    trace: &'static str,
    prev_mid: Recall,
    prev_out: Recall,
    first: Recall,
}

const MEASURED: [Measured; 6] = [
    Measured {
        trace: "trace-docs",
        prev_mid: [75.42, 90.33],
        prev_out: [81.43, 95.11],
        first: [61.41, 77.88],
    },
    Measured {
        trace: "trace-gen",
        prev_mid: [75.51, 90.22],
        prev_out: [81.19, 94.86],
        first: [60.34, 76.90],
    },
    Measured {
        trace: "trace-chat",
        prev_mid: [70.41, 87.25],
        prev_out: [78.87, 93.84],
        first: [54.15, 69.07],
    },
    Measured {
        trace: "pico-docs",
        prev_mid: [75.19, 92.07],
        prev_out: [80.06, 95.27],
        first: [86.89, 96.84],
    },
    Measured { trace: "pico-gen", prev_mid: [74.85, 91.77], prev_out: [79.86, 94.90], first: [87.07, 96.37] },
    Measured {
        trace: "pico-chat",
        prev_mid: [72.42, 90.38],
        prev_out: [81.09, 95.41],
        first: [84.71, 95.89],
    },
];

/// On 50,520 held-out tokens of the trace's model: what the documentation promises of that model.
const HELD_OUT: Measured =
    Measured { trace: "trace-docs", prev_mid: [75.6, 90.4], prev_out: [81.6, 95.1], first: [62.0, 78.0] };

fn load(name: &str) -> Trace {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "fixtures", "traces"].iter().collect();
    let read = |extension| std::fs::read(folder.join(name).with_extension(extension)).unwrap();
    Trace::parse(&read("json"), &read("bin")).unwrap()
}

/// The predictor's recall in each layer, in percent, when the routers say at `stage` what was recorded as `told`. Only
/// the order of what they said was recorded, so that their scores fall with the rank.
fn recall(trace: &Trace, told: &Guesses, stage: Stage, mut predictor: RouterAhead) -> Vec<Recall> {
    predictor.observe(LayerId(0), &first_routing(trace));
    let mut found = vec![[0u32; 2]; trace.n_layers];
    let (mut routing, mut guesses) = (Routing::default(), Vec::<Guess>::new());
    for token in 0..trace.n_tokens {
        for layer in trace.layers() {
            let mut probabilities = vec![0.0; trace.n_experts];
            for (&expert, rank) in told.row(token, layer).iter().zip(1u16..) {
                probabilities[usize::from(expert)] = 0.5 / f32::from(rank);
            }
            let stage = if layer == LayerId(0) { Stage::Begin } else { stage };
            let view = View { stage, ahead: 1 };
            assert!(predictor.listens(view) && predictor.wants_scores());
            guesses.clear();
            let input = GuessInput { view, layer, n_experts: trace.n_experts, probabilities: &probabilities };
            predictor.guess(&input, &mut guesses);
            trace.routing(token, layer, &mut routing);
            predictor.observe(layer, &routing);
            let is_wanted = |guess: &&Guess| routing.experts().any(|expert| expert == guess.key.expert);
            for (n, found) in [trace.top_k, 2 * trace.top_k].into_iter().zip(&mut found[layer.idx()]) {
                *found += u32::try_from(guesses.iter().take(n).filter(is_wanted).count()).unwrap();
            }
        }
    }
    let n_wanted = f64::from(u32::try_from(trace.n_tokens * trace.top_k).unwrap());
    found.into_iter().map(|found| found.map(|n| 100.0 * f64::from(n) / n_wanted)).collect()
}

/// A routing, for how many experts a row has.
fn first_routing(trace: &Trace) -> Routing {
    let mut routing = Routing::default();
    trace.routing(0, LayerId(0), &mut routing);
    routing
}

#[track_caller]
fn check(trace: &Trace, measured: &Measured) {
    let Measured { trace: name, prev_mid, prev_out, first } = measured;
    let told = [
        ("prev_mid", &trace.prev_mid, Stage::Early, prev_mid),
        ("prev_out", &trace.prev_out, Stage::Closed, prev_out),
    ];
    for (what, told, stage, measured) in told {
        let Some(told) = told else {
            assert_eq!((*name, what), ("pico-chat", "prev_out"), "the others were recorded");
            continue;
        };
        let found = recall(trace, told, stage, RouterAhead::default().unlearned());
        let n_later = f64::from(u32::try_from(found.len() - 1).unwrap());
        for i in 0..2 {
            let later = found[1..].iter().map(|layer| layer[i]).sum::<f64>() / n_later;
            let n = (i + 1) * trace.top_k;
            assert!((later - measured[i]).abs() < POINTS, "{name} {what}@{n}: {later:.2}, not {measured:?}");
            let begin = found[0][i];
            assert!((begin - first[i]).abs() < POINTS, "{name} layer 0 @{n}: {begin:.2}, not {first:?}");
        }
    }
}

#[test]
fn as_much_is_found_as_was_measured() {
    for measured in &MEASURED {
        check(&load(measured.trace), measured);
    }
}

#[test]
fn as_much_is_found_as_is_promised() {
    check(&load(HELD_OUT.trace), &HELD_OUT);
}

/// What a text favours is worth something even where only the order of the routers' scores is known.
#[test]
fn learning_what_a_text_favours_never_costs_recall() {
    for measured in &MEASURED {
        let trace = load(measured.trace);
        for (told, stage) in [(&trace.prev_mid, Stage::Early), (&trace.prev_out, Stage::Closed)] {
            let Some(told) = told else { continue };
            let mean = |predictor| {
                let found = recall(&trace, told, stage, predictor);
                let n = f64::from(u32::try_from(found.len()).unwrap());
                [0, 1].map(|i| found.iter().map(|layer| layer[i]).sum::<f64>() / n)
            };
            let (plain, learned) = (mean(RouterAhead::default().unlearned()), mean(RouterAhead::default()));
            println!("{} {stage:?}: {plain:.1?} {learned:.1?}", measured.trace);
            assert!(learned[0] > plain[0] - 0.2, "{} {stage:?}: {learned:?}, not {plain:?}", measured.trace);
        }
    }
}
