//! Honest numbers of one request: where its time and bytes went.

use serde::Serialize;

use crate::memory_plan::MemoryPlan;

/// Something that was decided automatically.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// What was to be decided.
    pub what: &'static str,
    /// What it became.
    pub choice: String,
    /// Why.
    pub reason: String,
}

impl Decision {
    /// `what` became `choice`, for `reason`.
    pub fn new(what: &'static str, choice: impl ToString, reason: String) -> Self {
        Self { what, choice: choice.to_string(), reason }
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
    /// Time from the end of the prompt to the last token.
    pub decode_ms: f64,
    /// Decode steps per second of `decode_ms`.
    pub tokens_per_second: f64,
    /// Bytes of experts that were read because a router asked.
    pub bytes_demand: u64,
    /// Bytes of experts that were read on a guess.
    pub bytes_guess: u64,
    /// Those of `bytes_guess` that no router asked for.
    pub bytes_wasted: u64,
    /// Reads handed to the system.
    pub reads: u64,
    /// Experts read that had been read before.
    pub experts_again: u64,
    /// Share of wanted experts that were in a slot.
    pub hit_rate: f64,
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
    /// The process's high-water mark without the program's text; `null` where the system doesn't say.
    pub peak: Option<u64>,
    /// Resident tensors.
    pub dense: u64,
    /// Keys and values.
    pub kv: u64,
    /// Recurrent states.
    pub state: u64,
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
    /// The lines of `plan`, with the peak as it is now.
    pub fn of(plan: &MemoryPlan) -> Self {
        Self {
            budget: plan.budget,
            peak: Process::read().map(|p| p.peak_bytes.saturating_sub(p.text_bytes)),
            dense: plan.dense,
            kv: plan.kv,
            state: plan.state,
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
    /// The program's text.
    pub text_bytes: u64,
    /// Swapped out.
    pub swap_bytes: u64,
}

impl Process {
    /// The figures now; `None` on systems without `/proc`.
    pub fn read() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/self/status").ok()?)
    }

    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            Some(kib * 1024)
        };
        Some(Self {
            peak_bytes: field("VmHWM")?,
            text_bytes: field("VmExe")?,
            swap_bytes: field("VmSwap").unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_figures_are_read() {
        let status =
            "Name:\tx\nVmPeak:\t  99 kB\nVmHWM:\t   2048 kB\nVmExe:\t    16 kB\nVmSwap:\t       4 kB\n";
        let want = Process { peak_bytes: 2 << 20, text_bytes: 16 << 10, swap_bytes: 4096 };
        assert_eq!(Process::parse(status), Some(want));
        assert_eq!(Process::parse("Name:\tx\n"), None);
    }
}
