//! When reads of a timed store are over.

use forerun_arena::{Arena, SlotIdx};

use super::*;

/// 1 byte a nanosecond, experts of 1,000 bytes, 10 experts, 2 layers.
struct Rig {
    store: TimedStore,
    arena: Arena,
    clock: VirtualClock,
    n_begun: u32,
}

fn rig(depth: usize, latency_ns: u64, merged_max: usize) -> Rig {
    let clock = VirtualClock::new();
    let disk = Disk { depth, latency: Nanos(latency_ns), ..Disk::of_rate(1_000_000_000) };
    let layout = Layout { n_layers: 2, n_experts: 10, record_bytes: 1_000, merged_max, bite_bytes: None };
    let store = TimedStore::new(disk, layout, clock.clone());
    Rig { store, arena: Arena::new(100, 1).unwrap(), clock, n_begun: 0 }
}

impl Rig {
    fn begin(&mut self, experts: &[u16], priority: Priority) {
        for &expert in experts {
            let lease = self.arena.try_write(SlotIdx(self.n_begun)).unwrap();
            self.n_begun += 1;
            self.store.begin(ExpertKey::new(0, expert), lease, priority).unwrap();
        }
        self.store.start();
    }

    /// Waits for everything; when each expert came.
    fn arrivals(&mut self) -> Vec<(u16, u64)> {
        let (mut arrivals, mut done) = (Vec::new(), Vec::new());
        loop {
            self.store.wait(Nanos::MAX, &mut done);
            if done.is_empty() {
                return arrivals;
            }
            arrivals.extend(done.drain(..).map(|fetched| (fetched.key.expert.0, self.clock.now().0)));
        }
    }
}

#[test]
fn reads_queue_behind_each_other() {
    let mut rig = rig(1, 100, 1);
    rig.begin(&[3, 1], Priority::Demand);
    assert_eq!(rig.arrivals(), [(1, 1_100), (3, 2_200)]);
}

#[test]
fn two_on_the_wire_hide_the_latency_and_share_the_rate() {
    let mut rig = rig(2, 100, 1);
    rig.begin(&[1, 2, 3], Priority::Demand);
    // 1 and 2 share 2,000 bytes; 3 begins when they are over.
    assert_eq!(rig.arrivals(), [(1, 2_100), (2, 2_100), (3, 3_200)]);
}

#[test]
fn a_late_read_slows_the_first_down() {
    let mut rig = rig(2, 0, 1);
    rig.begin(&[1], Priority::Demand);
    rig.clock.advance(Nanos(400));
    rig.begin(&[2], Priority::Demand);
    // 600 bytes are left of 1, and take 1,200; 2 then has 400 left.
    assert_eq!(rig.arrivals(), [(1, 1_600), (2, 2_000)]);
}

#[test]
fn demands_overtake_guesses_that_wait() {
    let mut rig = rig(1, 0, 1);
    rig.begin(&[1, 2, 3], Priority::Guess);
    rig.begin(&[9], Priority::Demand);
    rig.store.promote(ExpertKey::new(0, 3));
    assert_eq!(rig.arrivals(), [(1, 1_000), (9, 2_000), (3, 3_000), (2, 4_000)]);
}

#[test]
fn only_guesses_that_wait_can_be_taken_back() {
    let mut rig = rig(1, 0, 1);
    rig.begin(&[1, 2], Priority::Guess);
    let mut withdrawn = Vec::new();
    rig.store.withdraw_guesses(Some(LayerId(1)), &mut withdrawn);
    assert!(withdrawn.is_empty());
    rig.store.withdraw_guesses(Some(LayerId(0)), &mut withdrawn);
    assert_eq!(withdrawn.iter().map(|w| w.key.expert.0).collect::<Vec<_>>(), [2]);
    assert_eq!(rig.arrivals(), [(1, 1_000)]);
    assert_eq!(rig.store.stats().n_withdrawn, 1);
}

#[test]
fn neighbours_come_together_and_pay_one_latency() {
    let mut rig = rig(1, 100, 2);
    rig.begin(&[1, 2, 3, 5], Priority::Demand);
    assert_eq!(rig.arrivals(), [(1, 2_100), (2, 2_100), (3, 3_200), (5, 4_300)]);
    let StoreStats { n_reads, n_merged, read_bytes, .. } = rig.store.stats();
    assert_eq!((n_reads, n_merged, read_bytes), (3, 1, 4_000));
}

#[test]
fn a_look_moves_no_clock_and_a_wait_stops_in_time() {
    let mut rig = rig(1, 0, 1);
    rig.begin(&[1], Priority::Demand);
    let mut done = Vec::new();
    rig.store.wait(Nanos(0), &mut done);
    assert_eq!((done.len(), rig.clock.now()), (0, Nanos(0)));
    rig.store.wait(Nanos(700), &mut done);
    assert_eq!((done.len(), rig.clock.now()), (0, Nanos(700)));
    rig.clock.advance(Nanos(10_000));
    rig.store.wait(Nanos(0), &mut done);
    assert_eq!((done.len(), rig.clock.now()), (1, Nanos(10_700)));
    rig.store.wait(Nanos(99_999), &mut done);
    assert_eq!(rig.clock.now(), Nanos(10_700), "nothing is in flight");
}

#[test]
fn what_is_too_much_or_unknown_is_refused() {
    let mut rig = rig(1, 0, 1);
    for _ in 0..TAKEN_MAX {
        rig.begin(&[1], Priority::Demand);
    }
    let lease = rig.arena.try_write(SlotIdx(99)).unwrap();
    let refused = rig.store.begin(ExpertKey::new(0, 1), lease, Priority::Demand).unwrap_err();
    assert!(matches!(refused.reason, RefusedReason::QueueFull));
    let refused = rig.store.begin(ExpertKey::new(2, 1), refused.lease, Priority::Guess).unwrap_err();
    assert!(matches!(refused.reason, RefusedReason::Never(StoreError::UnknownExpert { .. })));
}
