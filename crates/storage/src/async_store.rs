//! The async face of an [`ExpertStore`]: a key in, an expert's bytes out, for programs that run on tokio.
//!
//! A thread of its own drives the store, so that no task ever blocks; it sleeps when nothing is asked for. Requests wait
//! in a bounded queue, and a full one makes the caller wait: memory is the slots, the queue, and the records that
//! callers hold.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use forerun_arena::{Arena, SlotIdx, WriteLease};
use forerun_model::{Clock, ExpertKey, ExpertLayout, Nanos};
use tokio::sync::{mpsc, oneshot};

use crate::{Catalog, ExpertStore, Fetched, Filled, Priority, Refused, RefusedReason, StoreError};

/// Requests that may wait to be begun; one more makes its caller wait.
const QUEUE: usize = 64;

/// While something is being read, new requests are looked for this often.
const LOOK: Nanos = Nanos::from_micros(200);

/// Reads experts for tasks. Clones share one store, whose thread ends when the last one is dropped.
///
/// Dropping a future gives up its expert: one that isn't being read yet is never read.
#[derive(Clone, Debug)]
pub struct AsyncExpertStore {
    requests: mpsc::Sender<Request>,
    catalog: Arc<Catalog>,
}

type Answer = oneshot::Sender<Result<Bytes, StoreError>>;

struct Request {
    key: ExpertKey,
    answer: Answer,
}

impl AsyncExpertStore {
    /// Starts the thread that drives `store`, of the experts in `catalog`, with the slots of `arena`. As many experts
    /// are read at once as there are slots; nobody else may take leases of them. The time of `clock` must pass as the
    /// machine's does.
    ///
    /// # Errors
    /// When the system refuses the thread.
    pub fn start(
        store: Box<dyn ExpertStore>,
        catalog: Arc<Catalog>,
        arena: Arena,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let (requests, inbox) = mpsc::channel(QUEUE);
        let driver = Driver {
            store,
            catalog: Arc::clone(&catalog),
            free: (0..).take(arena.n_slots()).map(SlotIdx).collect(),
            arena,
            clock,
            inbox,
            waiting: VecDeque::new(),
            reading: HashMap::new(),
        };
        thread::Builder::new().name("experts".into()).spawn(move || driver.run())?;
        Ok(Self { requests, catalog })
    }

    /// The matrices of `key`, gate, up and down, each where [`ExpertLayout::offsets`] of [`Self::layout`] says.
    ///
    /// # Errors
    /// [`StoreError`]: no such expert, or it can't be read.
    ///
    /// # Panics
    /// When the store has panicked.
    pub async fn read(&self, key: ExpertKey) -> Result<Bytes, StoreError> {
        let (answer, reply) = oneshot::channel();
        let sent = self.requests.send(Request { key, answer }).await;
        assert!(sent.is_ok(), "the thread that reads experts has panicked");
        reply.await.expect("the thread that reads experts has panicked")
    }

    /// Types and sizes of the matrices that [`Self::read`] gives for an expert of this layer; `None` when there is no
    /// such layer.
    pub fn layout(&self, layer: forerun_model::LayerId) -> Option<&ExpertLayout> {
        self.catalog.layout(layer)
    }
}

/// Owned by the thread.
struct Driver {
    store: Box<dyn ExpertStore>,
    catalog: Arc<Catalog>,
    arena: Arena,
    clock: Arc<dyn Clock>,
    inbox: mpsc::Receiver<Request>,
    free: Vec<SlotIdx>,
    /// Not begun.
    waiting: VecDeque<Request>,
    /// Being read: the slot, and who waits for it.
    reading: HashMap<ExpertKey, (SlotIdx, Vec<Answer>)>,
}

impl Driver {
    fn run(mut self) {
        let mut done = Vec::new();
        loop {
            if self.waiting.is_empty() && self.reading.is_empty() {
                let Some(request) = self.inbox.blocking_recv() else { return };
                self.waiting.push_back(request);
            }
            while self.waiting.len() < QUEUE
                && let Ok(request) = self.inbox.try_recv()
            {
                self.waiting.push_back(request);
            }
            self.begin();
            self.store.start();
            if !self.reading.is_empty() {
                self.store.wait(self.clock.now() + LOOK, &mut done);
            }
            for fetched in done.drain(..) {
                self.end(fetched);
            }
        }
    }

    /// Begins what there are slots for.
    fn begin(&mut self) {
        for _ in 0..self.waiting.len() {
            let Some(Request { key, answer }) = self.waiting.pop_front() else { return };
            if answer.is_closed() {
                continue;
            }
            if let Some((_, answers)) = self.reading.get_mut(&key) {
                answers.push(answer);
                continue;
            }
            let Some((slot, lease)) = self.free_slot() else {
                return self.waiting.push_front(Request { key, answer });
            };
            match self.store.begin(key, lease, Priority::Demand) {
                Ok(()) => {
                    self.reading.insert(key, (slot, vec![answer]));
                }
                Err(Refused { reason: RefusedReason::QueueFull, .. }) => {
                    self.free.push(slot);
                    return self.waiting.push_front(Request { key, answer });
                }
                Err(Refused { reason: RefusedReason::Never(error), .. }) => {
                    self.free.push(slot);
                    // Whoever asked may be gone.
                    let _ = answer.send(Err(error));
                }
            }
        }
    }

    fn free_slot(&mut self) -> Option<(SlotIdx, WriteLease)> {
        let slot = self.free.pop()?;
        let lease = self.arena.try_write(slot).expect("nobody else takes leases of these slots");
        Some((slot, lease))
    }

    /// Answers everybody who waits for an expert that was read.
    fn end(&mut self, Fetched { key, result }: Fetched) {
        let (slot, answers) = self.reading.remove(&key).expect("a store gives back what was begun, once");
        self.free.push(slot);
        let mut answers = answers.into_iter();
        let answered = match result {
            Ok(filled) => {
                let bytes = self.record(key, &filled);
                // Whoever asked may be gone.
                answers.by_ref().for_each(|answer| drop(answer.send(Ok(bytes.clone()))));
                return;
            }
            Err(error) => answers.next().map(|answer| drop(answer.send(Err(error)))),
        };
        debug_assert!(answered.is_some(), "somebody asked for it");
        // An error has one owner; the others ask again and get their own.
        self.waiting.extend(answers.map(|answer| Request { key, answer }));
    }

    /// The matrices without what lies around them in the slot.
    fn record(&self, key: ExpertKey, filled: &Filled) -> Bytes {
        let layout = self.catalog.layout(key.layer).expect("the catalog had the key");
        let (to, from) = (layout.offsets(), filled.parts);
        let mut record = vec![0; layout.record_bytes()];
        for (to, from, len) in [
            (to.gate, from.gate, layout.gate.bytes()),
            (to.up, from.up, layout.up.bytes()),
            (to.down, from.down, layout.down.bytes()),
        ] {
            record[to..to + len].copy_from_slice(&filled.lease.bytes()[from..from + len]);
        }
        record.into()
    }
}
