//! Where looking ahead pays: disks from 0.3 to 8 GB/s, computers from 5 to 50 tokens a second, caches of 0 to 128 experts a
//! layer.
//!
//! `cargo run --release -p forerun-sim --example sweep -- [TRACE [PICTURE]]`
//!
//! TRACE is a trace without its ending, PICTURE the SVG to draw. Each row compares nobody, the shipped predictor behind
//! its gate, and an oracle that knows the next layer's experts.

#![expect(clippy::print_stdout, reason = "an example talks")]

use std::{env, fs};

use forerun_model::Nanos;
use forerun_scheduler::PolicyName;
use forerun_sim::{Compute, Disk, Replay, RunError, Trace};
use plotters::prelude::*;

type Failure = Box<dyn std::error::Error>;

const MB_PER_SECOND: [u64; 6] = [300, 600, 1_400, 2_500, 4_000, 8_000];
const TOKENS_PER_SECOND: [f64; 4] = [5.0, 10.0, 20.0, 50.0];
const SLOTS: [usize; 7] = [0, 8, 16, 32, 64, 96, 128];
/// Of a 35B-A3B model at three and a half bits.
const N_LAYERS: usize = 40;
const RECORD_BYTES: u64 = 1_350_000;

/// One machine.
#[derive(Clone, Copy)]
struct Point {
    mb_per_second: u64,
    tokens_per_second: f64,
    slots: usize,
    none_ms: f64,
    gated_ms: f64,
    oracle_ms: f64,
    /// Share of the stall that the oracle hides which is hidden; `None` when it hides next to nothing.
    hidden: Option<f64>,
    extra_bytes: f64,
}

impl Point {
    fn measure(trace: &Trace, mb_per_second: u64, rate: f64, slots: usize) -> Result<Self, RunError> {
        let disk =
            Disk { latency: Nanos::from_micros(100), depth: 2, ..Disk::of_rate(mb_per_second * 1_000_000) };
        let (policy, n_slots) = match slots {
            // Two tokens' worth of a layer, so that reads and guesses have somewhere to land.
            0 => (PolicyName::KeepNone, 4 * trace.top_k),
            _ => (PolicyName::default(), slots * N_LAYERS),
        };
        let replay = Replay {
            n_layers: N_LAYERS,
            policy,
            n_warm: 64,
            n_tokens: 256,
            ..Replay::of(trace, n_slots, RECORD_BYTES, disk, Compute::of_rate(rate))
        };
        let (none, gated, oracle) =
            (replay.on_demand(trace)?, replay.router_ahead(trace)?, replay.oracle(trace)?);
        let stall = |report: &forerun_sim::ReplayReport| report.stall().as_millis_f64();
        let could = stall(&none) - stall(&oracle);
        Ok(Self {
            mb_per_second,
            tokens_per_second: rate,
            slots,
            none_ms: none.ms_per_token(),
            gated_ms: gated.ms_per_token(),
            oracle_ms: oracle.ms_per_token(),
            hidden: (could > stall(&none) / 100.0).then(|| (stall(&none) - stall(&gated)) / could),
            extra_bytes: gated.extra_bytes(),
        })
    }

    fn print(&self) {
        let hidden = self.hidden.map_or_else(|| "-".to_owned(), |share| format!("{:.0}%", 100.0 * share));
        println!(
            "{:5.1}  {:5.0}  {:5}  {:8.2}  {:8.2}  {:8.2}  {:10.3}  {hidden:>6}  {:4.1}%",
            self.mb_per_second as f64 / 1e3,
            self.tokens_per_second,
            self.slots,
            self.none_ms,
            self.gated_ms,
            self.oracle_ms,
            self.gated_ms / self.none_ms,
            100.0 * self.extra_bytes,
        );
    }
}

fn main() -> Result<(), Failure> {
    let mut args = env::args().skip(1);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/traces/trace-docs");
    let path = args.next().unwrap_or_else(|| folder.to_owned());
    let trace = Trace::parse(&fs::read(format!("{path}.json"))?, &fs::read(format!("{path}.bin"))?)?;
    println!(" GB/s  tok/s  slots   none ms  gated ms  oracle ms  time ratio  hidden  extra");
    let mut points = Vec::new();
    for mb_per_second in MB_PER_SECOND {
        for rate in TOKENS_PER_SECOND {
            for slots in SLOTS {
                let point = Point::measure(&trace, mb_per_second, rate, slots)?;
                point.print();
                points.push(point);
            }
        }
    }
    let ratio = |point: &Point| point.gated_ms / point.none_ms;
    let worst = points.iter().map(ratio).fold(0.0, f64::max);
    let most_extra = points.iter().map(|point| point.extra_bytes).fold(0.0, f64::max);
    println!("worst time ratio {worst:.4}, most extra bytes {:.1}%", 100.0 * most_extra);
    args.next().map_or(Ok(()), |picture| draw(&points, &picture))
}

/// One panel a disk: time with guesses as a share of the time without, over slots; the oracle's in grey.
fn draw(points: &[Point], path: &str) -> Result<(), Failure> {
    let root = SVGBackend::new(path, (1_200, 720)).into_drawing_area();
    root.fill(&WHITE)?;
    let colours = [BLUE, GREEN, RED, BLACK];
    for (panel, mb_per_second) in root.split_evenly((2, 3)).iter().zip(MB_PER_SECOND) {
        let title = format!("{:.1} GB/s", mb_per_second as f64 / 1e3);
        let mut chart = ChartBuilder::on(panel)
            .caption(title, ("sans-serif", 18))
            .margin(8)
            .x_label_area_size(32)
            .y_label_area_size(40)
            .build_cartesian_2d(0.0..128.0, 0.5..1.1)?;
        let mut mesh = chart.configure_mesh();
        // Lines between the labelled ones are most of the picture's bytes.
        mesh.max_light_lines(0).x_desc("slots a layer").y_desc("time, of that without guesses").draw()?;
        for (rate, colour) in TOKENS_PER_SECOND.into_iter().zip(colours) {
            let of = move |ms: fn(&Point) -> f64| {
                let here = points.iter().filter(move |point| {
                    point.mb_per_second == mb_per_second && point.tokens_per_second == rate
                });
                here.map(move |point| (point.slots as f64, ms(point) / point.none_ms))
            };
            chart.draw_series(LineSeries::new(of(|point| point.oracle_ms), colour.mix(0.25)))?;
            let series =
                chart.draw_series(LineSeries::new(of(|point| point.gated_ms), colour.stroke_width(2)))?;
            series
                .label(format!("{rate:.0} tok/s in memory"))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .border_style(BLACK)
            .draw()?;
    }
    root.present()?;
    println!("drawn to {path}; pale lines are the oracle");
    Ok(())
}
