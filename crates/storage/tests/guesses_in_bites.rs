//! Guesses in bites, promoted and given up in any order, over a disk that fails: every slot comes back once, and what
//! is filled is right.

#![allow(clippy::unwrap_used, reason = "a helper of a test may panic, as the test may")]

mod support;

use std::collections::HashMap;
use std::io::{Error, ErrorKind};
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use support::Model;

use forerun_arena::{Arena, SlotIdx};
use forerun_model::{ExpertKey, LayerId, Nanos};
use forerun_storage::{
    Catalog, Completed, ExpertStore, Fetched, FileStore, Filled, Gguf, Limits, MergeLimits, Priority, Read,
    ReadBackend, Refused, RefusedReason, StoreConfig, StoreError, Tag, Withdrawn,
};

const N_SLOTS: u32 = 6;
const N_EXPERTS: u16 = 4;

/// A disk with reads that wait and reads that have begun, whose luck is in `state`.
struct Flaky {
    file: Bytes,
    limits: Limits,
    n_wire_max: usize,
    waiting: Vec<Read>,
    wire: Vec<Read>,
    state: u64,
}

impl Flaky {
    fn below(&mut self, n: u64) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % n
    }

    fn fill_wire(&mut self) {
        while self.wire.len() < self.n_wire_max && !self.waiting.is_empty() {
            let at = (0..self.waiting.len()).min_by_key(|&at| (self.waiting[at].priority, at)).unwrap();
            let read = self.waiting.remove(at);
            self.wire.push(read);
        }
    }

    /// What becomes of a read: a half is well, the others fail, are interrupted, or come back short.
    fn end(&mut self, mut read: Read) -> Completed {
        let kinds = [ErrorKind::Other, ErrorKind::Interrupted, ErrorKind::WouldBlock, ErrorKind::NotFound];
        let mut left = u64::MAX;
        match self.below(20) {
            luck @ 0..3 => {
                let kind = kinds[usize::try_from(luck).unwrap()];
                return Completed { read, result: Err(Error::from(kind)) };
            }
            3 if self.below(4) == 0 => {
                return Completed { read, result: Err(Error::from(kinds[3])) };
            }
            4..10 => left = 1 + self.below(read.len_bytes()),
            _ => {}
        }
        let mut n_bytes = 0;
        let mut from = self.file.slice(usize::try_from(read.offset_bytes).unwrap().min(self.file.len())..);
        for window in &mut read.windows {
            let n = window.len().min(from.len()).min(usize::try_from(left - n_bytes).unwrap_or(usize::MAX));
            window.bytes_mut()[..n].copy_from_slice(&from.split_to(n));
            n_bytes += n as u64;
        }
        Completed { read, result: Ok(n_bytes) }
    }
}

impl ReadBackend for Flaky {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn submit(&mut self, mut read: Read) -> Result<(), Read> {
        if self.waiting.len() + self.wire.len() == self.limits.depth {
            return Err(read);
        }
        for window in &mut read.windows {
            assert!((window.start() as u64).is_multiple_of(self.limits.align_bytes.into()));
            window.bytes_mut().fill(0xa5);
        }
        assert!(read.len_bytes() > 0 && read.offset_bytes.is_multiple_of(self.limits.align_bytes.into()));
        self.waiting.push(read);
        self.fill_wire();
        Ok(())
    }

    fn withdraw(&mut self, tag: Tag) -> Option<Read> {
        let at = self.waiting.iter().position(|read| read.tag == tag)?;
        Some(self.waiting.remove(at))
    }

