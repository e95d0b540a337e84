//! What is measured: rows, each adding one technique to those before it.

use std::fmt;

use forerun_decode::{bytes_text, parse_bytes};

use crate::args::Args;
use crate::peers::Keeping;

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

/// Who runs a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The program.
    Program,
    /// This program, with a part that knows what will come ([`crate::inside`]).
    Inside,
    /// llama.cpp.
    Peer(Keeping),
}

/// One line of a table.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) file: File,
    pub(crate) work: Work,
    pub(crate) by: By,
    /// Flags of `forerun run`, or words that name the part that knows.
    pub(crate) flags: Vec<String>,
    /// Budget in bytes; none where everything stays in memory.
    pub(crate) budget: Option<u64>,
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
pub(crate) fn on_demand(backend: &str) -> Row {
    decode(backend, "on demand, nothing kept", File::Plain, &[ON_DEMAND, ALONE, KEEP_NONE])
}

/// What no way of reading can beat: experts where the file is mapped, in memory and seen before. Backends that copy experts have a
/// slot for each instead, which is filled when it is first wanted. On the smaller file, which is the one that fits.
pub(crate) fn resident(args: &Args, backend: &str) -> Row {
    let file = if has_mixed(args) { File::Mixed } else { File::Plain };
    match backend {
        "cpu" => inside("everything in memory", file, &["resident"]),
        _ => decode(backend, "a slot for every expert", file, &[&["--io", "cached"]]),
    }
}

const PROMPT: &str = "a long prompt";
/// Of a thousand drafts, those that are right if those before them are. Of seven, 2.04 are accepted then on average, as of the
/// small model's trained drafter: the sum of the powers of 0.688, from the first to the seventh.
const ACCEPTED_PERMILLE: &str = "688";
const ON_DEMAND: &[&str] = &["--schedule", "on-demand"];
const ALONE: &[&str] = &["--lookahead", "0", "--predictor", "none"];
const KEEP_NONE: &[&str] = &["--slots", "0"];
const LRU: &[&str] = &["--policy", "lru"];

fn has_mixed(args: &Args) -> bool {
    args.synth.is_some() || args.mixed.is_some()
}

/// The ablation, a sweep over slots, other engines, the long prompt, and the ceilings.
pub(crate) fn rows(args: &Args, backend: &str, budget: u64) -> Vec<Row> {
    let whole = if has_mixed(args) { File::MixedPacked } else { File::Packed };
    let mut rows = ablation(args, backend, whole);
    for slots in &args.slots {
        let slots = slots.to_string();
        rows.push(decode(backend, &format!("{slots} experts a layer"), whole, &[&["--slots", &slots]]));
    }
    let has_peers = args.peers && backend == "cpu";
    if has_peers {
        rows.extend(beside(backend, whole.weights(), ""));
    }
    let ceiling = resident(args, backend);
    let mut long = vec![decode(backend, PROMPT, whole, &[])];
    if has_peers {
        long.extend(beside(backend, whole.weights(), &format!("{PROMPT}, ")));
    }
    let is_long = args.prefill > 0;
    if is_long {
        rows.extend(long.into_iter().map(|row| Row { work: Work::Prefill, ..row }));
    }
    for row in &mut rows {
        row.budget = Some(budget);
    }
    let name = format!("{PROMPT}, {}", ceiling.name);
    let long = Row { name, work: Work::Prefill, ..ceiling.clone() };
    rows.push(ceiling);
    rows.extend(Some(long).filter(|_| is_long));
    let is_wanted = |row: &Row| args.rows.is_empty() || args.rows.iter().any(|part| row.name.contains(part));
    rows.into_iter().filter(is_wanted).collect()
}

/// Each technique on top of those before it, and who knows what will come.
fn ablation(args: &Args, backend: &str, whole: File) -> Vec<Row> {
    let mut rows = vec![
        on_demand(backend),
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
        let flags = [flags.as_slice(), &computed_on(backend)].concat();
        rows.push(Row { flags, ..decode(backend, "+ drafts", whole, &[]) });
    }
    if backend != "cpu" {
        return rows;
    }
    if args.synth.is_some() {
        let share = ["drafts", "--permille", ACCEPTED_PERMILLE];
        rows.push(inside("+ drafts, as many as pay", whole, &share));
        rows.push(inside("+ drafts, always seven", whole, &[&share[..], &["--length", "7"]].concat()));
    }
    rows.push(inside("an oracle of one layer", whole, &["oracle"]));
    rows
}

/// Others on the file as downloaded, and the program on it in the same rounds.
fn beside(backend: &str, file: File, what: &str) -> Vec<Row> {
    let row = |name: &str, by| Row { by, ..decode(backend, &format!("{what}{name}"), file, &[]) };
    vec![
        row("as downloaded", By::Program),
        row("llama.cpp as it comes", By::Peer(Keeping::Usual)),
        row("llama.cpp, all mapped", By::Peer(Keeping::Mapped)),
    ]
}

/// A row that this program runs, on the CPU.
fn inside(name: &str, file: File, words: &[&str]) -> Row {
    let flags = words.iter().map(|&word| word.to_owned()).collect();
    Row { by: By::Inside, flags, ..decode("cpu", name, file, &[]) }
}

fn decode(backend: &str, name: &str, file: File, flags: &[&[&str]]) -> Row {
    let given = flags.iter().flat_map(|flags| flags.iter().map(|&flag| flag.to_owned()));
    let drafts = ["--draft".to_owned(), "none".to_owned()];
    let flags = given.chain(drafts).chain(computed_on(backend)).collect();
    let (name, by) = (name.into(), By::Program);
    Row { name, file, work: Work::Decode, by, flags, budget: None }
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

    fn names(list: &[&str]) -> Vec<String> {
        let args = Args::try_parse_from([&["bench"], list].concat()).unwrap();
        rows(&args, "cpu", 20 << 20).into_iter().map(|row| row.name).collect()
    }

    #[test]
    fn a_phone_reads_five_times_as_long_as_it_computes() {
        assert_eq!(phone_rate(566e6, 0.046), 2_264_000_000);
        assert_eq!(phone_rate(566e6, 0.092), 1_132_000_000);
    }

    #[test]
    fn rows_are_there_for_what_was_given() {
        let is_more = |name: &String| name.contains("mixed") || name.contains("drafts");
        assert!(!names(&[]).iter().any(is_more));
        let all = names(&["--model", "a", "--mixed", "b", "--draft", "ngram", "--slots", "0,8", "--peers"]);
        for part in ["mixed", "drafts", "0 experts", "8 experts", "oracle", "llama", PROMPT, "everything"] {
            assert!(all.iter().any(|name| name.contains(part)), "{part}: {all:?}");
        }
    }

    #[test]
    fn drafts_are_accepted_as_the_small_models_are() {
        let right: f64 = ACCEPTED_PERMILLE.parse::<f64>().unwrap() / 1e3;
        let accepted: f64 = (1..=7).map(|n| right.powi(n)).sum();
        assert!((accepted - 2.04).abs() < 0.01, "{accepted}");
    }

    #[test]
    fn rows_are_chosen_by_parts_of_their_names() {
        let names = names(&["--synth", "pico", "--peers", "--rows", "mixed,llama"]);
        assert_eq!(names.len(), 5, "{names:?}");
        assert!(names.iter().all(|name| name.contains("mixed") || name.contains("llama")));
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
