//! How long things take: a read, and each layer's computing, as far as the scheduler can see.

use forerun_model::{LayerId, Nanos, Stage};

/// Share that a new sample has in an average, as one in so many.
const SAMPLES: u64 = 8;

/// An average that follows.
#[derive(Clone, Copy, Debug, Default)]
struct Mean(Option<u64>);

impl Mean {
    fn add(&mut self, sample: Nanos) {
        let sample = sample.0;
        self.0 = Some(self.0.map_or(sample, |mean| (mean * (SAMPLES - 1) + sample) / SAMPLES));
    }

    fn get(self) -> Option<Nanos> {
        self.0.map(Nanos)
    }
}

/// Times of one layer.
#[derive(Clone, Copy, Debug, Default)]
struct Layer {
    /// From the layer's opening to the end of its turn, without stalls.
    turn: Mean,
    /// From an offer about the layer to its opening, without stalls: at the start of the pass, in the turn of the layer
    /// before, after that.
    leads: [Mean; 3],
}

/// What is waiting to become a lead: when an offer about a layer was made.
#[derive(Clone, Copy, Debug)]
struct Offer {
    stage: Stage,
    layer: LayerId,
    at: Nanos,
}

/// Learns times from what the scheduler sees of them. All points are in *busy time*: the clock without stalls.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    read: Mean,
    layers: Vec<Layer>,
    offers: Vec<Offer>,
    opened: Option<(LayerId, Nanos)>,
}

impl Pace {
    /// Bytes that it grows to with `n_layers` layers.
    pub(crate) fn bytes(n_layers: usize) -> usize {
        n_layers * size_of::<Layer>()
    }

    /// Begins with what a probe said of a read.
    pub(crate) fn with_read(hint: Option<Nanos>) -> Self {
        Self { read: Mean(hint.map(|read| read.0)), ..Self::default() }
    }

    /// A disk that had nothing else to do took `span` for each of some reads.
    pub(crate) fn read_took(&mut self, span: Nanos) {
        self.read.add(span);
    }

    /// Time that one more read takes a busy disk.
    pub(crate) fn read(&self) -> Option<Nanos> {
        self.read.get()
    }

    /// A pass begins: what was under way is over.
    pub(crate) fn begin_pass(&mut self) {
        self.offers.clear();
        self.opened = None;
    }

    /// An offer about `layer` is made.
    pub(crate) fn offered(&mut self, stage: Stage, layer: LayerId, busy: Nanos) {
        self.offers.retain(|offer| (offer.stage, offer.layer) != (stage, layer));
        self.offers.push(Offer { stage, layer, at: busy });
    }

    /// The turn of `layer` begins.
    pub(crate) fn opened(&mut self, layer: LayerId, busy: Nanos) {
        for i in (0..self.offers.len()).rev() {
            if self.offers[i].layer == layer {
                let Offer { stage, at, .. } = self.offers.swap_remove(i);
                self.layer(layer).leads[stage as usize].add(busy - at);
            }
        }
        self.opened = Some((layer, busy));
    }

    /// The turn ends, complete.
    pub(crate) fn closed(&mut self, busy: Nanos) {
        if let Some((layer, at)) = self.opened.take() {
            self.layer(layer).turn.add(busy - at);
        }
    }

    /// Time from now to the opening of `layer`, about which an offer was made at `stage`: what is left of the turn
    /// under way, and what comes after it.
    pub(crate) fn lead(&self, stage: Stage, layer: LayerId, busy: Nanos) -> Option<Lead> {
        let times = self.layers.get(layer.idx())?;
        let lead = times.leads[stage as usize].get()?;
        let offer = self.offers.iter().find(|offer| (offer.stage, offer.layer) == (stage, layer));
        let left = lead - offer.map_or(Nanos(0), |offer| busy - offer.at);
        // What comes after a turn is known from offers that were made there.
        let after = times.leads[Stage::Closed as usize].get().unwrap_or(lead);
        Some(match stage {
            Stage::Early => Lead { turn: left - after, after: after.min(left) },
            Stage::Begin | Stage::Closed => Lead { turn: Nanos(0), after: left },
        })
    }

    /// Time that the turn of `layer` computes.
    pub(crate) fn turn(&self, layer: LayerId) -> Option<Nanos> {
        self.layers.get(layer.idx())?.turn.get()
    }

    fn layer(&mut self, layer: LayerId) -> &mut Layer {
        if self.layers.len() <= layer.idx() {
            self.layers.resize(layer.idx() + 1, Layer::default());
        }
        &mut self.layers[layer.idx()]
    }
}

/// Computing that is still to be done before a layer is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lead {
    /// In the turn under way, while its own reads go on.
    pub(crate) turn: Nanos,
    /// After it, when the disk has nothing that anybody waits for.
    pub(crate) after: Nanos,
}

impl Lead {
    /// Time that the disk has for guesses, if demands keep it busy for `demands` from now on.
    pub(crate) fn spare(self, demands: Nanos) -> Nanos {
        (self.turn - demands) + self.after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const L1: LayerId = LayerId(1);

    fn ms(millis: u64) -> Nanos {
        Nanos::from_millis(millis)
    }

    #[test]
    fn a_lead_is_what_the_last_passes_took() {
        let mut pace = Pace::default();
        assert_eq!(pace.lead(Stage::Early, L1, ms(0)), None);
        pace.offered(Stage::Early, L1, ms(10));
        pace.offered(Stage::Closed, L1, ms(13));
        pace.opened(L1, ms(15));
        pace.closed(ms(19));
        assert_eq!(pace.turn(L1), Some(ms(4)));
        pace.offered(Stage::Early, L1, ms(100));
        assert_eq!(pace.lead(Stage::Early, L1, ms(100)), Some(Lead { turn: ms(3), after: ms(2) }));
        assert_eq!(pace.lead(Stage::Early, L1, ms(102)), Some(Lead { turn: ms(1), after: ms(2) }));
        assert_eq!(pace.lead(Stage::Early, L1, ms(104)), Some(Lead { turn: ms(0), after: ms(1) }));
        assert_eq!(pace.lead(Stage::Early, L1, ms(200)), Some(Lead { turn: ms(0), after: ms(0) }));
    }

    #[test]
    fn demands_come_out_of_the_turn_and_not_of_what_follows() {
        let lead = Lead { turn: ms(3), after: ms(2) };
        assert_eq!([0, 2, 9].map(|demands| lead.spare(ms(demands))), [ms(5), ms(3), ms(2)]);
    }

    #[test]
    fn an_abandoned_pass_teaches_nothing() {
        let mut pace = Pace::default();
        pace.offered(Stage::Closed, L1, ms(1));
        pace.begin_pass();
        pace.opened(L1, ms(100));
        assert_eq!(pace.lead(Stage::Closed, L1, ms(100)), None);
    }

    #[test]
    fn averages_follow() {
        let mut pace = Pace::with_read(Some(ms(1)));
        (0..50).for_each(|_| pace.read_took(ms(3)));
        assert!(pace.read().is_some_and(|read| read > ms(2) && read <= ms(3)));
    }
}
