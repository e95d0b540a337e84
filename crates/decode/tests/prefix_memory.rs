//! Kept conversations stay within their line of the plan, and the process within the plan.
//!
//! The only test of its file, so that the high-water mark is its own.

#![cfg(target_os = "linux")]

mod support;

use forerun_decode::config::CheckpointConfig;
use forerun_decode::{
    BackendChoice, Batch, Engine, EngineConfig, IoChoice, PrefixConfig, PrefixDisk, Process,
};
use support::conversations::{how, say, turn};
use support::{config, fixture};

const MIB: u64 = 1 << 20;

#[test]
fn kept_conversations_stay_within_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    let base = config(&fixture("pico-q4_k_m.gguf"), BackendChoice::Cpu);
    let checkpoints = CheckpointConfig { n_max: 1, every: None, is_asked: true };
    let config = EngineConfig {
        io: IoChoice::Pread,
        budget_bytes: Some(48 * MIB),
        context: Some(600),
        checkpoints,
        prefix_bytes: 20 * MIB,
        ..base
    };
    let disk = PrefixDisk { folder: folder.path().to_owned(), bytes_max: 8 * MIB, write_bytes_max: 64 * MIB };
    let engine = Engine::open(&config).unwrap();
    let mut batch = Batch::with_prefixes(engine, PrefixConfig { disk: Some(disk) }).unwrap();
    // The high-water mark begins anew: opening a file has one of its own.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let mut prompts: Vec<_> = (0..16).map(|i| turn(i, 300)).collect();
    for _ in 0..2 {
        for prompt in &mut prompts {
            let said = say(&mut batch, prompt, &how(1, 2));
            prompt.extend(said.tokens.iter().chain(&turn(7, 20)));
        }
    }
    let stats = batch.prefix_stats();
    let total = batch.engine().plan().total();
    assert!(stats.bytes > 12 * MIB && stats.bytes <= 20 * MIB, "{stats:?}");
    assert!(stats.hits + stats.disk.hits > 0, "{stats:?}");
    assert!(total <= 48 * MIB);
    let process = Process::read().unwrap();
    let peak = process.peak_bytes - process.program_bytes;
    assert!(peak <= total, "peak {peak} of {total}\n{}", batch.engine().plan());
}
