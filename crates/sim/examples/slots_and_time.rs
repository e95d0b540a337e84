//! How many slots buy how much time, on a flash with the faults of a bad day: one row per budget.
//!
//! `cargo run -p forerun-sim --example slots_and_time [SEED]`

#![expect(clippy::print_stdout, reason = "an example talks")]

use std::sync::Arc;

use forerun_sim::model::{Clock, Nanos};
use forerun_sim::{Faults, FlashProfile, Guessing, Machine, Progress, ToyBackend, ToyModel, Workload};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seed = std::env::args().nth(1).map_or(Ok(1), |text| text.parse())?;
    let model = ToyModel { n_layers: 8, n_experts: 32, top_k: 4, ..ToyModel::small() };
    let catalog = Arc::new(model.catalog()?);
    let workload = Workload::random(seed, model.n_vocab, 60);
    let profile = FlashProfile {
        jitter: Nanos::from_micros(200),
        bytes_per_second: 100_000_000,
        depth: 16,
        ..FlashProfile::calm()
    };

    println!("slots  guesses   hits   MiB read  faults  ms a token");
    let mut first: Option<Progress> = None;
    for n_slots in [0, 16, 32, 64, 128, model.n_experts_total()] {
        for guessing in [Guessing::None, Guessing::Oracle] {
            let machine = Machine { seed, profile, compute: Nanos::from_micros(20), ..Machine::calm(2) };
            let machine = machine.slots(n_slots).guessing(guessing).faults(Faults::survivable());
            let mut rig = machine.rig(&catalog, vec![model.file()])?;
            let mut progress = Progress::default();
            rig.run(&mut ToyBackend::new(model, 1), &workload, &mut progress)?;

            let (stats, log) = (rig.scheduler.stats(), rig.flash.log());
            let n_faults = log.n_eio + log.n_interrupted + log.n_short + log.n_stalled;
            let ms_a_token = rig.clock.now().as_millis_f64() / f64::from(u32::try_from(progress.past)?);
            println!(
                "{n_slots:5}  {:7}  {:4.1}%  {:9}  {n_faults:6}  {ms_a_token:10.3}",
                if guessing == Guessing::None { "none" } else { "oracle" },
                100.0 * stats.hit_rate(),
                log.read_bytes >> 20,
            );
            assert_eq!(&progress, first.get_or_insert_with(|| progress.clone()), "a result has changed");
        }
    }
    println!("all of them gave the same bits");
    Ok(())
}
