//! What stands for the kernels in builds without Metal: nothing.

use candle_core::Tensor;
use forerun_compute::ExpertJob;
use forerun_model::ExpertLayout;

use crate::device::Machine;
use crate::error::Failure;
use crate::recurrence::{Recurrence, best};

/// No device of this build runs experts in slots.
pub(crate) enum InSlots {}

/// The rule of a device, and whatever runs experts in slots.
pub(crate) fn own_kernels(machine: &Machine) -> Result<(Box<dyn Recurrence>, Option<InSlots>), Failure> {
    Ok((best(machine)?, None))
}

impl InSlots {
    pub(crate) fn run(
        &mut self,
        _: &ExpertJob<'_>,
        _: &ExpertLayout,
        _: &Tensor,
    ) -> Result<Option<Tensor>, Failure> {
        match *self {}
    }

    pub(crate) fn release(&mut self) -> Result<(), Failure> {
        match *self {}
    }
}
