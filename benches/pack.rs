//! A small model packed into a temporary folder. Unit of work: bytes of the packed file.
//!
//! Its source comes from the system's page cache, and syncs are part of it: this measures the copy and the folder's
//! file system, not a large disk's rate.

use std::path::Path;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forerun_storage::Gguf;
use forerun_storage::repack::{Existing, Settings, Verification, pack};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny-b-q3_k_m.gguf");

fn packing(c: &mut Criterion) {
    let folder = tempfile::tempdir().expect("there is a folder for temporary files");
    let target = folder.path().join("packed.gguf");
    let source = Gguf::open(Path::new(MODEL)).expect("the fixture opens");
    let settings = Settings { existing: Existing::Replace, ..Settings::default() };
    let run = || {
        let job = pack(&source, &target, &settings).expect("the fixture can be packed");
        job.finish().expect("the folder has room").file_bytes
    };
    let mut group = c.benchmark_group("pack");
    group.sample_size(10).throughput(Throughput::Bytes(run()));
    group.bench_function("pack", |b| b.iter(run));
    let packed = Gguf::open(&target).expect("the packed file opens");
    group.bench_function("verify", |b| {
        b.iter(|| {
            let mut verification = Verification::new(&packed).expect("the packed file is sound");
            while verification.step().expect("the packed file can be read") {}
            verification.checked().bytes
        });
    });
    group.finish();
}

criterion_group!(benches, packing);
criterion_main!(benches);
