//! The procedure over disks that aren't there, on a clock that only waiting moves.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forerun_arena::{Arena, SlotIdx};

use super::*;
use crate::{Completed, Limits, Read, ReadBackend, Tag};

const MB: u64 = 1_000_000;
const RECORD_BYTES: usize = 1 << 20;
const DEADLINE: Nanos = Nanos::from_millis(1900);

#[derive(Default)]
struct Virtual(AtomicU64);

impl Clock for Virtual {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }
}

/// Requests take a while each, at once with each other; their bytes come one after the other.
#[derive(Clone, Copy)]
struct Model {
    request_us: u64,
    bytes_per_second: u64,
    /// Reads that succeed before all others fail.
    n_good: u64,
}

struct Disk {
    model: Model,
    clock: Arc<Virtual>,
    depth: usize,
    free_at: u64,
    reads: Vec<(u64, Read)>,
    n_reads: u64,
}

impl ReadBackend for Disk {
    fn limits(&self) -> Limits {
        Limits { depth: self.depth, align_bytes: 4096 }
    }

    fn submit(&mut self, read: Read) -> Result<(), Read> {
        let ready = self.clock.now().0 + self.model.request_us * 1000;
        let span = read.len_bytes() * 1_000_000_000 / self.model.bytes_per_second;
        self.free_at = self.free_at.max(ready) + span;
        self.reads.push((self.free_at, read));
        Ok(())
    }

    fn withdraw(&mut self, _tag: Tag) -> Option<Read> {
        None
    }

    fn wait(&mut self, _until: Nanos, done: &mut Vec<Completed>) {
        let (at, read) = self.reads.remove(0);
        self.clock.0.fetch_max(at, Ordering::Relaxed);
        self.n_reads += 1;
        let result = if self.n_reads > self.model.n_good {
            Err(io::Error::other("a worn cell"))
        } else {
            Ok(read.len_bytes())
        };
        done.push(Completed { read, result });
    }
}

struct Rig {
    clock: Arc<Virtual>,
    ways: Vec<Way>,
}

impl Rig {
    fn new() -> Self {
        Self { clock: Arc::default(), ways: Vec::new() }
    }

    fn way(mut self, method: Method, model: Model) -> Self {
        let clock = Arc::clone(&self.clock);
        let open = move |depth| -> Result<Box<dyn ReadBackend>, String> {
            let clock = Arc::clone(&clock);
            Ok(Box::new(Disk { model, clock, depth, free_at: 0, reads: Vec::new(), n_reads: 0 }))
        };
        self.ways.push(Way {
            method,
            access: Access::Direct,
            depths: &[1, 2, 4, 8],
            open: Box::new(open),
            objection: Box::new(|| None),
            chill: None,
        });
        self
    }

    /// With pages of which every `one_in`th can be taken out of memory.
    fn cached(mut self, model: Model, one_in: usize) -> Self {
        self = self.way(Method::Pread, model);
        let way = self.ways.last_mut().unwrap();
        (way.access, way.depths) = (Access::Cached, &[4]);
        way.chill = Some(Box::new(Pages(one_in)));
        self
    }

    fn run(&self, n_places: u64) -> Found {
        self.run_of(n_places, RECORD_BYTES)
    }

    fn run_of(&self, n_places: u64, record_bytes: usize) -> Found {
        let place_bytes = record_bytes as u64;
        let places = Places::of_lens([n_places * place_bytes].into_iter(), place_bytes, 3);
        let arena = Arena::new(8, record_bytes).unwrap();
        let slots = (0..8).map(|slot| arena.try_write(SlotIdx(slot)).unwrap()).collect();
        let clock: &dyn Clock = &*self.clock;
        Runner::new(clock, clock.now() + DEADLINE, places, slots, record_bytes).run(&self.ways)
    }
}

struct Pages(usize);

impl crate::probe::ways::Chill for Pages {
    fn chill(&self, places: &[Place]) -> Result<Vec<Place>, String> {
        Ok(places.iter().copied().step_by(self.0).collect())
    }

    fn forget(&self, _places: &[Place]) {}
}

fn model(request_us: u64, bytes_per_second: u64) -> Model {
    Model { request_us, bytes_per_second, n_good: u64::MAX }
}

#[track_caller]
fn assert_near(got: u64, expect: u64) {
    assert!(got.abs_diff(expect) <= expect / 33, "{got} is not nearly {expect}");
}

