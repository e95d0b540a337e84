//! An engine that several threads may hold: one makes an answer, the others cancel it, lower its budget, or let go.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{SystemTime, UNIX_EPOCH};

use forerun_decode::config::{CheckpointConfig, DraftChoice};
use forerun_decode::telemetry::Memory;
use forerun_decode::{Batch, DecodeError, DiskProbe, EngineConfig, MemoryPlan, ModelSource, Process};
use serde_json::json;

use crate::CapiError;
use crate::answer::{Answered, Event, answer};
use crate::request::{Ask, fresh_seed};

/// How a model is opened: the numbers of `forerun_options`, zero for what the engine decides.
#[derive(Clone, Debug)]
pub(crate) struct Opening {
    pub(crate) model: PathBuf,
    pub(crate) memory_bytes: u64,
    pub(crate) context: u32,
    pub(crate) threads: u32,
    pub(crate) cache_folder: Option<PathBuf>,
}

/// An open model and the conversation that it remembers.
///
/// Whoever holds the lock of `batch` makes an answer; nobody ever waits for it. `budget` is held for moments only, and always
/// before `batch` is tried: so a wish for less memory is either granted at once, or seen by the one who makes an answer.
pub struct Engine {
    batch: Mutex<Batch>,
    budget: Mutex<Budget>,
    cancelled: AtomicBool,
    closed: AtomicBool,
    telemetry: Mutex<String>,
}

/// The memory plan as it is, or will be before the next layer runs.
struct Budget {
    plan: MemoryPlan,
    /// What it was lowered to and the engine doesn't know yet.
    wish: Option<u64>,
}

impl Engine {
    /// Opens a model, and tells `loading` how many of how many bytes are read.
    ///
    /// # Errors
    /// [`CapiError::Open`], [`CapiError::Cancelled`].
    pub(crate) fn open(
        opening: &Opening,
        loading: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self, CapiError> {
        let engine = forerun_decode::Engine::open(&config(opening)).map_err(CapiError::Open)?;
        let bytes_total = engine.resident_bytes();
        let mut bytes_done = 0;
        for bytes in engine.warm_up() {
            bytes_done += bytes;
            if loading(bytes_done, bytes_total).is_break() {
                return Err(CapiError::Cancelled { bytes_done, bytes_total });
            }
        }
        let plan = engine.plan().clone();
        let memory = Memory::of(&plan, Process::read());
        let telemetry = json!({ "memory": memory, "decisions": engine.decisions() }).to_string();
        Ok(Self {
            batch: Mutex::new(Batch::new(engine)),
            budget: Mutex::new(Budget { plan, wish: None }),
            cancelled: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            telemetry: Mutex::new(telemetry),
        })
    }

    /// Answers, and tells `told` how it goes on.
    ///
    /// # Errors
    /// [`CapiError::Busy`], [`CapiError::Poisoned`], and what may be wrong with the request or befall the answer.
    pub(crate) fn generate(
        &self,
        ask: &Ask<'_>,
        told: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> Result<Answered, CapiError> {
        let mut batch = {
            let _budget = lock(&self.budget);
            let batch = self.try_batch()?.ok_or(CapiError::Busy)?;
            self.cancelled.store(false, Ordering::Relaxed);
            batch
        };
        let answered = answer(self, &mut batch, ask, told);
        // A wish that comes from here on finds the lock of `batch` free.
        let mut budget = lock(&self.budget);
        grant(&mut budget, &mut batch)?;
        drop(batch);
        drop(budget);
        let answered = answered?;
        *lock(&self.telemetry) = answered.telemetry.clone();
        Ok(answered)
    }

    /// Ends the answer that is being made, if one is.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Ends the answer that is being made, and those that begin later.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Whether the answer that is being made is to end.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed) || self.closed.load(Ordering::Relaxed)
    }

    /// Lowers the budget, before the next layer runs at the latest.
    ///
    /// # Errors
    /// [`CapiError::Lower`] when what must stay doesn't fit, [`CapiError::Poisoned`].
    pub fn lower_budget(&self, memory_bytes: u64) -> Result<(), CapiError> {
        let mut budget = lock(&self.budget);
        let batch = self.try_batch()?;
        budget.plan = budget.plan.lowered(memory_bytes).map_err(CapiError::Lower)?;
        budget.wish = Some(budget.wish.map_or(memory_bytes, |wish| wish.min(memory_bytes)));
        match batch {
            Some(mut batch) => grant(&mut budget, &mut batch),
            None => Ok(()),
        }
    }

    /// Gives back what was asked for since it was asked last; called between two layers.
    ///
    /// # Errors
    /// [`CapiError::Lower`], which the plan has ruled out.
    pub(crate) fn grant(&self, batch: &mut Batch) -> Result<(), CapiError> {
        grant(&mut lock(&self.budget), batch)
    }

    /// Where time, bytes and memory went, as JSON.
    pub fn telemetry(&self) -> String {
        lock(&self.telemetry).clone()
    }

    /// `None` while an answer is being made.
    fn try_batch(&self) -> Result<Option<MutexGuard<'_, Batch>>, CapiError> {
        match self.batch.try_lock() {
            Ok(batch) => Ok(Some(batch)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Poisoned(_)) => Err(CapiError::Poisoned),
        }
    }
}

