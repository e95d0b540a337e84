//! Every kernel against its twin, over random shapes. `cargo xtask msl` says where the kernels are; without it these are skipped.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "bounds needn't be exact")]
#![allow(clippy::print_stdout, reason = "the chore shows how far each kernel is off")]

#[path = "../../../crates/candle/tests/kernel_cases/mod.rs"]
mod kernel_cases;
mod support;

use forerun_model::QuantType;
use kernel_cases::{Gpu, Report, close, delta_net, expert};
use support::library;
use xtask_msl::host::{self, HostBuffer};
use xtask_msl::launch::{self, Launch};
use xtask_msl::{Library, Order};

/// Runs every call twice, with the threads in either order, which must change no bit.
struct Emulated(Library);

impl Gpu for Emulated {
    fn run(&mut self, launch: &Launch, buffers: &mut [HostBuffer<'_>]) {
        assert!(launch::KERNELS.contains(&launch.kernel), "{} is in no list", launch.kernel);
        let mut copies: Vec<_> = buffers
            .iter()
            .map(|buffer| match buffer {
                HostBuffer::Out(values) => values.to_vec(),
                _ => Vec::new(),
            })
            .collect();
        let mut again: Vec<_> = buffers
            .iter()
            .zip(&mut copies)
            .map(|(buffer, copy)| match buffer {
                HostBuffer::Bytes(bytes) => HostBuffer::Bytes(bytes),
                HostBuffer::Floats(values) => HostBuffer::Floats(values),
                HostBuffer::Words(words) => HostBuffer::Words(words),
                HostBuffer::Out(_) => HostBuffer::Out(copy),
            })
            .collect();
        self.0.run(launch, &mut again, Order::Backward).unwrap();
        let backward: Vec<_> = again.iter().map(HostBuffer::to_vec).collect();
        self.0.run(launch, buffers, Order::Forward).unwrap();
        let forward: Vec<_> = buffers.iter().map(HostBuffer::to_vec).collect();
        assert_eq!(forward, backward, "{} depends on the order of its threads", launch.kernel);
    }
}

fn check(kernel: &str, cases: u64, run: impl Fn(&mut dyn Gpu, u64, &mut Report)) {
    let Some(library) = library() else { return };
    let (mut gpu, mut report) = (Emulated(library), Report::default());
    for seed in 0..cases {
        run(&mut gpu, seed, &mut report);
    }
    assert!(!report.is_empty());
    println!("{kernel:<18} {report}");
}

#[test]
fn delta_convolve() {
    check("delta_convolve", 60, delta_net::delta_convolve);
}

#[test]
fn delta_step() {
    check("delta_step", 60, delta_net::delta_step);
}

#[test]
fn delta_gate() {
    check("delta_gate", 60, delta_net::delta_gate);
}

#[test]
fn close_layer() {
    check("close_layer", 60, close::close_layer);
}

#[test]
fn expert_inner() {
    for &quant in expert::TYPES {
        let run = |gpu: &mut dyn Gpu, seed, report: &mut Report| {
            expert::expert_inner(gpu, quant, seed, report);
        };
        check(&format!("expert_inner_{}", name(quant)), 12, run);
    }
}

#[test]
fn expert_down() {
    for &quant in expert::TYPES {
        let run = |gpu: &mut dyn Gpu, seed, report: &mut Report| {
            expert::expert_down(gpu, quant, seed, report);
        };
        check(&format!("expert_down_{}", name(quant)), 12, run);
    }
}

fn name(quant: QuantType) -> String {
    format!("{quant:?}")
}

#[test]
fn buffers_are_compared_with_what_a_kernel_needs() {
    let Some(library) = library() else { return };
    let launch = launch::Close { n_rows: 1, hidden: 8, top_k: 1, has_shared: false }.launch().unwrap();
    let (ranked, weights, mut x) = ([0.0; 8], [1.0], [0.0; 7]);
    let run = |buffers: &mut [HostBuffer<'_>]| {
        library.run(&launch, buffers, Order::Forward).unwrap_err().to_string()
    };
    let [ranked, weights, none] =
        [&ranked[..], &weights, &[]].map(|floats| move || HostBuffer::Floats(floats));
    let short = run(&mut [ranked(), weights(), none(), none(), HostBuffer::Out(&mut x)]);
    assert_eq!(short, "buffer 4 of `close_layer` has 28 bytes, not 32");
    assert_eq!(run(&mut [ranked()]), "`close_layer` takes 5 buffers, not 1");
    let read = run(&mut [ranked(), weights(), none(), none(), ranked()]);
    assert_eq!(read, "buffer 4 of `close_layer` is for Write");
    assert!(matches!(host::check(&launch, &[]), Err(host::Mismatch::Count { need: 5, found: 0, .. })));
}
