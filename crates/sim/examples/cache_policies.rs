//! What each cache policy makes of the recorded traces, beside what could be reached: two Markdown tables.
//!
//! `cargo run --release -p forerun-sim --example cache_policies`

#![expect(clippy::print_stdout, reason = "an example talks")]

use std::path::PathBuf;

use forerun_scheduler::PolicyName;
use forerun_sim::Trace;
use forerun_sim::hits::hits;
use forerun_sim::routing_stats::{belady_hits, lru_hits, mean, percent_of_gap};

/// Slots per layer for models of many experts and of few.
const SLOTS: [(usize, &[usize]); 2] = [(256, &[8, 16, 32, 64, 96, 128]), (32, &[2, 4, 8, 12, 16, 24])];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "fixtures", "traces"].iter().collect();
    println!("| trace | slots | LRU | LFU | shipped | Belady | LRU, pool | LFU | shipped |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for name in ["trace-docs", "trace-gen", "trace-chat", "pico-docs", "pico-gen", "pico-chat"] {
        let read = |extension| std::fs::read(folder.join(name).with_extension(extension));
        let trace = Trace::parse(&read("json")?, &read("bin")?)?;
        let slots =
            SLOTS.iter().find(|(n_experts, _)| *n_experts == trace.n_experts).map_or(&[][..], |s| s.1);
        for &c in slots {
            let lru = mean(trace.layers(), |layer| lru_hits(&trace, layer, c, 0));
            let belady = mean(trace.layers(), |layer| belady_hits(&trace, layer, c, 0));
            let pool = |policy: PolicyName| hits(&trace, policy, c * trace.n_layers, 0);
            let [lfu, shipped, lru_pool] =
                [PolicyName::Lfu, PolicyName::default(), PolicyName::Lru].map(pool);
            let (lfu, shipped, lru_pool) = (lfu?, shipped?, lru_pool?);
            let missed = |hits: f64| format!("{:.1}", 100.0 * (1.0 - hits));
            let gap = |hits| match belady > lru {
                true => format!("{:.0} %", percent_of_gap(lru, hits, belady)),
                false => "–".into(),
            };
            let [lru_missed, lfu_missed, shipped_missed, belady_missed, pool_missed] =
                [lru, lfu, shipped, belady, lru_pool].map(missed);
            let (lfu_gap, shipped_gap) = (gap(lfu), gap(shipped));
            println!(
                "| {name} | {c} | {lru_missed} | {lfu_missed} | {shipped_missed} | {belady_missed} | {pool_missed} | {lfu_gap} | {shipped_gap} |"
            );
        }
    }
    Ok(())
}
