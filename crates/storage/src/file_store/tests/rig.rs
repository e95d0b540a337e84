//! A scripted backend, and a store over it.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Mutex;

use forerun_arena::{Arena, SlotIdx};

use super::super::*;
use crate::backend::copy_into;
use crate::backend::queue::Waiting;
use crate::catalog::tests::catalog_of;
use crate::{Filled, Limits};

/// What a scripted backend does with the next read.
#[derive(Clone, Copy)]
pub(super) enum Act {
    /// Reads at most this many bytes.
    Read(u64),
    Fail(ErrorKind),
}

/// Fills slots with the low byte of each file offset, unless its script says otherwise.
pub(super) struct Scripted {
    pub(super) script: VecDeque<Act>,
    pub(super) queue: Waiting,
    pub(super) limits: Limits,
    /// Reads that have begun and can't be withdrawn: the disk has `n_wire_max` at once.
    pub(super) wire: VecDeque<Read>,
    pub(super) n_wire_max: usize,
    /// Every read that began, as `offset+len>slots`, with a `?` for a guess.
    pub(super) log: Arc<Mutex<Vec<String>>>,
}

/// What every byte of the file is, by its offset.
pub(super) fn byte_at(offset_bytes: u64) -> u8 {
    let [low, high, ..] = offset_bytes.to_le_bytes();
    low ^ high.wrapping_mul(37)
}

impl Scripted {
    pub(super) fn new(limits: Limits, script: &[Act]) -> Self {
        let script = script.iter().copied().collect();
        let (queue, wire, log) = (Waiting::default(), VecDeque::new(), Arc::default());
        Self { script, queue, limits, wire, n_wire_max: 0, log }
    }

    fn fill_wire(&mut self) {
        while self.wire.len() < self.n_wire_max
            && let Some(read) = self.queue.pop()
        {
            self.wire.push_back(read);
        }
    }
}

impl ReadBackend for Scripted {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn submit(&mut self, read: Read) -> Result<(), Read> {
        read.assert_aligned(self.limits.align_bytes);
        if self.queue.len() + self.wire.len() == self.limits.depth {
            return Err(read);
        }
        self.queue.push(read);
        self.fill_wire();
        Ok(())
    }

    fn withdraw(&mut self, tag: Tag) -> Option<Read> {
        self.queue.withdraw(tag)
    }

    fn wait(&mut self, until: Nanos, done: &mut Vec<Completed>) {
        if until == Nanos(0) {
            return;
        }
        let Some(mut read) = self.wire.pop_front().or_else(|| self.queue.pop()) else { return };
        self.fill_wire();
        let mut slots: Vec<u32> = read.windows.iter().map(|window| window.slot().0).collect();
        slots.dedup();
        let mark = if read.priority == Priority::Guess { "?" } else { "" };
        let text = format!("{}+{}>{slots:?}{mark}", read.offset_bytes, read.len_bytes());
        self.log.lock().unwrap().push(text);
        let left = match self.script.pop_front() {
            Some(Act::Fail(kind)) => return done.push(Completed { read, result: Err(kind.into()) }),
            Some(Act::Read(n)) => n,
            None => u64::MAX,
        };
        let result = read.perform(|_, buffers, offset_bytes| {
            let len: usize = buffers.iter().map(|buffer| buffer.len()).sum();
            let n = len.min(usize::try_from(left).unwrap_or(usize::MAX));
            let bytes: Vec<u8> = (offset_bytes..).take(n).map(byte_at).collect();
            Ok(copy_into(buffers, &bytes))
        });
        done.push(Completed { read, result });
    }
}

pub(super) const DEEP: Limits = Limits { depth: 64, align_bytes: 1 };
pub(super) const DIRECT: Limits = Limits { depth: 64, align_bytes: 512 };

pub(super) struct Rig {
    pub(super) store: FileStore,
    pub(super) arena: Arena,
    pub(super) log: Arc<Mutex<Vec<String>>>,
    pub(super) done: Vec<Fetched>,
}

impl Rig {
    pub(super) fn new(limits: Limits, script: &[Act]) -> Self {
        Self::over(Scripted::new(limits, script), StoreConfig::default())
    }

    /// Guesses in bites, over a disk that has so many reads at once.
    pub(super) fn biting(limits: Limits, bite_bytes: u32, n_wire_max: usize, script: &[Act]) -> Self {
        let config = StoreConfig { bite_bytes: Some(bite_bytes), ..StoreConfig::default() };
        Self::over(Scripted { n_wire_max, ..Scripted::new(limits, script) }, config)
    }

    fn over(backend: Scripted, config: StoreConfig) -> Self {
        let catalog = Arc::new(catalog_of());
        let arena = Arena::new(8, catalog.slot_bytes(backend.limits.align_bytes)).unwrap();
        let log = Arc::clone(&backend.log);
        let files = FileSet::new(Vec::new());
        let store = FileStore::with_config(catalog, files, Box::new(backend), config);
        Self { store, arena, log, done: Vec::new() }
    }

    pub(super) fn lease(&self, slot: u32) -> WriteLease {
        self.arena.try_write(SlotIdx(slot)).unwrap()
    }

    /// Begins experts of layer 0 in slots of their own number.
    pub(super) fn begin(&mut self, experts: &[u16], priority: Priority) {
        for &expert in experts {
            let lease = self.lease(expert.into());
            self.store.begin(ExpertKey::new(0, expert), lease, priority).unwrap();
        }
    }

    /// Waits until nothing is in flight; returns the experts in the order in which they came.
    pub(super) fn finish(&mut self) -> Vec<u16> {
        let from = self.done.len();
        loop {
            let before = self.done.len();
            self.store.wait(Nanos::MAX, &mut self.done);
            if self.done.len() == before {
                break;
            }
        }
        for fetched in &self.done[from..] {
            if let Ok(filled) = &fetched.result {
                check_bytes(fetched.key, filled);
            }
        }
        assert!(self.store.in_flight.is_empty() && self.store.fetches.is_empty());
        self.done[from..].iter().map(|fetched| fetched.key.expert.0).collect()
    }

    /// Lets the disk end so many reads.
    pub(super) fn end_reads(&mut self, n: usize) {
        self.store.start();
        for _ in 0..n {
            let mut completed = Vec::new();
            self.store.port.wait(Nanos::MAX, &mut completed);
            completed.into_iter().for_each(|completed| self.store.settle(completed));
        }
    }

    pub(super) fn log(&self) -> String {
        self.log.lock().unwrap().join(" ")
    }
}

/// Every byte of the expert is the file's.
pub(super) fn check_bytes(key: ExpertKey, filled: &Filled) {
    let Filled { lease, parts, .. } = filled;
    let record = catalog_of().record(key).unwrap();
    for (part, at) in record.parts.iter().zip([parts.gate, parts.up, parts.down]) {
        let bytes = &lease.bytes()[at..][..part.len_bytes as usize];
        let expected = (part.offset_bytes..).map(byte_at);
        assert!(bytes.iter().copied().eq(expected.take(bytes.len())), "wrong bytes of {key} at {part:?}");
    }
}
