//! What is measured: rows, each adding one technique to those before it, under budgets, disks and backends.

use std::fmt;

use forerun_decode::{bytes_text, parse_bytes};

use crate::args::Args;

/// Milliseconds that the published measurement computes for a token, and that it reads for one on demand: what 21.7 tok/s
/// resident and 3.38 tok/s on demand imply when the two follow each other.
const PUBLISHED_COMPUTE_MS: f64 = 46.0;
const PUBLISHED_READ_MS: f64 = 250.0;

/// Which file a row runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum File {
    /// The usual quantisation as downloaded.
    Plain,
    /// The same, packed.
    Packed,
    /// Experts in fewer bits, as downloaded.
    Mixed,
    /// The same, packed.
    MixedPacked,
}

impl File {
    /// The file with the same weights as downloaded.
    pub(crate) fn weights(self) -> Self {
        match self {
            Self::Plain | Self::Packed => Self::Plain,
            Self::Mixed | Self::MixedPacked => Self::Mixed,
        }
    }
}

/// What a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A short prompt, then tokens.
    Decode,
    /// A long prompt, then one token.
    Prefill,
}

/// One line of a table.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) file: File,
    pub(crate) work: Work,
    /// Flags of `forerun run`.
    pub(crate) flags: Vec<String>,
    /// Budget in bytes; none where everything stays in memory.
    pub(crate) budget: Option<u64>,
    /// Whether a run that isn't counted comes first, to bring the file into memory.
    pub(crate) is_warmed: bool,
}

/// The most that the disk is let give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    None,
    /// Bytes a second.
    Rate(u64),
    /// As fast, against computing, as in the published measurement.
    Phone,
}

/// A table: a backend, a budget and a disk.
#[derive(Clone, Debug)]
pub(crate) struct Regime {
    pub(crate) name: String,
    pub(crate) backend: String,
    pub(crate) budget: u64,
    pub(crate) limit: Limit,
    pub(crate) rows: Vec<Row>,
}

/// All that is measured.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) regimes: Vec<Regime>,
    rounds: u32,
    by_file: bool,
}

impl Plan {
    pub(crate) fn new(args: &Args) -> Self {
        let mut regimes = Vec::new();
        for backend in args.backends() {
            for &limit in &args.disk_limit {
                for budget in args.budgets() {
                    let name = format!("{backend}, {}{limit}", bytes_text(budget));
                    let rows = rows(args, &backend, budget);
                    regimes.push(Regime { name, backend: backend.clone(), budget, limit, rows });
                }
            }
        }
        Self { regimes, rounds: args.rounds, by_file: args.one_at_a_time }
    }

    /// All runs: in each regime all rows in turn, round after round; file after file where only one is kept.
    pub(crate) fn order(&self) -> Vec<(&Regime, u32, &Row)> {
        let of = |keep: fn(&Row, File) -> bool, file| {
            self.regimes.iter().flat_map(move |regime| {
                let rows = move || regime.rows.iter().filter(move |row| keep(row, file));
                (0..self.rounds).flat_map(move |round| rows().map(move |row| (regime, round, row)))
            })
        };
        if !self.by_file {
            return of(|_, _| true, File::Plain).collect();
        }
        let files = [File::Plain, File::Packed, File::Mixed, File::MixedPacked];
        files.into_iter().flat_map(|file| of(|row, file| row.file == file, file)).collect()
    }
}

/// Reads a disk to stand for.
pub(crate) fn parse_limit(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit::None),
        "phone" => Ok(Limit::Phone),
        rate => match rate.strip_suffix("/s").map(parse_bytes) {
            Some(Ok(rate)) if rate > 0 => Ok(Limit::Rate(rate)),
            _ => Err(format!("`{text}` is neither none, phone nor a rate such as 1GB/s")),
        },
    }
}

/// As a regime's name ends with it.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Rate(rate) => write!(f, ", a disk of {}/s", bytes_text(*rate)),
            Self::Phone => f.write_str(", a disk as a phone's"),
        }
    }
}

/// Bytes a second at which `bytes_per_token` take as many times as long as `token_seconds` as the published figures say.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate, in whole bytes a second"
)]
pub(crate) fn phone_rate(bytes_per_token: f64, token_seconds: f64) -> u64 {
    let read_seconds = token_seconds * (PUBLISHED_READ_MS / PUBLISHED_COMPUTE_MS);
    (bytes_per_token / read_seconds) as u64
}

/// Experts read when the router names them, each a wait of its own, none kept beyond the step.
pub(crate) fn on_demand(backend: &str, budget: u64) -> Row {
    Row {
        budget: Some(budget),
        ..decode(backend, "on demand, nothing kept", File::Plain, &[ON_DEMAND, ALONE, KEEP_NONE])
    }
}

/// What no way of reading can beat: experts where the file is mapped, and in memory already. Backends that copy experts have a
/// slot for each instead, which is filled when it is first wanted. On the smaller file, which is the one that fits.
pub(crate) fn resident(args: &Args, backend: &str) -> Row {
    let file = if has_mixed(args) { File::Mixed } else { File::Plain };
    match backend {
        "cpu" => {
            Row { is_warmed: true, ..decode(backend, "everything in memory", file, &[&["--io", "mmap"]]) }
        }
        _ => decode(backend, "a slot for every expert", file, &[&["--io", "cached"]]),
    }
}