    fn wait(&mut self, _until: Nanos, done: &mut Vec<Completed>) {
        self.fill_wire();
        if !self.wire.is_empty() {
            let n_wire = self.wire.len() as u64;
            let at = usize::try_from(self.below(n_wire)).unwrap();
            let read = self.wire.swap_remove(at);
            let completed = self.end(read);
            done.push(completed);
            self.fill_wire();
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Begin { layer: u16, expert: u16, priority: Priority },
    Start,
    Promote { layer: u16, expert: u16 },
    Withdraw { layer: Option<u16> },
    Wait,
}

fn act() -> impl Strategy<Value = Act> {
    let key = || (0..2u16, 0..N_EXPERTS);
    let begin = |priority| move |(layer, expert)| Act::Begin { layer, expert, priority };
    prop_oneof![
        4 => key().prop_map(begin(Priority::Guess)),
        1 => key().prop_map(begin(Priority::Demand)),
        1 => Just(Act::Start),
        1 => key().prop_map(|(layer, expert)| Act::Promote { layer, expert }),
        1 => prop::option::of(0..2u16).prop_map(|layer| Act::Withdraw { layer }),
        8 => Just(Act::Wait),
    ]
}

/// A store, and who has which slot.
struct World {
    model: Model,
    catalog: Arc<Catalog>,
    store: FileStore,
    arena: Arena,
    reading: HashMap<ExpertKey, u32>,
    /// Bytes of fetches that are over.
    read_bytes: u64,
    n_given_up: u64,
    n_withdrawn: u64,
}

impl World {
    fn new(limits: Limits, bite_bytes: Option<u32>, n_wire_max: usize, seed: u64) -> Self {
        let model = Model { n_experts: N_EXPERTS.into(), ..Model::default() };
        let file = Bytes::from(model.file().write());
        let gguf = Gguf::open_bytes("model", file.clone()).unwrap();
        let catalog = Arc::new(Catalog::new(&model.shape(), &gguf).unwrap());
        let (waiting, wire) = (Vec::new(), Vec::new());
        let backend = Flaky { file, limits, n_wire_max, waiting, wire, state: seed };
        let merge = MergeLimits::default();
        let config = StoreConfig { merge, bite_bytes, ..StoreConfig::default() };
        let files = gguf.files().clone();
        let store = FileStore::with_config(Arc::clone(&catalog), files, Box::new(backend), config);
        let arena = Arena::new(N_SLOTS as usize, store.slot_bytes()).unwrap();
        let reading = HashMap::new();
        Self { model, catalog, store, arena, reading, read_bytes: 0, n_given_up: 0, n_withdrawn: 0 }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Begin { layer, expert, priority } => self.begin(ExpertKey::new(layer, expert), priority),
            Act::Start => self.store.start(),
            Act::Promote { layer, expert } => self.store.promote(ExpertKey::new(layer, expert)),
            Act::Withdraw { layer } => self.withdraw(layer.map(LayerId)),
            Act::Wait => {
                self.wait();
            }
        }
    }

    fn begin(&mut self, key: ExpertKey, priority: Priority) {
        let free = (0..N_SLOTS).find(|slot| !self.reading.values().any(|other| other == slot));
        let (Some(slot), false) = (free, self.reading.contains_key(&key)) else { return };
        let lease = self.arena.try_write(SlotIdx(slot)).expect("nobody has it");
        match self.store.begin(key, lease, priority) {
            Ok(()) => assert!(self.reading.insert(key, slot).is_none()),
            Err(Refused { reason, .. }) => assert!(matches!(reason, RefusedReason::QueueFull)),
        }
    }

    fn withdraw(&mut self, layer: Option<LayerId>) {
        let mut withdrawn = Vec::new();
        self.store.withdraw_guesses(layer, &mut withdrawn);
        for Withdrawn { key, lease, read_bytes } in withdrawn {
            assert!(layer.is_none_or(|layer| key.layer == layer));
            assert_eq!(self.reading.remove(&key), Some(lease.slot().0), "{key} comes back once");
            self.read_bytes += read_bytes;
            *(if read_bytes > 0 { &mut self.n_given_up } else { &mut self.n_withdrawn }) += 1;
        }
    }

    /// How many came.
    fn wait(&mut self) -> usize {
        let mut done = Vec::new();
        self.store.wait(Nanos::MAX, &mut done);
        let n = done.len();
        for Fetched { key, result } in done {
            let slot = self.reading.remove(&key).expect("what comes back was begun, and comes once");
            match result {
                Ok(filled) => {
                    assert_eq!(filled.lease.slot(), Some(SlotIdx(slot)));
                    self.check(key, &filled);
                    self.read_bytes += filled.read_bytes;
                }
                Err(StoreError::GivenUp { key: named, read_bytes }) => {
                    assert_eq!(named, key);
                    self.read_bytes += read_bytes;
                    self.n_given_up += 1;
                }
                Err(StoreError::Io { key: named, .. }) => assert_eq!(named, key),
                Err(error) => panic!("{error}"),
            }
            assert!(self.arena.try_write(SlotIdx(slot)).is_some(), "slot {slot} is free again");
        }
        n
    }

    fn check(&self, key: ExpertKey, filled: &Filled) {
        let layout = self.catalog.layout(key.layer).unwrap();
        let lens = [layout.gate.bytes(), layout.up.bytes(), layout.down.bytes()];
        let starts = [filled.parts.gate, filled.parts.up, filled.parts.down];
        for (part, (start, len)) in starts.into_iter().zip(lens).enumerate() {
            assert_eq!(filled.lease.bytes()[start..start + len], self.model.matrix(key, part), "{key}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn every_slot_comes_back_once_and_what_is_filled_is_right(
        acts in prop::collection::vec(act(), 1..80),
        depth in 1usize..64,
        align_bytes in prop::sample::select(vec![1u32, 16, 512]),
        bite_bytes in prop::option::weighted(0.9, 1u32..2000),
        n_wire_max in 1usize..4,
        seed in any::<u64>(),
    ) {
        let mut world = World::new(Limits { depth, align_bytes }, bite_bytes, n_wire_max, seed);
        for act in acts {
            world.act(act);
        }
        while world.wait() > 0 {}
        prop_assert!(world.reading.is_empty(), "{:?} never came back", world.reading);
        let stats = world.store.stats();
        prop_assert_eq!((stats.n_given_up, stats.n_withdrawn), (world.n_given_up, world.n_withdrawn));
        // Neighbours share blocks, whose bytes are read once and count for both.
        prop_assert!(align_bytes > 1 || world.read_bytes <= stats.read_bytes, "bytes from nowhere");
        for slot in (0..N_SLOTS).map(SlotIdx) {
            prop_assert!(world.arena.try_write(slot).is_some(), "{:?} was lost", slot);
        }
    }
}
