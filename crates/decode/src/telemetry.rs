//! Honest numbers of one request: where its time and bytes went.

use std::borrow::Cow;
use std::io::{BufRead, BufReader};

use serde::Serialize;

use crate::memory_plan::MemoryPlan;

/// Something that was decided automatically.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// What was to be decided.
    pub what: Cow<'static, str>,
    /// What it became.
    pub choice: String,
    /// Why.
    pub reason: String,
}

impl Decision {
    /// `what` became `choice`, for `reason`.
    pub fn new(what: impl Into<Cow<'static, str>>, choice: impl ToString, reason: String) -> Self {
        Self { what: what.into(), choice: choice.to_string(), reason }
    }
}

/// Figures of one request; times in milliseconds, sizes in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Telemetry {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Time to read those that weren't held already.
    pub prompt_ms: f64,
    /// Tokens of the prompt that the session held already.
    pub prompt_reused_tokens: usize,
    /// Tokens generated.
    pub decode_tokens: usize,
    /// Tokens that a decode step read and kept, on average: 1 without drafts.
    pub tokens_per_step: f64,
    /// Tokens that were guessed and verified.
    pub draft_tokens: usize,
    /// Those of `draft_tokens` that the model said too.
    pub accepted_tokens: usize,
    /// Time spent on guessing them.
    pub draft_ms: f64,
    /// Time from the end of the prompt to the last token.
    pub decode_ms: f64,
    /// Tokens that decode steps read per second of `decode_ms`.
    pub tokens_per_second: f64,
    /// Bytes of experts that were read because a router asked.
    pub bytes_demand: u64,
    /// Bytes of experts that were read on a guess.
    pub bytes_guess: u64,
    /// Those of `bytes_guess` that no router asked for.
    pub bytes_wasted: u64,
    /// Bytes of experts that decode steps read, those in vain among them; the rest was read for the prompt.
    pub bytes_decode: u64,
    /// Those of `bytes_decode` that were used.
    pub bytes_decode_used: u64,
    /// Reads handed to the system.
    pub reads: u64,
    /// Those of `reads` that brought several experts at once.
    pub merged_reads: u64,
    /// Most bytes a second that the disk was let give; `null` for all it has.
    pub disk_limit: Option<u64>,
    /// Bytes a second that the disk gave when it was probed; `null` when it wasn't.
    pub disk_rate: Option<u64>,
    /// Experts read that had been read before.
    pub experts_again: u64,
    /// Share of wanted experts that were in a slot, or used where they are mapped.
    pub hit_rate: f64,
    /// Wanted experts that were used where they are mapped. What the system read for them is in no count here.
    pub lent: u64,
    /// Share of the experts that had to be read whose reading a guess had begun.
    pub guess_recall: f64,
    /// Share of the guesses that were read which a router wanted.
    pub guess_precision: f64,
    /// Time spent on asking routers ahead of their turn.
    pub guess_ms: f64,
    /// The larger of the computing of the decode steps and the time that the disk takes for the bytes that they used, as a
    /// share of their time: 1 is what no schedule of the same bytes can beat. `null` when the disk's rate isn't known.
    pub overlap_efficiency: Option<f64>,
    /// Time that the token loop waited for experts.
    pub stall_ms: f64,
    /// The rest of the token loop's time.
    pub compute_ms: f64,
    /// Where the memory goes.
    pub memory: Memory,
    /// Bytes of this process that the system swapped out; `null` where it doesn't say.
    pub swap_bytes: Option<u64>,
    /// What was decided automatically, and why.
    pub decisions: Vec<Decision>,
}

