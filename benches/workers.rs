//! Handing work to all threads and waiting for them. Unit of work: calls.

use std::thread;

use criterion::{Criterion, criterion_group, criterion_main};
use forerun_compute::workers::Workers;

fn workers(c: &mut Criterion) {
    let n_threads = thread::available_parallelism().map_or(1, usize::from);
    let workers = Workers::new(n_threads).expect("the threads start");
    let mut group = c.benchmark_group(format!("workers/{n_threads}"));
    group.bench_function("call", |b| b.iter(|| workers.share(usize::MAX, |_| ())));
    group.bench_function("call-with-two-barriers", |b| {
        b.iter(|| {
            workers.share(usize::MAX, |share| {
                share.wait();
                share.wait();
            });
        });
    });
    group.finish();
}

criterion_group!(benches, workers);
criterion_main!(benches);
