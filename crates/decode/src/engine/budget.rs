//! What changes when the memory does.

use super::Engine;
use crate::memory_plan::bytes_text;
use crate::telemetry::Decision;
use crate::{DecodeError, cgroup, commit};

/// Says how many bytes the system wants back, mostly none. It is asked before each step, by whose time it must go itself.
pub type MemoryWatch = Box<dyn FnMut() -> u64 + Send>;

/// Memory that the system has to give, and has in all; `None` where it doesn't say. Not that of a control group, in which
/// pages count as used that can be had at any time.
pub fn system_memory() -> Option<(u64, u64)> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    let (available, total) = (system.available_memory(), system.total_memory());
    (total > 0).then_some((available, total))
}

/// Memory that the system, the control groups around this process, and a limit on what it commits, have to give.
pub(super) fn available_bytes() -> Option<u64> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    let free = system.available_memory();
    let free = cgroup::left_bytes().map_or(free, |left| free.min(left));
    let free = commit::left_bytes().map_or(free, |left| free.min(left));
    (free > 0).then_some(free)
}

impl Engine {
    /// Lowers the budget while the model runs: slots are given up and their memory goes back to the system; mapped
    /// experts go through slots from then on, if it doesn't hold them. Answers don't change.
    ///
    /// # Errors
    /// [`DecodeError::Budget`] when what must stay doesn't fit, [`DecodeError::SlotsPinned`] when a device holds the slots; then
    /// nothing has changed.
    pub fn lower_budget(&mut self, budget_bytes: u64) -> Result<(), DecodeError> {
        self.lower(budget_bytes, "asked for while running")
    }

    /// From now on `watch` is asked before each step whether the system wants memory back, and slots are given up if it does;
    /// or nobody is. It is asked no more once nothing is left to give up.
    pub fn watch_memory(&mut self, watch: Option<MemoryWatch>) {
        self.memory_watch = watch;
    }

    /// Gives back what the system wants, if no step is under way, as far as there is something to give.
    pub(super) fn relieve(&mut self) {
        let Some(mut watch) = self.memory_watch.take_if(|_| !self.aside.is_waiting) else { return };
        let wanted = watch();
        if wanted == 0 {
            self.memory_watch = Some(watch);
            return;
        }
        let why = "the system is short of memory";
        let lowered = match self.lower(self.plan.total().saturating_sub(wanted), why) {
            Err(DecodeError::Budget { smallest_bytes, .. }) if smallest_bytes < self.plan.total() => {
                self.lower(smallest_bytes, why)
            }
            lowered => lowered,
        };
        match lowered {
            Ok(()) => self.memory_watch = Some(watch),
            Err(error) => {
                let reason = format!("{why}, and nothing more can be given up: {error}");
                self.decisions.push(Decision::new("memory", bytes_text(self.plan.total()), reason));
            }
        }
    }

    fn lower(&mut self, budget_bytes: u64, why: &str) -> Result<(), DecodeError> {
        if self.has_pinned_slots {
            return Err(DecodeError::SlotsPinned);
        }
        let plan = self.plan.lowered(budget_bytes)?;
        if plan.mapped < self.plan.mapped {
            self.scheduler.stop_lending();
        }
        self.scheduler.shrink(plan.n_slots)?;
        if plan != self.plan {
            let reason = format!("{why}; {} slots of {} stay", plan.n_slots, self.plan.n_slots);
            self.decisions.push(Decision::new("memory", bytes_text(budget_bytes), reason));
        }
        self.plan = plan;
        Ok(())
    }
}
