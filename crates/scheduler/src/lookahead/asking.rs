//! Which layers' routers are worth asking: what it costs against what it saves.

use forerun_model::{LayerId, Nanos, Stage};

use crate::View;

/// Passes in which everybody is asked, before it is known what asking brings.
const LEARN_PASSES: u32 = 24;
/// A layer about which asking takes more time than it saves is asked about in one pass of so many.
const DOZE_EVERY: u32 = 16;
/// Share that a new sample has in what asking costs and saves, as one in so many.
const SAMPLES: i64 = 16;

/// Reckons, for each layer, what asking about it saves beyond its cost.
#[derive(Debug, Default)]
pub(crate) struct Asking {
    n_passes: u32,
    /// By layer, in nanoseconds, on average.
    worth: Vec<i64>,
    /// Time spent on asking in the turn under way, by the layer that was asked about.
    asked: Vec<(LayerId, Nanos)>,
    /// When somebody was told to ask.
    since: Option<Nanos>,
}

impl Asking {
    /// Whether asking about `layer` isn't worth its time in this pass.
    pub(crate) fn dozes(&self, layer: LayerId) -> bool {
        // Layers wake up in different passes.
        let is_awake = (self.n_passes + u32::from(layer.0)).is_multiple_of(DOZE_EVERY);
        let is_worth = self.worth.get(layer.idx()).is_none_or(|worth| *worth >= 0);
        self.n_passes >= LEARN_PASSES && !is_awake && !is_worth
    }

    /// A pass begins: what an abandoned one asked isn't charged.
    pub(crate) fn begin_pass(&mut self) {
        self.asked.clear();
    }

    /// A pass is over.
    pub(crate) fn end_pass(&mut self) {
        self.n_passes = self.n_passes.saturating_add(1);
    }

    /// Somebody was told to ask now, or not to.
    pub(crate) fn begins(&mut self, now: Option<Nanos>) {
        self.since = now;
    }

    /// The answer about `layer` is here; returns how long it took.
    pub(crate) fn took(&mut self, view: View, layer: LayerId, now: Nanos) -> Nanos {
        let took = self.since.take().map_or(Nanos(0), |since| now - since);
        match view.stage {
            _ if took.0 == 0 => {}
            // Nothing is read meanwhile that anybody waits for.
            Stage::Begin | Stage::Closed => self.add(layer, -signed(took)),
            Stage::Early => self.asked.push((layer, took)),
        }
        took
    }

    /// The turn under way is complete after waits of `stall`: time that asking took while reads went on was free.
    pub(crate) fn turn_closed(&mut self, stall: Nanos) {
        let mut free = stall;
        for i in 0..self.asked.len() {
            let (layer, took) = self.asked[i];
            self.add(layer, -signed(took - free));
            free = free - took;
        }
        self.asked.clear();
    }

    /// `layer` is opened; reads begun before it are expected to have saved so much.
    pub(crate) fn saved(&mut self, layer: LayerId, saved: Nanos) {
        if let Some(worth) = self.worth.get_mut(layer.idx()) {
            *worth += signed(saved) / SAMPLES - *worth / SAMPLES;
        }
    }

    fn add(&mut self, layer: LayerId, nanos: i64) {
        if self.worth.len() <= layer.idx() {
            self.worth.resize(layer.idx() + 1, 0);
        }
        self.worth[layer.idx()] += nanos / SAMPLES;
    }
}

fn signed(nanos: Nanos) -> i64 {
    i64::try_from(nanos.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYER: LayerId = LayerId(1);

    /// Asks in so many passes for a microsecond each, of which `stall` hides some; how often it dozes in as many more.
    fn dozes(stage: Stage, saved: u64, stall: u64) -> usize {
        let mut asking = Asking::default();
        let mut n_dozes = 0;
        for _ in 0..320 {
            asking.begin_pass();
            n_dozes += usize::from(asking.dozes(LAYER));
            asking.begins(Some(Nanos(0)));
            assert_eq!(asking.took(View { stage, ahead: 1 }, LAYER, Nanos(1000)), Nanos(1000));
            asking.turn_closed(Nanos(stall));
            asking.saved(LAYER, Nanos(saved));
            asking.end_pass();
        }
        n_dozes
    }

    #[test]
    fn who_costs_more_than_it_saves_dozes_and_wakes_up_now_and_then() {
        assert_eq!(dozes(Stage::Closed, 2000, 0), 0);
        let n_dozes = dozes(Stage::Closed, 500, 0);
        assert!((270..300).contains(&n_dozes), "{n_dozes}");
    }

    #[test]
    fn time_that_is_waited_for_reads_anyway_costs_nothing() {
        assert_eq!(dozes(Stage::Early, 100, 5000), 0);
        assert!(dozes(Stage::Early, 100, 0) > 200);
        assert!(dozes(Stage::Closed, 100, 5000) > 200, "between turns nobody waits");
    }
}