const PROMPT: &str = "a long prompt";
const ON_DEMAND: &[&str] = &["--schedule", "on-demand"];
const ALONE: &[&str] = &["--lookahead", "0", "--predictor", "none"];
const KEEP_NONE: &[&str] = &["--slots", "0"];
const LRU: &[&str] = &["--policy", "lru"];

fn has_mixed(args: &Args) -> bool {
    args.synth.is_some() || args.mixed.is_some()
}

/// The ablation, a sweep over slots, the long prompt, and the ceiling.
fn rows(args: &Args, backend: &str, budget: u64) -> Vec<Row> {
    let whole = if has_mixed(args) { File::MixedPacked } else { File::Packed };
    let mut rows = vec![
        on_demand(backend, budget),
        decode(backend, "+ cache", File::Plain, &[ON_DEMAND, ALONE, LRU]),
        decode(backend, "+ ready first", File::Plain, &[ALONE, LRU]),
        decode(backend, "+ lookahead", File::Plain, &[LRU]),
        decode(backend, "+ cache that knows tokens alike", File::Plain, &[]),
        decode(backend, "+ one piece an expert", File::Packed, &[]),
    ];
    if has_mixed(args) {
        rows.push(decode(backend, "+ mixed precision", File::MixedPacked, &[]));
    }
    if let Some(drafter) = &args.draft {
        let flags = ["--draft".into(), drafter.clone()];
        rows.push(Row {
            flags: [flags.as_slice(), &computed_on(backend)].concat(),
            ..decode(backend, "+ drafts", whole, &[])
        });
    }
    for slots in &args.slots {
        let slots = slots.to_string();
        rows.push(decode(backend, &format!("{slots} experts a layer"), whole, &[&["--slots", &slots]]));
    }
    if args.prefill > 0 {
        rows.push(Row { work: Work::Prefill, ..decode(backend, PROMPT, whole, &[]) });
    }
    for row in &mut rows {
        row.budget = Some(budget);
    }
    rows.push(resident(args, backend));
    rows
}

fn decode(backend: &str, name: &str, file: File, flags: &[&[&str]]) -> Row {
    let given = flags.iter().flat_map(|flags| flags.iter().map(|&flag| flag.to_owned()));
    let drafts = ["--draft".to_owned(), "none".to_owned()];
    let flags = given.chain(drafts).chain(computed_on(backend)).collect();
    Row { name: name.into(), file, work: Work::Decode, flags, budget: None, is_warmed: false }
}

/// Flags that choose a backend.
fn computed_on(backend: &str) -> Vec<String> {
    let flags: &[&str] = match backend {
        "cpu" => &[],
        "candle" => &["--backend", "candle", "--device", "cpu"],
        "cuda" => &["--backend", "candle", "--device", "cuda:0"],
        _ => &["--backend", "candle", "--device", "metal:0"],
    };
    flags.iter().map(|&flag| flag.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn plan(list: &[&str]) -> Plan {
        Plan::new(&Args::try_parse_from([&["bench"], list].concat()).unwrap())
    }

    #[test]
    fn rounds_take_all_rows_in_turn() {
        let plan = plan(&["--rounds", "2", "--prefill", "0", "--backend", "cpu"]);
        let n = plan.regimes[0].rows.len();
        let order = plan.order();
        assert_eq!(order.len(), 2 * n);
        assert!(order[..n].iter().all(|(_, round, _)| *round == 0) && order[n].1 == 1);
        assert_eq!(order[0].2.name, order[n].2.name);
    }

    #[test]
    fn one_file_at_a_time_is_done_in_all_regimes_before_the_next() {
        let plan =
            plan(&["--synth", "pico", "--one-at-a-time", "--memory", "20MiB,30MiB", "--backend", "cpu"]);
        let order = plan.order();
        assert_eq!(order.len(), 2 * 3 * plan.regimes[0].rows.len());
        let mut files: Vec<_> = order.iter().map(|(_, _, row)| row.file).collect();
        files.dedup();
        assert_eq!(files, [File::Plain, File::Packed, File::Mixed, File::MixedPacked]);
    }

    #[test]
    fn a_phone_reads_five_times_as_long_as_it_computes() {
        assert_eq!(phone_rate(566e6, 0.046), 2_264_000_000);
        assert_eq!(phone_rate(566e6, 0.092), 1_132_000_000);
    }

    #[test]
    fn rows_are_there_for_what_was_given() {
        let names = |list: &[&str]| -> Vec<String> {
            plan(list).regimes[0].rows.iter().map(|row| row.name.clone()).collect()
        };
        assert!(
            !names(&["--backend", "cpu"])
                .iter()
                .any(|name| name.contains("mixed") || name.contains("drafts"))
        );
        let all = names(&[
            "--model",
            "a",
            "--mixed",
            "b",
            "--draft",
            "ngram",
            "--slots",
            "0,8",
            "--backend",
            "cpu",
        ]);
        for part in ["mixed", "drafts", "0 experts", "8 experts", PROMPT, "everything"] {
            assert!(all.iter().any(|name| name.contains(part)), "{part}: {all:?}");
        }
    }

    #[test]
    fn limits_are_read_as_the_program_reads_them() {
        assert_eq!(parse_limit("none"), Ok(Limit::None));
        assert_eq!(parse_limit("phone"), Ok(Limit::Phone));
        assert_eq!(parse_limit("1GB/s"), Ok(Limit::Rate(1_000_000_000)));
        for wrong in ["", "fast", "1GB", "0B/s", "-1GB/s"] {
            assert!(parse_limit(wrong).unwrap_err().contains("such as 1GB/s"), "{wrong}");
        }
    }
}
