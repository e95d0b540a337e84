//! What a stack takes at most is what a plan is told. One test, since others would be counted with it.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use forerun_candle::CandleStack;
use forerun_compute::{DeviceName, KvType, StackConfig, Taps};
use support::{Driver, HYBRID, text};

/// Bytes that a line of the process's status tells.
fn status(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    1024 * line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
}

/// What the allocator keeps of freed memory, and candle's threads and their buffers.
const SLACK: u64 = 4 << 20;

#[test]
fn the_peak_is_what_a_plan_is_told() {
    let config = StackConfig {
        n_sequences: 2,
        context: 600,
        rows_max: 512,
        log_rows: 0,
        aside_rows: 0,
        kv: KvType::F16,
    };
    let (shape, weights, mut driver) = (HYBRID.shape(), HYBRID.weights(), Driver::new(HYBRID));
    let (taps, tokens) = (Taps::default(), text(1, 600));
    let said = CandleStack::bytes(&shape, &weights.experts, &config, &taps, DeviceName::Cpu);
    let said = said.kv + said.state + said.scratch + CandleStack::weight_bytes(&weights);
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS");
    let mut stack = CandleStack::new(&weights, config, taps, DeviceName::Cpu).unwrap();
    for sequence in 0..2 {
        driver.run(&mut stack, sequence, 0, &tokens[..512], 512);
        driver.run(&mut stack, sequence, 512, &tokens[512..540], 1);
    }
    let taken = status("VmHWM") - before;
    println!("{taken} taken, {said} said");
    assert!(taken <= said + SLACK, "{taken} bytes taken, {said} said");
    // Nor is much more said than is taken.
    assert!(said <= 3 * taken, "{taken} bytes taken, {said} said");
}