/// The memory plan, and what was really used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// The budget; `null` without one.
    pub budget: Option<u64>,
    /// The process's high-water mark without the program's text and an embedded model; `null` where the system
    /// doesn't say.
    pub peak: Option<u64>,
    /// Resident tensors.
    pub dense: u64,
    /// Copies of resident tensors that the backend makes.
    pub copies: u64,
    /// Keys and values.
    pub kv: u64,
    /// Recurrent states.
    pub state: u64,
    /// Recurrent states that are kept to go back to.
    pub checkpoints: u64,
    /// Conversations that are kept without a sequence of their own.
    pub prefixes: u64,
    /// Grammars that answers keep to.
    pub grammars: u64,
    /// Connections and requests of a server.
    pub server: u64,
    /// The drafter, and what it is shown.
    pub drafter: u64,
    /// The conversation's text and tokens.
    pub conversation: u64,
    /// Tables of slots and experts, and a step's routing.
    pub tables: u64,
    /// Sums of the matrices' inputs.
    pub sums: u64,
    /// Compute threads.
    pub threads: u64,
    /// Experts that are used where they are mapped.
    pub mapped: u64,
    /// Expert slots.
    pub slots: u64,
    /// Buffers of a step, and logits.
    pub scratch: u64,
    /// Vocabulary and file header.
    pub text: u64,
    /// Read buffers and threads.
    pub io: u64,
    /// The process itself.
    pub runtime: u64,
}

impl Memory {
    /// The lines of `plan`, with the peak of `process`.
    pub fn of(plan: &MemoryPlan, process: Option<Process>) -> Self {
        Self {
            budget: plan.budget,
            peak: process.map(|p| p.peak_bytes.saturating_sub(p.program_bytes)),
            dense: plan.dense,
            kv: plan.kv,
            state: plan.state,
            checkpoints: plan.checkpoints,
            copies: plan.copies,
            prefixes: plan.prefixes,
            grammars: plan.grammars,
            server: plan.server,
            drafter: plan.drafter,
            conversation: plan.conversation,
            tables: plan.tables,
            sums: plan.sums,
            threads: plan.threads,
            mapped: plan.mapped,
            slots: plan.slots,
            scratch: plan.scratch,
            text: plan.text,
            io: plan.io,
            runtime: plan.runtime,
        }
    }
}

/// What the system says of this process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// High-water mark of resident memory.
    pub peak_bytes: u64,
    /// The program's text, and those pages of its constants (an embedded model is one) that are resident.
    pub program_bytes: u64,
    /// Swapped out.
    pub swap_bytes: u64,
}

impl Process {
    /// The figures now; `None` on systems without `/proc`.
    pub fn read() -> Option<Self> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let program = std::fs::read_link("/proc/self/exe").unwrap_or_default();
        let maps = std::fs::File::open("/proc/self/smaps").map(BufReader::new).ok()?;
        Self::parse(&status, maps, &program.to_string_lossy())
    }

    fn parse(status: &str, maps: impl BufRead, program: &str) -> Option<Self> {
        Some(Self {
            peak_bytes: kib_field(status, "VmHWM")?,
            program_bytes: kib_field(status, "VmExe")? + constants_bytes(maps, program),
            swap_bytes: kib_field(status, "VmSwap").unwrap_or(0),
        })
    }
}

fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Resident bytes of the program's read-only mappings. A mapping's first line is `range perms offset device inode
/// path`; fields follow on lines of their own.
fn constants_bytes(maps: impl BufRead, program: &str) -> u64 {
    let mut counts = false;
    let mut bytes = 0;
    for line in maps.lines().map_while(Result::ok) {
        let mut words = line.split_ascii_whitespace();
        let is_head = words.next().is_some_and(|range| range.contains('-') && !range.ends_with(':'));
        if is_head {
            counts = words.next() == Some("r--p") && !program.is_empty() && line.ends_with(program);
        } else if counts && let Some(rss) = kib_field(&line, "Rss") {
            bytes += rss;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_figures_are_read() {
        let status =
            "Name:\tx\nVmPeak:\t  99 kB\nVmHWM:\t   2048 kB\nVmExe:\t    16 kB\nVmSwap:\t       4 kB\n";
        let maps = "55-56 r--p 0 fe:00 54 /bin/x\nSize: 9 kB\nRss:  8 kB\n56-57 r-xp 0 fe:00 54 /bin/x\nRss: 12 kB\n\
                    57-58 rw-p 0 0 0\nRss: 3 kB\n7f-80 r--p 0 fe:00 5 /lib/y\nRss: 4 kB\n";
        let want = Process { peak_bytes: 2 << 20, program_bytes: 24 << 10, swap_bytes: 4096 };
        assert_eq!(Process::parse(status, maps.as_bytes(), "/bin/x"), Some(want));
        assert_eq!(Process::parse("Name:\tx\n", maps.as_bytes(), "/bin/x"), None);
    }
}
