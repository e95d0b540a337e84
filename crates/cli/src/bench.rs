//! `forerun bench`: how fast a model reads a prompt and decodes.

mod ceiling;

use std::error::Error;
use std::io::{self, Write};

use forerun_decode::text::{TokenKind, Vocabulary};
use forerun_decode::{
    Bench, BenchEvent, Decision, DecodeError, Engine, Pass, Telemetry, TokenTraffic, bytes_text,
};
use forerun_model::{Nanos, TokenId};
use forerun_sim::Rng;
use serde::Serialize;

use crate::Outcome;
use crate::args::BenchArgs;
use crate::interrupt::Interrupt;
use crate::load::{engine_config, report, warm_up};
use crate::progress::{Bar, Unit};
use crate::say::say;
use ceiling::Ceiling;

/// Measures a model.
pub(crate) fn bench(args: &BenchArgs) -> Result<Outcome, Box<dyn Error>> {
    let interrupt = Interrupt::install()?;
    let quiet = args.model.quiet;
    let mut engine = Engine::open(&engine_config(&args.model)?)?;
    let decisions = [told(args)];
    if !quiet {
        report(&engine, &decisions);
    }
    // Before there are lists of so many tokens.
    let (need, context) =
        ((args.prompt as usize).saturating_add(args.tokens as usize), engine.plan().context);
    if need > context {
        return Err(DecodeError::BenchContext { need, context }.into());
    }
    let (prompt, decode) = tokens(args, engine.tokenizer().vocabulary());
    let resident_bytes = engine.resident_bytes();
    let mut bench = Bench::new(&mut engine, prompt, decode, args.repeat as usize)?;
    if !warm_up(bench.engine(), quiet, &interrupt) {
        return Ok(Outcome::Interrupted);
    }
    let bar = Bar::new("warming up", Unit::Passes, u64::from(args.repeat) + 1, quiet);
    while let Some(event) = bench.next()? {
        if let BenchEvent::Pass { n, .. } = event {
            bar.set(n as u64 + 1);
            bar.say("measuring".into());
            if n == 0 && !quiet {
                let (experts, resident) = (bytes_text(bench.warm_up_bytes()), bytes_text(resident_bytes));
                bar.above(|| {
                    say!("warmed up: {resident} of resident weights, {experts} of experts, in one pass");
                });
            }
        }
        if interrupt.is_set() {
            drop(bar);
            if !quiet {
                say!("interrupted after {} of {} passes", bench.passes().len(), args.repeat);
            }
            return Ok(Outcome::Interrupted);
        }
    }
    drop(bar);
    let mut telemetry = bench.telemetry();
    telemetry.decisions.extend(decisions);
    let figures = Figures {
        prefill: Rates::of(args.prompt, bench.passes(), |pass| pass.prefill),
        decode: Rates::of(args.tokens, bench.passes(), |pass| pass.decode),
        traffic: bench.engine().token_traffic(),
        warm_up_bytes: bench.warm_up_bytes(),
        ceiling: ceiling::measure(bench.engine()),
    };
    print(args, &figures, &telemetry)?;
    Ok(Outcome::Done)
}

fn told(args: &BenchArgs) -> Decision {
    let reason = "pseudo-random tokens; they use more different experts than a text would".into();
    Decision::new("tokens", format!("seed {}", args.seed), reason)
}

/// Ordinary tokens of the vocabulary, from the seed alone.
fn tokens(args: &BenchArgs, vocabulary: &Vocabulary) -> (Vec<TokenId>, Vec<TokenId>) {
    let ids = (0..).map(TokenId).take(vocabulary.len());
    let ordinary: Vec<_> = ids.filter(|&id| vocabulary.kind(id) == Some(TokenKind::Normal)).collect();
    let mut rng = Rng::new(args.seed);
    let mut take = |n: u32| (0..n).map(|_| ordinary[rng.index(ordinary.len())]).collect();
    (take(args.prompt), take(args.tokens))
}

/// All that is printed besides the telemetry.
struct Figures {
    prefill: Rates,
    decode: Rates,
    traffic: TokenTraffic,
    warm_up_bytes: u64,
    ceiling: Ceiling,
}

impl Figures {
    /// Bytes of weights a second that decoding reads, at the median.
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 53 bits")]
    fn weight_rate(&self) -> f64 {
        self.traffic.total() as f64 * self.decode.tokens_per_second
    }
}

/// Tokens a second over the passes.
#[derive(Clone, Copy, Debug, Serialize)]
struct Rates {
    /// Tokens of one pass.
    tokens: u32,
    /// The median; of two middle ones the mean.
    tokens_per_second: f64,
    min: f64,
    max: f64,
}

