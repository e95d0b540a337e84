//! Sums by hand, and what must hold on any machine.

use std::path::PathBuf;

use super::*;
use crate::TraceShape;

/// 1 byte a nanosecond without latency.
const DISK: Disk = Disk { latency: Nanos(0), depth: 1, ..Disk::of_rate(1_000_000_000) };

fn recorded(name: &str) -> Trace {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "fixtures", "traces"].iter().collect();
    let read = |ending: &str| std::fs::read(folder.join(name).with_extension(ending)).unwrap();
    Trace::parse(&read("json"), &read("bin")).unwrap()
}

/// Two layers of 8 experts, two a token; each token wants experts that no other wants.
fn fresh() -> Trace {
    let shape = TraceShape { n_layers: 2, n_experts: 8, top_k: 2 };
    Trace::new(shape, (0..4).flat_map(|token| [2 * token, 2 * token + 1].repeat(2)).collect()).unwrap()
}

/// 10 us a token: 2 layers of 2 mixer, 1 shared, 2 x 0.5 experts; 2 head. An expert has 1,000 bytes.
fn calm(trace: &Trace, n_slots: usize) -> Replay {
    let shares = Shares { mixer: 4.0, experts: 2.0, shared: 2.0, head: 2.0, scores: 0.2 };
    let compute = Compute { tokens_per_second: 100_000.0, shares };
    Replay { n_warm: 0, n_tokens: trace.n_tokens, ..Replay::of(trace, n_slots, 1_000, DISK, compute) }
}

#[test]
fn a_calm_machine_takes_what_the_sums_say() {
    let trace = fresh();
    let report = calm(&trace, 16).on_demand(&trace).unwrap();
    // A layer: 2,000 mixer; both reads begin; 1,000 shared hide the first; its expert computes for 500; 500 are waited for
    // the second, which computes for 500. A token: 2 such layers and 2,000.
    assert_eq!(report.time, Nanos(4 * (2 * (2_000 + 1_000 + 500 + 500 + 500) + 2_000)));
    assert_eq!((report.stall(), report.asked), (Nanos(4 * 2 * 500), Nanos(0)));
    assert_eq!(report.compute, Nanos(4 * 10_000));
    assert_eq!((report.useful_bytes(), report.stats.bytes_wasted), (16_000, 0));
    assert!((report.tokens_per_second() - 4.0 / 44e-6).abs() < 1e-3);
    assert!((report.overlap_efficiency() - 40.0 / 44.0).abs() < 1e-9);
}

#[test]
fn an_oracle_hides_what_compute_can_hide() {
    let trace = fresh();
    let report = calm(&trace, 16).oracle(&trace).unwrap();
    // Layer 0's experts are known at the beginning: 100 are spent on asking, then 2,000 of reads under 2,000 of mixer. While
    // layer 0 computes, layer 1's are read. Nothing is waited for. Each layer is asked for at the layer before,
    // twice but for the first.
    assert_eq!((report.stall(), report.asked), (Nanos(0), Nanos(4 * 3 * 100)));
    assert_eq!(report.time, report.compute + report.asked);
    assert_eq!((report.recall(), report.precision(), report.stats.bytes_wasted), (1.0, 1.0, 0));
}

#[test]
fn what_was_recorded_is_what_is_told() {
    let header = r#"{"format": "routing-trace", "version": 1, "layers": 2, "experts": 8, "top_k": 1, "tokens": 1,
        "predicted": 2, "arrays": [{"name": "ids", "dtype": "u8", "shape": [1, 2, 1], "offset": 0},
        {"name": "pred:prev_mid", "dtype": "u8", "shape": [1, 2, 2], "offset": 2},
        {"name": "pred:prev_out", "dtype": "u8", "shape": [1, 2, 2], "offset": 6}]}"#;
    let trace = Trace::parse(header.as_bytes(), &[0, 1, 0, 7, 3, 2, 0, 7, 1, 5]).unwrap();
    let replay = Replay { lookahead: LookaheadConfig::open(), ..calm(&trace, 16) };
    let report = replay.run(&trace, Box::new(Oracle)).unwrap();
    // Begin guesses 0 and 7 of layer 0, early 3 and 2 of layer 1, closed 1 and 5.
    assert_eq!((report.stats.guesses, report.stats.guesses_used), (6, 2));
    assert_eq!(report.stats.fetches, 0);
}

