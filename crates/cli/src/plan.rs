//! `forerun plan`: what speed to expect of a model, a budget and a disk, and which budget to choose.
//!
//! Nothing of the model runs: its header says what experts weigh, the engine's own memory plan says how many fit a
//! budget, and the scheduler is replayed over a recorded routing with the times of a disk and a computer.

mod advice;
mod assume;

use std::error::Error;
use std::io::{self, Write};

use forerun_decode::{DecodeError, MemoryPlan, Outlook, bytes_text};
use forerun_sim::Replay;
use serde::Serialize;

use crate::Outcome;
use crate::args::PlanArgs;
use crate::load::engine_config;

use advice::Advice;
use assume::{Assumed, Assumption};

/// Budgets are looked at where the slots hold these shares of all experts, in 32ths.
const SHARES: [u64; 10] = [0, 1, 2, 4, 8, 12, 16, 20, 24, 32];
/// Tokens that are replayed to fill the slots, and those that count.
const N_WARM: usize = 256;
const N_TOKENS: usize = 512;

/// What is expected of one budget.
#[derive(Clone, Debug, Serialize)]
struct Row {
    /// Memory of the whole program.
    budget_bytes: u64,
    /// Experts that it holds, of all layers together.
    slots: usize,
    /// As an average over layers.
    slots_per_layer: f64,
    hit_rate: f64,
    bytes_per_token: f64,
    stall_ms_per_token: f64,
    tokens_per_second: f64,
    /// Without guesses.
    tokens_per_second_on_demand: f64,
    /// If the next layer's experts were always known one layer ahead.
    tokens_per_second_at_most: f64,
    overlap_efficiency: f64,
}

/// Plans.
pub(crate) fn plan(args: &PlanArgs) -> Result<Outcome, Box<dyn Error>> {
    let mut config = engine_config(&args.model)?;
    // The disk is a given, or was measured before.
    (config.probe, config.budget_bytes) = (None, None);
    let outlook = Outlook::new(config)?;
    let assumed = Assumed::new(args, &outlook)?;
    let mut rows = Vec::new();
    for budget in budgets(&outlook, args.model.memory)? {
        rows.push(row(&outlook, &assumed, budget)?);
    }
    let advice = Advice::of(&rows, args.model.memory, &assumed);
    let mut stdout = io::stdout().lock();
    if args.json {
        let layers = outlook.shape().n_layers();
        let output = Output { layers, assumed: &assumed.said, rows: &rows, advice: &advice };
        serde_json::to_writer(&mut stdout, &output)?;
        stdout.write_all(b"\n")?;
    } else {
        write(&mut stdout, &assumed.said, &rows, &advice)?;
    }
    Ok(Outcome::Done)
}

/// Budgets from the smallest that works to one that holds every expert, and the user's own.
fn budgets(outlook: &Outlook, own: Option<u64>) -> Result<Vec<u64>, DecodeError> {
    let (smallest, whole) = outlook.range()?;
    if let Some(budget) = own {
        // An impossible wish is an error, not a row that is missing.
        outlook.plan(Some(budget))?;
    }
    let span = whole - smallest;
    let step = span.div_ceil(64).next_power_of_two().clamp(1 << 20, 1 << 28);
    let shares = SHARES.iter().map(|share| (smallest + span / 32 * share).next_multiple_of(step));
    let mut budgets: Vec<u64> = shares.chain(own).collect();
    budgets.sort_unstable();
    budgets.dedup();
    Ok(budgets)
}

fn row(outlook: &Outlook, assumed: &Assumed, budget: u64) -> Result<Row, Box<dyn Error>> {
    let plan = outlook.plan(Some(budget))?;
    let n_slots = slots(&plan);
    let shape = outlook.shape();
    let replay = Replay {
        n_layers: shape.n_layers(),
        // The trace's experts share the slots as the model's own would.
        n_slots: n_slots * assumed.trace.n_experts / shape.moe.n_experts,
        policy: outlook.policy(),
        lookahead: outlook.lookahead(assumed.disk.transfer(assumed.record_bytes)),
        n_warm: N_WARM,
        n_tokens: N_TOKENS,
        ..Replay::of(&assumed.trace, 0, assumed.record_bytes, assumed.disk, assumed.compute)
    };
    let on_demand = replay.on_demand(&assumed.trace)?;
    let report = replay.run(&assumed.trace, outlook.predictor())?;
    let at_most = replay.oracle(&assumed.trace)?;
    let fastest = [on_demand, report, at_most].map(|report| report.tokens_per_second());
    let fastest = fastest.into_iter().fold(0.0, f64::max);
    #[expect(clippy::cast_precision_loss, reason = "few slots, layers and tokens")]
    let (slots_per_layer, n_tokens) = (n_slots as f64 / shape.n_layers() as f64, N_TOKENS as f64);
    Ok(Row {
        budget_bytes: budget,
        slots: n_slots,
        slots_per_layer,
        hit_rate: report.stats.hit_rate(),
        bytes_per_token: report.bytes_per_token(),
        stall_ms_per_token: report.stall().as_millis_f64() / n_tokens,
        tokens_per_second: report.tokens_per_second(),
        tokens_per_second_on_demand: on_demand.tokens_per_second(),
        tokens_per_second_at_most: fastest,
        overlap_efficiency: report.overlap_efficiency(),
    })
}

/// Experts that are in memory, in slots or where they are mapped.
fn slots(plan: &MemoryPlan) -> usize {
    if plan.mapped > 0 { plan.n_experts } else { plan.n_slots }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Output<'a> {
    layers: usize,
    assumed: &'a [Assumption],
    rows: &'a [Row],
    advice: &'a Advice,
}

fn write(out: &mut impl Write, said: &[Assumption], rows: &[Row], advice: &Advice) -> io::Result<()> {
    for Assumption { what, value, reason } in said {
        writeln!(out, "{what}: {value} ({reason})")?;
    }
    writeln!(out, "\n    memory  slots/layer   hits  read/token  waiting   tok/s  no guesses  at most")?;
    for row in rows {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes for people")]
        let read = bytes_text(row.bytes_per_token as u64);
        writeln!(
            out,
            "{:>10}  {:>11.1}  {:>4.0}%  {read:>10}  {:>4.0} ms  {:>6.2}  {:>10.2}  {:>7.2}{}",
            bytes_text(row.budget_bytes),
            row.slots_per_layer,
            100.0 * row.hit_rate,
            row.stall_ms_per_token,
            row.tokens_per_second,
            row.tokens_per_second_on_demand,
            row.tokens_per_second_at_most,
            if row.budget_bytes == advice.memory { "  <" } else { "" },
        )?;
    }
    writeln!(out, "\nat most: if the next layer's experts were always known one layer ahead")?;
    writeln!(out, "--memory {} ({})", bytes_text(advice.memory), advice.reason)
}