impl Rates {
    /// Rates of the passes, at least one.
    fn of(tokens: u32, passes: &[Pass], time: fn(&Pass) -> Nanos) -> Self {
        let rate = |pass| f64::from(tokens) * 1e3 / time(pass).as_millis_f64().max(1e-6);
        let mut rates: Vec<f64> = passes.iter().map(rate).collect();
        rates.sort_unstable_by(f64::total_cmp);
        let (low, high) = (rates[(rates.len() - 1) / 2], rates[rates.len() / 2]);
        let tokens_per_second = f64::midpoint(low, high);
        Self { tokens, tokens_per_second, min: rates[0], max: rates[rates.len() - 1] }
    }
}

/// What `--json` prints. Counts and times of the telemetry are those of all passes together.
#[derive(Serialize)]
struct Output<'a> {
    prefill: Rates,
    decode: Rates,
    repeats: u32,
    seed: u64,
    /// Bytes of experts that were read before the passes.
    warm_up_bytes: u64,
    /// Bytes of weights that a decoded token reads.
    token_bytes_dense: u64,
    token_bytes_experts: u64,
    /// The two together, at the median rate.
    weight_bytes_per_second: f64,
    memory_read: MemoryRead,
    #[serde(flatten)]
    telemetry: &'a Telemetry,
}

/// A plain read of the resident weights.
#[derive(Serialize)]
struct MemoryRead {
    bytes_per_second: f64,
    bytes: u64,
    threads: usize,
}

fn print(args: &BenchArgs, figures: &Figures, telemetry: &Telemetry) -> io::Result<()> {
    let Figures { prefill, decode, traffic, ceiling, .. } = *figures;
    let Ceiling { bytes_per_second, resident_bytes, n_threads } = ceiling;
    let mut stdout = io::stdout().lock();
    if args.json {
        let output = Output {
            prefill,
            decode,
            repeats: args.repeat,
            seed: args.seed,
            warm_up_bytes: figures.warm_up_bytes,
            token_bytes_dense: traffic.dense,
            token_bytes_experts: traffic.experts,
            weight_bytes_per_second: figures.weight_rate(),
            memory_read: MemoryRead { bytes_per_second, bytes: resident_bytes, threads: n_threads },
            telemetry,
        };
        serde_json::to_writer(&mut stdout, &output)?;
        return stdout.write_all(b"\n");
    }
    writeln!(stdout, "{:<10}{:>8}{:>12}{:>24}", "", "tokens", "tok/s", "min .. max")?;
    for (name, rates) in [("prefill", prefill), ("decode", decode)] {
        let Rates { tokens, tokens_per_second, min, max } = rates;
        let range = format!("{min:.2} .. {max:.2}");
        writeln!(stdout, "{name:<10}{tokens:>8}{tokens_per_second:>12.2}{range:>24}")?;
    }
    let (dense, experts) = (bytes_text(traffic.dense), bytes_text(traffic.experts));
    let rate = figures.weight_rate() / 1e9;
    writeln!(stdout, "weights read per decoded token: {dense} dense, {experts} of experts; {rate:.2} GB/s")?;
    let (read, resident) = (bytes_per_second / 1e9, bytes_text(resident_bytes));
    let threads = if n_threads == 1 { "1 thread".into() } else { format!("{n_threads} threads") };
    writeln!(stdout, "a plain read of the {resident} of resident weights, {threads}: {read:.2} GB/s")?;
    let lent = match telemetry.lent {
        0 => String::new(),
        n => format!(" ({n} used where they are mapped, so reads of the page cache aren't counted)"),
    };
    writeln!(
        stdout,
        "{:.0}% of experts in memory{lent}, {} read in {} reads, {:.0} ms waiting for them, over {} passes",
        telemetry.hit_rate * 100.0,
        bytes_text(telemetry.bytes_demand + telemetry.bytes_guess),
        telemetry.reads,
        telemetry.stall_ms,
        args.repeat
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_or_between_the_middle_two() {
        let pass = |ms| Pass { prefill: Nanos::from_millis(ms), decode: Nanos::default() };
        let check = |times: &[u64], expect: [f64; 3]| {
            let passes: Vec<_> = times.iter().copied().map(pass).collect();
            let rates = Rates::of(100, &passes, |pass| pass.prefill);
            assert_eq!([rates.min, rates.tokens_per_second, rates.max], expect, "{times:?}");
        };
        check(&[1000], [100.0, 100.0, 100.0]);
        check(&[1000, 100, 500], [100.0, 200.0, 1000.0]);
        check(&[1000, 500], [100.0, 150.0, 200.0]);
    }
}
