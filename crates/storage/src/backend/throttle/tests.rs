//! A throttle over a clock that only sleeping moves, and over real backends.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use forerun_model::SystemClock;

use super::*;
use crate::{FileSet, MemoryBackend, MmapBackend, PreadBackend, PreadConfig, Priority, conformance, testing};

const MB: u64 = 1_000_000;

/// A clock that only sleeping moves, each time by a little too much.
#[derive(Default)]
struct Sleepy {
    now: AtomicU64,
    overslept: u64,
}

impl Clock for Sleepy {
    fn now(&self) -> Nanos {
        Nanos(self.now.load(Ordering::Relaxed))
    }
}

impl Sleepy {
    fn pass(&self, span: u64) {
        self.now.fetch_add(span, Ordering::Relaxed);
    }
}

struct Rig {
    clock: Arc<Sleepy>,
    backend: Throttled<MemoryBackend>,
}

impl Rig {
    fn new(bytes_per_second: u64, overslept: u64) -> Self {
        let clock = Arc::new(Sleepy { overslept, ..Sleepy::default() });
        // Reads are charged for what they ask, so that a short file does.
        let bytes = Bytes::from(vec![7; 1 << 10]);
        let sleeper = Arc::clone(&clock);
        let pause = Box::new(move |span: Nanos| sleeper.pass(span.0 + sleeper.overslept));
        let rate = NonZeroU64::new(bytes_per_second).unwrap();
        let inner = MemoryBackend::new(vec![bytes]);
        let backend = Throttled::with_pause(inner, rate, Arc::clone(&clock) as Arc<dyn Clock>, pause);
        Self { clock, backend }
    }

    fn submit(&mut self, tag: u64, priority: Priority, len_bytes: usize) {
        let read = Read { priority, ..testing::read(Tag(tag), 0, testing::window(len_bytes)) };
        self.backend.submit(read).unwrap();
    }

    fn wait(&mut self, until: Nanos) -> Vec<u64> {
        let mut done = Vec::new();
        self.backend.wait(until, &mut done);
        done.iter().map(|completed| completed.read.tag.0).collect()
    }

    /// Reads for two seconds, `depth` reads at a time; returns bytes a second.
    fn rate(&mut self, depth: u64, len_bytes: usize) -> u64 {
        const SPAN: u64 = 2_000_000_000;
        let mut n_done = 0;
        for tag in 0..depth {
            self.submit(tag, Priority::Demand, len_bytes);
        }
        let mut done = Vec::new();
        while self.clock.now() < Nanos(SPAN) {
            self.backend.wait(Nanos::MAX, &mut done);
            for completed in done.drain(..) {
                n_done += 1;
                self.backend.submit(completed.read).unwrap();
            }
        }
        let bytes = u128::from(n_done * len_bytes as u64);
        u64::try_from(bytes * 1_000_000_000 / u128::from(self.clock.now().0)).unwrap()
    }
}

#[test]
fn the_rate_holds_over_two_seconds() {
    for rate in [200 * MB, 500 * MB, 1000 * MB] {
        for depth in [1, 2, 8] {
            for len_bytes in [64 << 10, 1_000_003] {
                // A sleep that ends late costs the caller time, and the rate next to nothing.
                for overslept in [0, 70_000] {
                    let got = Rig::new(rate, overslept).rate(depth, len_bytes);
                    assert!(got <= rate, "{got} is faster than {rate}, depth {depth}");
                    assert!(
                        got >= rate / 100 * 99,
                        "{got} is slower than {rate}, depth {depth}, {len_bytes} bytes"
                    );
                }
            }
        }
    }
}

#[test]
fn a_read_comes_when_it_is_due_and_not_before() {
    let mut rig = Rig::new(MB, 0);
    rig.submit(1, Priority::Demand, 1000);
    assert!(rig.wait(Nanos(0)).is_empty() && rig.clock.now() == Nanos(0), "a look slept");
    assert!(rig.wait(Nanos(999_999)).is_empty());
    assert_eq!(rig.clock.now(), Nanos(999_999));
    assert_eq!(rig.wait(Nanos::MAX), [1]);
    assert_eq!(rig.clock.now(), Nanos(1_000_000));
}

#[test]
fn time_passes_while_nobody_waits() {
    let mut rig = Rig::new(MB, 0);
    for tag in 0..3 {
        rig.submit(tag, Priority::Demand, 1000);
    }
    rig.clock.pass(2_500_000);
    assert_eq!(rig.wait(Nanos(0)), [0, 1]);
    assert_eq!(rig.wait(Nanos::MAX), [2]);
    assert_eq!(rig.clock.now(), Nanos(3_000_000));
}

#[test]
fn demands_come_before_guesses() {
    let mut rig = Rig::new(MB, 0);
    for (tag, priority) in [(0, Priority::Guess), (1, Priority::Guess), (2, Priority::Demand)] {
        rig.submit(tag, priority, 1000);
    }
    assert_eq!([rig.wait(Nanos::MAX), rig.wait(Nanos::MAX), rig.wait(Nanos::MAX)], [[0], [2], [1]]);
}

#[test]
fn a_guess_can_be_taken_back_until_the_disk_begins_it() {
    let mut rig = Rig::new(MB, 0);
    for tag in 0..3 {
        rig.submit(tag, Priority::Guess, 1000);
    }
    rig.clock.pass(1_500_000);
    assert!(rig.backend.withdraw(Tag(1)).is_none(), "the disk is at it");
    assert_eq!(rig.backend.withdraw(Tag(2)).unwrap().tag, Tag(2));
    assert_eq!([rig.wait(Nanos::MAX), rig.wait(Nanos::MAX)].concat(), [0, 1]);
    assert!(rig.wait(Nanos::MAX).is_empty());
    assert_eq!(rig.clock.now(), Nanos(2_000_000));
}

/// Fast enough that the suite takes no time, slow enough that reads wait.
fn throttled<B: ReadBackend>(inner: B, clock: Arc<dyn Clock>) -> Throttled<B> {
    Throttled::new(inner, NonZeroU64::new(500 * MB).unwrap(), clock)
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

#[test]
fn throttled_memory_conforms() {
    conformance::check(|files| throttled(MemoryBackend::new(files.to_vec()), clock()));
}

#[test]
fn throttled_pread_conforms() {
    conformance::check(|files| {
        let (files, clock): (FileSet, _) = (testing::temporary(files), clock());
        let config = PreadConfig { n_threads: 3, depth: 5 };
        throttled(PreadBackend::new(&files, config, Arc::clone(&clock)).unwrap(), clock)
    });
}

#[test]
fn throttled_mmap_conforms() {
    conformance::check(|files| throttled(MmapBackend::new(&testing::temporary(files)).unwrap(), clock()));
}
