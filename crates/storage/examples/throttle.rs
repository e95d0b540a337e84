//! Says which rate comes out when a backend is slowed down, reading a file for two seconds at a time, with nothing but
//! this layer.
//!
//! `cargo run --release -p forerun-storage --example throttle [FILE [BYTES_PER_SECOND ...]]`

#![expect(clippy::print_stdout, reason = "an example shows what it measured")]

use std::error::Error;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;

use forerun_arena::{Arena, SlotIdx};
use forerun_model::{Clock, Nanos, SystemClock};
use forerun_storage::{
    DataFile, DirectFiles, FileSet, MemoryBackend, MmapBackend, PreadBackend, PreadConfig, Priority, Read,
    ReadBackend, Tag, Throttled,
};

const READ_BYTES: usize = 1_290_240;
const SPAN: Nanos = Nanos::from_millis(2000);

fn main() -> Result<(), Box<dyn Error>> {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/pico-q4_k_m.gguf");
    let mut args = std::env::args_os().skip(1);
    let path = args.next().map_or_else(|| fixture.into(), PathBuf::from);
    let rates = args
        .map(|rate| Ok(rate.to_string_lossy().parse()?))
        .collect::<Result<Vec<NonZeroU64>, Box<dyn Error>>>()?;
    let rates = if rates.is_empty() {
        [200_000_000, 500_000_000, 1_000_000_000]
            .map(|rate| NonZeroU64::new(rate).ok_or("no rate"))
            .into_iter()
            .collect::<Result<_, _>>()?
    } else {
        rates
    };
    let files = FileSet::new(vec![DataFile::open(&path)?]);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    for round in 1..=2 {
        for &rate in &rates {
            for depth in [1, 4] {
                for name in ["memory", "mmap", "pread", "pread direct"] {
                    let inner = open(name, &files, depth, &clock)?;
                    let got =
                        measure(Throttled::new(inner, rate, Arc::clone(&clock)), &files, depth, &*clock)?;
                    let share = got / rate.get() as f64 * 100.0;
                    println!(
                        "round {round}  {:>5.2} GB/s  depth {depth}  {name:<12}  {:.4} GB/s  {share:.2} %",
                        rate.get() as f64 / 1e9,
                        got / 1e9
                    );
                }
            }
        }
    }
    Ok(())
}

fn open(
    name: &str,
    files: &FileSet,
    depth: usize,
    clock: &Arc<dyn Clock>,
) -> Result<Box<dyn ReadBackend>, Box<dyn Error>> {
    let config = PreadConfig { n_threads: depth, depth };
    Ok(match name {
        "memory" => Box::new(MemoryBackend::new(vec![vec![7; 64 << 20].into()])),
        "mmap" => Box::new(MmapBackend::new(files)?),
        "pread" => Box::new(PreadBackend::new(files, config, Arc::clone(clock))?),
        _ => Box::new(PreadBackend::direct(files, DirectFiles::open(files)?, config, Arc::clone(clock))?),
    })
}

/// Bytes a second of `depth` reads at a time, one after the other through the file.
fn measure(
    mut backend: impl ReadBackend,
    files: &FileSet,
    depth: usize,
    clock: &dyn Clock,
) -> Result<f64, Box<dyn Error>> {
    let places = (files.files()[0].len_bytes.min(64 << 20) / READ_BYTES as u64).max(1);
    let arena = Arena::new(depth, READ_BYTES)?;
    let mut free = Vec::new();
    for slot in 0..u32::try_from(depth)? {
        let lease = arena.try_write(SlotIdx(slot)).ok_or("a new arena's slots are free")?;
        free.push(vec![lease.window(0..READ_BYTES)]);
    }
    let (start, mut n_begun, mut n_bytes, mut done) = (clock.now(), 0, 0, Vec::new());
    while clock.now() - start < SPAN {
        while let Some(windows) = free.pop() {
            let offset_bytes = n_begun % places * (READ_BYTES as u64).next_multiple_of(4096);
            let read = Read { tag: Tag(n_begun), priority: Priority::Demand, file: 0, offset_bytes, windows };
            backend.submit(read).map_err(|_| "the queue is full")?;
            n_begun += 1;
        }
        backend.wait(Nanos::MAX, &mut done);
        for completed in done.drain(..) {
            n_bytes += completed.result?;
            free.push(completed.read.windows);
        }
    }
    Ok(n_bytes as f64 * 1e9 / (clock.now() - start).0 as f64)
}
