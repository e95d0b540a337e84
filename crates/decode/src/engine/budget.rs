//! What changes when the memory does.

use super::Engine;
use crate::DecodeError;
use crate::memory_plan::bytes_text;
use crate::telemetry::Decision;

impl Engine {
    /// Lowers the budget while the model runs: slots are given up and their memory goes back to the system; mapped
    /// experts go through slots from then on, if it doesn't hold them. Answers don't change.
    ///
    /// # Errors
    /// [`DecodeError::Budget`] when what must stay doesn't fit, [`DecodeError::SlotsPinned`] when a device holds the slots; then
    /// nothing has changed.
    pub fn lower_budget(&mut self, budget_bytes: u64) -> Result<(), DecodeError> {
        if self.has_pinned_slots {
            return Err(DecodeError::SlotsPinned);
        }
        let plan = self.plan.lowered(budget_bytes)?;
        if plan.mapped < self.plan.mapped {
            self.scheduler.stop_lending();
        }
        self.scheduler.shrink(plan.n_slots)?;
        if plan != self.plan {
            let choice = bytes_text(budget_bytes);
            let reason =
                format!("asked for while running; {} slots of {} stay", plan.n_slots, self.plan.n_slots);
            self.decisions.push(Decision::new("memory", choice, reason));
        }
        self.plan = plan;
        Ok(())
    }
}
