//! Ranges into reads. Unit of work: the ranges of one layer's experts.

use std::path::Path;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use forerun_model::{ExpertKey, ModelShape};
use forerun_sim::Rng;
use forerun_storage::{ByteRange, Catalog, Gguf, MergeLimits, merge::merge};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/pico-q4_k_m.gguf");

/// The ranges of so many experts of one layer, in the order of the file.
fn ranges(catalog: &Catalog, n_experts: usize, align_bytes: u32) -> Vec<ByteRange> {
    let mut rng = Rng::new(3);
    let mut experts: Vec<u16> = (0..).take(catalog.n_experts()).collect();
    let chosen = (0..n_experts).map(|_| experts.swap_remove(rng.index(experts.len())));
    let placed = chosen.flat_map(|expert| {
        let placement = catalog.placement(ExpertKey::new(3, expert), align_bytes);
        placement.expect("the fixture has layer 3").ranges
    });
    let mut ranges: Vec<ByteRange> = placed.map(|placed| placed.range).collect();
    ranges.sort_unstable();
    ranges
}

fn benches(c: &mut Criterion) {
    let gguf = Gguf::open(Path::new(MODEL)).expect("the fixture opens");
    let shape = ModelShape::from_metadata(&gguf.metadata).expect("the fixture has a shape");
    let catalog = Catalog::new(&shape, &gguf).expect("the fixture has experts");
    let mut group = c.benchmark_group("merge");
    for (n_experts, align_bytes) in [(4, 1), (4, 512), (32, 1), (32, 512)] {
        let ranges = ranges(&catalog, n_experts, align_bytes);
        group.throughput(Throughput::Elements(ranges.len() as u64));
        let id = BenchmarkId::from_parameter(format!("{n_experts} experts, blocks of {align_bytes}"));
        group.bench_with_input(id, &ranges, |b, ranges| {
            b.iter(|| merge(ranges, align_bytes, MergeLimits::default()));
        });
    }
    group.finish();
}

criterion_group!(merging, benches);
criterion_main!(merging);
