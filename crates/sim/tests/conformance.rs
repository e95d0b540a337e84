//! The simulated flash is a read backend like any other.

use forerun_model::Nanos;
use forerun_sim::{Faults, FlashProfile, SimFlash, VirtualClock};
use forerun_storage::conformance;

#[test]
fn a_calm_flash_conforms() {
    conformance::check(|files| {
        SimFlash::new(files.to_vec(), FlashProfile::calm(), Faults::none(), 1, VirtualClock::new())
    });
}

#[test]
fn a_deep_flash_that_finishes_in_any_order_conforms() {
    let profile = FlashProfile { depth: 17, jitter: Nanos::from_millis(3), ..FlashProfile::calm() };
    for seed in 0..20 {
        conformance::check(|files| {
            SimFlash::new(files.to_vec(), profile, Faults::none(), seed, VirtualClock::new())
        });
    }
}

#[test]
fn a_flash_that_stalls_conforms() {
    let faults = Faults { stall_permille: 500, stall: Nanos::from_millis(9), ..Faults::none() };
    conformance::check(|files| {
        SimFlash::new(files.to_vec(), FlashProfile::calm(), faults, 5, VirtualClock::new())
    });
}