#[test]
fn a_disk_is_measured_as_it_is() {
    let found = Rig::new().way(Method::Pread, model(500, 1000 * MB)).run(10_000);
    let rate = |depth| found.rates.iter().find(|rate| rate.depth == depth).unwrap().bytes_per_second;
    assert_near(rate(1), 1_048_576 * MB / (500 + 1049));
    assert_near(rate(2), 1000 * MB);
    assert_eq!((found.choice.method, found.choice.access), (Method::Pread, Access::Direct));
    assert_eq!(found.choice.depth, 2);
    assert_near(found.choice.bytes_per_second.unwrap(), 1000 * MB);
}

#[test]
fn what_a_request_costs_is_found() {
    // At depth 1 nothing hides it; a disk this slow is full at any depth.
    let found = Rig::new().way(Method::Pread, model(100, 20 * MB)).run(10_000);
    assert_eq!(found.choice.depth, 1);
    assert_near(found.choice.gap_bytes_max.into(), 2000);
    assert_near(found.choice.full_speed_bytes.into(), 19 * 2000);
    let small = found.small.unwrap();
    assert_eq!((small.read_bytes, small.depth), (64 << 10, 1));
}

#[test]
fn it_ends_in_time_however_slow_the_disk_is() {
    for kilobytes_per_second in [100, 1000, 5_000, 20_000, 100_000, 7_000_000] {
        let slow = model(5000, kilobytes_per_second * 1000);
        let rig = Rig::new().way(Method::Uring, slow).way(Method::Pread, slow).cached(slow, 1);
        let found = rig.run(10_000);
        let one_read = Nanos::from_micros(5000 + 1_048_576_000 / kilobytes_per_second);
        let end = rig.clock.now();
        assert!(end <= DEADLINE + one_read, "{kilobytes_per_second} kB/s took {end}");
        assert!(!found.rates.is_empty(), "{kilobytes_per_second} kB/s");
        for rate in &found.rates {
            assert!(rate.bytes_per_second <= kilobytes_per_second * 1000 + 1000, "{rate:?}");
        }
    }
}

#[test]
fn a_small_file_is_read_once_at_most() {
    for n_places in [0, 1, 2, 9, 40, 300] {
        let fast = model(10, 1000 * MB);
        let found = Rig::new().way(Method::Pread, fast).cached(fast, 1).run(n_places);
        let n_reads: u64 = found.rates.iter().chain(&found.small).map(|rate| rate.n_reads).sum();
        assert!(n_reads <= n_places.max(1), "{n_reads} reads of {n_places} places");
        if n_places == 0 {
            assert_eq!(found.choice.bytes_per_second, None);
            assert!(found.missing[0].reason.contains("nothing left to read"));
        }
    }
}

/// Experts of a page or three leave nothing shorter to compare with.
#[test]
fn the_smallest_records_are_measured_whole() {
    for pages in [1, 3, 4] {
        let fast = model(10, 1000 * MB);
        for rig in [Rig::new().way(Method::Pread, fast), Rig::new().cached(fast, 1)] {
            let found = rig.run_of(1_000_000, pages * 4096);
            assert!(found.choice.bytes_per_second.is_some(), "{pages} pages");
            let small = found.small.map(|small| small.read_bytes);
            assert_eq!(small, (pages == 4).then_some(4096), "{pages} pages");
        }
    }
}

#[test]
fn a_way_whose_reads_fail_is_no_choice() {
    let worn = Model { n_good: 5, ..model(10, 2000 * MB) };
    let found = Rig::new().way(Method::Uring, worn).way(Method::Pread, model(10, 500 * MB)).run(10_000);
    assert_eq!(found.choice.method, Method::Pread);
    assert_eq!(found.missing.len(), 1);
    assert_eq!(found.missing[0].reason, "a read failed (a worn cell)");
    assert!(found.rates.iter().all(|rate| rate.method == Method::Pread), "a rate of a way that fails counts");
}

#[test]
fn a_way_that_was_not_what_it_said_is_no_choice() {
    let mut rig = Rig::new().way(Method::Uring, model(10, 2000 * MB)).way(Method::Pread, model(10, 500 * MB));
    rig.ways[0].objection = Box::new(|| Some("it was something else".into()));
    let found = rig.run(10_000);
    assert_eq!((found.choice.method, &found.missing[0].reason[..]), (Method::Pread, "it was something else"));
}

#[test]
fn cached_reads_count_where_pages_are_proven_cold() {
    let rig = || Rig::new().way(Method::Pread, model(10, 500 * MB));
    let found = rig().cached(model(10, 2000 * MB), 2).run(10_000);
    assert_eq!(found.choice.access, Access::Cached);
    assert_near(found.choice.bytes_per_second.unwrap(), 2000 * MB);
    let found = rig().cached(model(10, 2000 * MB), usize::MAX).run(10_000);
    assert_eq!(found.choice.access, Access::Direct);
    assert!(found.missing[0].reason.contains("only 1 could be proven to be out of memory"), "{found:?}");
}