fn grant(budget: &mut Budget, batch: &mut Batch) -> Result<(), CapiError> {
    let Some(memory_bytes) = budget.wish.take() else { return Ok(()) };
    let lowered: Result<(), DecodeError> = batch.engine_mut().lower_budget(memory_bytes);
    budget.plan = batch.engine().plan().clone();
    lowered.map_err(CapiError::Lower)
}

/// What these locks guard is whole whenever a panic can come.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config(opening: &Opening) -> EngineConfig {
    let some = |number: u32| usize::try_from(number).ok().filter(|&n| n > 0);
    let mut config = EngineConfig::new(ModelSource::Path(opening.model.clone()));
    config.budget_bytes = Some(opening.memory_bytes).filter(|&bytes| bytes > 0);
    config.context = some(opening.context);
    config.n_threads = some(opening.threads);
    config.probe = Some(DiskProbe {
        folder: opening.cache_folder.clone(),
        unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        seed: fresh_seed(),
    });
    config.draft = DraftChoice::Auto;
    // The next turn of a conversation goes on from the end of the prompt, where an answer's thoughts aren't yet.
    config.checkpoints = CheckpointConfig { n_max: 1, every: None, is_asked: false };
    config
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::abi;
    use crate::last_error::guarded;
    use crate::request::tests::ask;

    fn pico() -> Engine {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/pico-q4_k_m.gguf");
        let opening = Opening { model, memory_bytes: 0, context: 64, threads: 1, cache_folder: None };
        Engine::open(&opening, &mut |_, _| ControlFlow::Continue(())).unwrap()
    }

    #[test]
    fn a_panic_stays_inside_and_the_engine_is_used_no_more() {
        let engine = pico();
        let request = ask("The river", 4);
        let generate = |told: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>| {
            guarded(|| engine.generate(&request, told).map(|_| ()))
        };
        assert_eq!(generate(&mut |_| ControlFlow::Continue(())), abi::OK);
        let mut n_told = 0;
        let status = generate(&mut |_| {
            n_told += 1;
            assert!(n_told < 3, "this is a bug");
            ControlFlow::Continue(())
        });
        assert_eq!((status, n_told), (abi::ERROR_INTERNAL, 3));
        assert_eq!(generate(&mut |_| ControlFlow::Continue(())), abi::ERROR_INTERNAL);
        assert!(matches!(engine.lower_budget(1 << 40), Err(CapiError::Poisoned)));
        // These touch nothing that the panic may have left half done.
        engine.cancel();
        assert!(engine.telemetry().contains("decode_tokens"));
    }

    #[test]
    fn a_budget_that_is_lowered_meanwhile_is_granted_before_the_answer_goes_on() {
        let engine = pico();
        let total = lock(&engine.budget).plan.total();
        let slot_bytes = lock(&engine.budget).plan.slot_bytes;
        let wish = total - 10 * slot_bytes;
        let n_slots = lock(&engine.budget).plan.n_slots;
        let mut planned = Vec::new();
        let mut told = |event: &Event<'_>| {
            if let Event::Text(..) = event {
                if planned.is_empty() {
                    engine.lower_budget(wish).unwrap();
                }
                let budget = lock(&engine.budget);
                planned.push((budget.plan.n_slots < n_slots, budget.wish));
            }
            ControlFlow::Continue(())
        };
        engine.generate(&ask("The river and the lake", 8), &mut told).unwrap();
        assert!(planned.len() > 1, "{planned:?}");
        assert_eq!(planned[0], (true, Some(wish)));
        assert_eq!(planned.last(), Some(&(true, None)));
        let batch = engine.batch.lock().unwrap();
        assert_eq!(batch.engine().plan().budget, Some(wish));
    }
}
