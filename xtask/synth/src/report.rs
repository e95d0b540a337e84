//! A walk's statistics beside those of a trained model.

use std::fmt::Write;

use forerun_model::LayerId;
use forerun_sim::routing_stats::{busiest, lru_hits, mean, recall, reuse, union};
use forerun_sim::{Guesses, Trace, TraceError};

use crate::knobs::NARROW_EXPERTS_MAX;
use crate::measure::Walk;

/// What was measured on a trained model: running text, and chat.
struct Trained {
    /// What it is, for the heading.
    name: &'static str,
    /// In the order of [`statistics`]; `None` where it wasn't measured.
    rows: [[Option<f64>; 2]; N_ROWS],
}

/// A row of the table.
type Statistic = (String, f64);

const N_ROWS: usize = 23;

const fn both(text: f64, chat: f64) -> [Option<f64>; 2] {
    [Some(text), Some(chat)]
}

const fn text(text: f64) -> [Option<f64>; 2] {
    [Some(text), None]
}

/// 16 layers of 256 experts, 8 active, hidden size 512; trained for this project on 101 M tokens.
const WIDE: Trained = Trained {
    name: "8 of 256",
    rows: [
        text(0.756),
        text(0.904),
        text(0.816),
        text(0.951),
        text(0.639),
        text(0.801),
        text(0.62),
        text(0.78),
        text(0.33),
        text(0.46),
        both(0.168, 0.134),
        both(0.370, 0.296),
        both(0.521, 0.414),
        both(0.813, 0.752),
        both(0.285, 0.192),
        both(0.439, 0.315),
        both(0.640, 0.502),
        both(0.869, 0.747),
        both(14.7, 14.9),
        both(26.1, 27.2),
        both(44.3, 47.4),
        [None, None],
        text(0.310),
    ],
};

/// The project's pico: 8 layers of 32 experts, 4 active, hidden size 256; trained on 576 M tokens.
const NARROW: Trained = Trained {
    name: "4 of 32",
    rows: [
        text(0.753),
        text(0.920),
        text(0.804),
        text(0.953),
        text(0.640),
        text(0.829),
        text(0.86),
        text(0.97),
        text(0.50),
        text(0.69),
        both(0.300, 0.253),
        both(0.593, 0.547),
        both(0.765, 0.721),
        both(0.966, 0.945),
        both(0.174, 0.142),
        both(0.312, 0.251),
        both(0.494, 0.412),
        both(0.744, 0.684),
        both(6.8, 7.0),
        both(11.0, 11.5),
        both(16.3, 17.3),
        [None, None],
        text(0.500),
    ],
};

/// The table, as text.
///
/// # Errors
/// [`TraceError`] when the walk's shape is none that a trace can have.
pub(crate) fn report(walk: &Walk) -> Result<String, TraceError> {
    let trace = walk.recording.trace()?;
    let trained = if trace.n_experts <= NARROW_EXPERTS_MAX { &NARROW } else { &WIDE };
    let Walk { n_followed, n_tokens, tokens_per_second, .. } = walk;
    let mut out = format!(
        "script: {n_followed} of {n_tokens} steps followed before the first deviation; {tokens_per_second:.1} tokens a second\n\n\
         | statistic | here | trained, {name}: text | chat |\n|---|---|---|---|\n",
        name = trained.name
    );
    for ((name, here), trained) in statistics(walk, &trace).into_iter().zip(&trained.rows) {
        let cell = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number);
        let (here, text, chat) = (number(here), cell(trained[0]), cell(trained[1]));
        writeln!(out, "| {name} | {here} | {text} | {chat} |").expect("a string takes all that is written");
    }
    Ok(out + "\n" + &layers(&trace))
}

fn number(value: f64) -> String {
    if value < 2.0 { format!("{value:.3}") } else { format!("{value:.1}") }
}

fn statistics(walk: &Walk, trace: &Trace) -> Vec<Statistic> {
    let (k, n) = (trace.top_k, trace.n_experts);
    let warm = trace.n_tokens / 4;
    let later = |of: &dyn Fn(LayerId) -> f64| mean(trace.layers().skip(1), of);
    let all = |of: &dyn Fn(LayerId) -> f64| mean(trace.layers(), of);
    let (early, closed) = guesses(trace);
    let mut rows = Vec::new();
    for (name, guesses) in [
        ("after the mixer before", early),
        ("after the experts before", closed),
        ("two layers ahead", &walk.two_ahead),
    ] {
        for p in [k, 2 * k] {
            rows.push((format!("recall@{p}, {name}"), later(&|layer| recall(trace, guesses, layer, p))));
        }
    }
    for (name, layer) in [("layer 0, from the embedding", 0), ("layer 1, after the mixer before", 1)] {
        for p in [k, 2 * k] {
            let recall = mean(trace.layers().skip(layer).take(1), |l| recall(trace, early, l, p));
            rows.push((format!("recall@{p}, {name}"), recall));
        }
    }
    for window in [1, 4, 8, 32] {
        rows.push((format!("reuse within {window} tokens"), all(&|layer| reuse(trace, layer, window))));
    }
    for slots in [n / 16, n / 8, n / 4, n / 2] {
        rows.push((format!("LRU hits, {slots} slots"), all(&|layer| lru_hits(trace, layer, slots, warm))));
    }
    for block in [2, 4, 8] {
        rows.push((format!("experts of {block} tokens"), all(&|layer| union(trace, layer, block))));
    }
    rows.push(("busiest expert, in fair shares".into(), all(&|layer| busiest(trace, layer))));
    rows.push(("weight of the best expert".into(), walk.recording.weight(0)));
    rows
}

/// What routers guessed after the mixer of the layer before, and after the whole layer.
fn guesses(trace: &Trace) -> (&Guesses, &Guesses) {
    trace.prev_mid.as_ref().zip(trace.prev_out.as_ref()).expect("a walk records both")
}

/// A line for each layer: recalls, reuse, hits.
fn layers(trace: &Trace) -> String {
    let (early, closed) = guesses(trace);
    let (k, quarter, warm) = (trace.top_k, trace.n_experts / 4, trace.n_tokens / 4);
    let mut out = format!("layer  early@{k}/{}  closed@{k}/{}  reuse 1/8  LRU {quarter}\n", 2 * k, 2 * k);
    for layer in trace.layers() {
        let found = |guesses, n| recall(trace, guesses, layer, n);
        let line = format!(
            "{:>5}  {:.2}/{:.2}  {:.2}/{:.2}  {:.2}/{:.2}  {:.2}",
            layer.0,
            found(early, k),
            found(early, 2 * k),
            found(closed, k),
            found(closed, 2 * k),
            reuse(trace, layer, 1),
            reuse(trace, layer, 8),
            lru_hits(trace, layer, quarter, warm),
        );
        writeln!(out, "{line}").expect("a string takes all that is written");
    }
    out
}