#[test]
fn time_is_compute_and_stall_whoever_guesses() {
    let trace = recorded("trace-chat");
    for told in [Told::Recorded, Told::Truth] {
        for name in ["ufs4", "sata"] {
            let disk = Disk::named(name).unwrap();
            let replay = Replay {
                n_tokens: 200,
                told,
                lookahead: LookaheadConfig::open(),
                ..Replay::of(&trace, 16 * 32, 1_300_000, disk, Compute::of_rate(20.0))
            };
            let report = replay.run(&trace, Box::new(Oracle)).unwrap();
            assert_eq!(report.time, report.compute + report.asked + report.stall(), "{told:?} {name}");
            assert!(report.overlap_efficiency() <= 1.0, "{report:?}");
        }
    }
}

#[test]
fn more_slots_never_read_more_bytes() {
    let trace = recorded("trace-docs");
    let disk = Disk::named("nvme").unwrap();
    let mut last = u64::MAX;
    for c in [4, 8, 16, 32, 64, 128, 256] {
        let replay = Replay::of(&trace, 16 * c, 1_300_000, disk, Compute::of_rate(10.0));
        let report = Replay { n_tokens: 500, ..replay }.on_demand(&trace).unwrap();
        assert!(report.stats.bytes_demand <= last, "{c} slots a layer: {report:?}");
        last = report.stats.bytes_demand;
    }
}

#[test]
fn an_oracle_is_never_slower_than_nobody() {
    for name in ["trace-gen", "trace-chat"] {
        let trace = recorded(name);
        for (disk, rate) in [("ufs4", 8.0), ("nvme", 30.0), ("sata", 10.0)] {
            let disk = Disk::named(disk).unwrap();
            let mut replay = Replay::of(&trace, 16 * 48, 1_300_000, disk, Compute::of_rate(rate));
            replay.n_tokens = 200;
            replay.compute.shares.scores = 0.0;
            let (nobody, oracle) = (replay.on_demand(&trace).unwrap(), replay.oracle(&trace).unwrap());
            assert!(oracle.time <= nobody.time, "{name} {disk:?}: {} {}", oracle.time, nobody.time);
            assert!(oracle.stall() < nobody.stall() && oracle.recall() > 0.9, "{oracle:?}");
        }
    }
}

#[test]
fn a_stretched_model_is_as_local_as_the_trace() {
    let trace = recorded("trace-docs");
    let disk = Disk::named("nvme").unwrap();
    let hits = |n_layers: usize| {
        let replay = Replay::of(&trace, 64 * n_layers, 1_300_000, disk, Compute::of_rate(10.0));
        let replay = Replay { n_layers, ..replay };
        let report = replay.on_demand(&trace).unwrap();
        assert_eq!(report.stats.wanted(), (replay.n_tokens * n_layers * trace.top_k) as u64);
        report.stats.hit_rate()
    };
    assert!((hits(16) - hits(40)).abs() < 0.03, "{} {}", hits(16), hits(40));
}

#[test]
fn one_trace_and_one_machine_give_one_report() {
    let trace = recorded("trace-chat");
    let disk = Disk::named("vm").unwrap();
    let replay = Replay { n_tokens: 60, ..Replay::of(&trace, 300, 1_300_000, disk, Compute::of_rate(12.0)) };
    let report = |merged_max| Replay { merged_max, ..replay }.run(&trace, Box::new(Oracle)).unwrap();
    assert_eq!(report(1), report(1));
    assert_ne!(report(1).time, report(4).time);
}
