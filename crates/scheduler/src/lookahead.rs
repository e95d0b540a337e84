//! What is guessed of the layers to come, what of it is read, and what became of it.
//!
//! Knows no slot and no store: the scheduler says what happens and asks what to read. A guess that is offered becomes a
//! [`Candidate`] unless its expert is in memory; `admit` says which of them pay; when their layer is opened all are judged,
//! read or not, so that what is learnt doesn't depend on what was done.

mod asking;
mod config;

use forerun_model::{ExpertKey, LayerId, Nanos};

use crate::admit::{Prospect, saving};
use crate::allowance::Allowance;
use crate::calibrate::Calibration;
use crate::pace::Pace;
use crate::trial::{Trial, Verdict};
use crate::{GUESSES_MAX, Guess, View};
use asking::Asking;
pub use config::{Change, Gate, LookaheadConfig};

/// Share of a turn's computing, in percent, beside which reads of the same turn go on: the last expert that arrives
/// computes alone.
const OVERLAP_PERCENT: u64 = 80;

/// An expert that isn't in memory, or is on its way as a guess.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    key: ExpertKey,
    view: View,
    probability: f32,
    /// What reading it is expected to save; `None` while no read was begun.
    begun: Option<Nanos>,
}

/// A guess that will be judged.
#[derive(Clone, Copy, Debug)]
struct Offered {
    view: View,
    key: ExpertKey,
    rank: usize,
}

/// Guesses of the pass under way, and what was learnt from those before.
#[derive(Debug)]
pub(crate) struct Lookahead {
    config: LookaheadConfig,
    calibration: Calibration,
    pub(crate) pace: Pace,
    allowance: Allowance,
    trial: Trial,
    candidates: Vec<Candidate>,
    offered: Vec<Offered>,
    /// Guesses of this pass that were charged as read in vain, whether or not they were read to their end.
    charged: Vec<ExpertKey>,
    /// Bytes of a read, by layer, as the last one was.
    record_bytes: Vec<u64>,
    /// Rows of the pass under way.
    n_rows: usize,
    /// When the pass began, if its time shall count.
    began: Option<Nanos>,
    asking: Asking,
    /// Whether a guess was read since the last test.
    acted: bool,
    acted_in_pass: bool,
    changes: Vec<Change>,
}

/// Changes that are kept; later ones only change the last.
const CHANGES_MAX: usize = 64;

impl Lookahead {
    pub(crate) fn new(config: LookaheadConfig) -> Self {
        Self {
            calibration: Calibration::default(),
            pace: Pace::with_read(config.read),
            allowance: Allowance::new(config.extra_permille),
            trial: Trial::new(config.width_max),
            candidates: Vec::new(),
            offered: Vec::new(),
            charged: Vec::new(),
            record_bytes: Vec::new(),
            n_rows: 0,
            began: None,
            asking: Asking::default(),
            acted: false,
            acted_in_pass: false,
            changes: Vec::new(),
            config,
        }
    }

    /// Bytes that it grows to with `n_layers` layers.
    pub(crate) fn bytes(n_layers: usize) -> usize {
        let of_guesses =
            size_of::<Candidate>() + size_of::<Offered>() + size_of::<Guess>() + size_of::<ExpertKey>();
        Calibration::bytes(n_layers)
            + Pace::bytes(n_layers)
            + n_layers * size_of::<u64>()
            + GUESSES_MAX * of_guesses
    }

    /// Whether anything is read before its turn.
    pub(crate) fn is_on(&self) -> bool {
        self.config.width_max > 0
    }

    /// Whether guesses about `layer` would be heard now; who is told so asks, which takes time.
    pub(crate) fn listens(&mut self, layer: LayerId, now: Nanos) -> bool {
        let listens = match self.config.gate {
            Gate::Open => self.config.width_max > 0,
            Gate::Paying => self.trial.width() > 0 && !self.asking.dozes(layer),
        };
        self.asking.begins(listens.then_some(now));
        listens
    }

    /// The turn under way is complete after waits of `stall`.
    pub(crate) fn closed(&mut self, stall: Nanos, busy: Nanos) {
        if self.counts() {
            self.pace.closed(busy);
        }
        self.asking.turn_closed(stall);
    }

    /// A pass of `n_rows` begins; its times and bytes count if it is one of decoding, drafts or none.
    pub(crate) fn begin_pass(&mut self, now: Nanos, n_rows: usize) {
        self.forget();
        self.pace.begin_pass();
        self.n_rows = n_rows;
        self.began = (n_rows <= crate::ROWS_GUESSED_MAX).then_some(now);
        self.acted_in_pass = false;
        self.asking.begin_pass();
        self.charged.clear();
    }

    /// Whether what happens is that of a decode step: a prompt's turns are far longer, and its bytes far more.
    fn counts(&self) -> bool {
        self.began.is_some()
    }

    /// The pass is over, and complete; says whether a test of what guesses bring is, too.
    pub(crate) fn end_pass(&mut self, now: Nanos) -> bool {
        let Some(began) = self.began.take() else { return false };
        self.asking.end_pass();
        self.acted |= self.acted_in_pass;
        self.allowance.next_pass();
        // Passes of more rows take longer, whoever guesses.
        if self.config.gate == Gate::Open || self.n_rows > 1 {
            return false;
        }
        let Some(verdict) = self.trial.pass_took(now - began, self.acted) else { return false };
        self.acted = false;
        if verdict.width != verdict.before {
            self.note(&verdict);
        }
        true
    }

    /// Forgets all guesses that weren't judged.
    pub(crate) fn forget(&mut self) {
        self.candidates.clear();
        self.offered.clear();
    }

    /// Guesses about `layer` are new: the ones before are replaced, but for those that are being read.
    ///
    /// Returns the time that asking for them took.
    pub(crate) fn replace(&mut self, view: View, layer: LayerId, now: Nanos, busy: Nanos) -> Nanos {
        let asked = self.asking.took(view, layer, now);
        self.candidates.retain(|c| c.key.layer != layer || c.begun.is_some());
        self.offered.retain(|offered| (offered.view, offered.key.layer) != (view, layer));
        if view.ahead == 1 {
            self.pace.offered(view.stage, layer, busy);
        }
        asked
    }

    /// The guess of `rank` names an expert that isn't in memory.
    pub(crate) fn add(&mut self, view: View, rank: usize, guess: Guess) {
        let Guess { key, probability } = guess;
        let known = |offered: &Offered| (offered.view, offered.key) == (view, key);
        if self.offered.iter().any(known) {
            return;
        }
        self.offered.push(Offered { view, key, rank });
        let probability = match self.config.gate {
            Gate::Open => probability,
            Gate::Paying => self.calibration.probability(view, key.layer, rank),
        };
        match self.candidates.iter_mut().find(|c| c.key == key) {
            Some(candidate) => (candidate.view, candidate.probability) = (view, probability),
            None => self.candidates.push(Candidate { key, view, probability, begun: None }),
        }
    }

    /// Whether any guess could be read.
    pub(crate) fn has_waiting(&self) -> bool {
        self.candidates.iter().any(|c| c.begun.is_none())
    }

    /// Replaces `guesses` by what is worth reading now, the most urgent first. `n_reads`: how many reads the disk has
    /// still to do.
    pub(crate) fn admit(&self, n_reads: usize, busy: Nanos, guesses: &mut Vec<Guess>) {
        guesses.clear();
        let waiting = self.candidates.iter().filter(|c| c.begun.is_none());
        guesses.extend(waiting.map(|c| Guess { key: c.key, probability: c.probability }));
        if self.config.gate == Gate::Open {
            guesses.truncate(self.config.width_max);
            return;
        }
        guesses.sort_unstable_by(|a, b| {
            (a.key.layer.cmp(&b.key.layer))
                .then(b.probability.total_cmp(&a.probability))
                .then(a.key.cmp(&b.key))
        });
        let mut left = self.allowance.left() as f32 - self.at_stake();
        let (mut n_ahead, mut at) = (n_reads, None);
        guesses.retain(|guess| {
            if at.as_ref().is_none_or(|at: &Outlook| at.layer != guess.key.layer) {
                at = Some(self.outlook(guess.key.layer, n_reads, busy));
            }
            at.as_mut().is_some_and(|at| self.take(at, guess, &mut n_ahead, &mut left))
        });
    }

    /// Whether `guess` pays; counts it as taken if so.
    fn take(&self, at: &mut Outlook, guess: &Guess, n_ahead: &mut usize, left: &mut f32) -> bool {
        let at_stake = (1.0 - guess.probability) * self.bytes_of(guess.key.layer) as f32;
        if at.width == 0 || at_stake > *left {
            return false;
        }
        let before = Nanos(at.read.0 * (*n_ahead - at.n_reads) as u64);
        let prospect = Prospect {
            probability: guess.probability,
            read: at.read,
            hold: self.config.hold.unwrap_or(at.read),
            spare: at.spare - before,
            stall: at.stall,
            price: self.allowance.price(),
        };
        let Some(saved) = saving(&prospect) else { return false };
        at.stall = at.stall - saved;
        at.width -= 1;
        *n_ahead += 1;
        *left -= at_stake;
        true
    }

    /// What reads for `layer` would meet; while nothing is known of its times, none may begin.
    fn outlook(&self, layer: LayerId, n_reads: usize, busy: Nanos) -> Outlook {
        let of_layer = || self.candidates.iter().filter(|c| c.key.layer == layer);
        let stage = of_layer().next().map(|c| c.view.stage);
        let times = (self.pace.read(), stage.and_then(|stage| self.pace.lead(stage, layer, busy)));
        let (Some(read), Some(lead), Some(turn)) = (times.0, times.1, self.pace.turn(layer)) else {
            return Outlook { layer, read: Nanos(0), spare: Nanos(0), stall: Nanos(0), width: 0, n_reads };
        };
        let wanted: f32 = of_layer().map(|c| c.probability).sum();
        let saved = of_layer().filter_map(|c| c.begun).fold(Nanos(0), |sum, saved| sum + saved);
        let n_begun = of_layer().filter(|c| c.begun.is_some()).count();
        let reads = read.times(wanted + 0.5);
        Outlook {
            layer,
            read,
            spare: lead.spare(Nanos(read.0 * n_reads as u64)),
            stall: (reads - Nanos(turn.0 * OVERLAP_PERCENT / 100)) - saved,
            width: self.trial.width().saturating_sub(n_begun),
            n_reads,
        }
    }

    /// Bytes that guesses under way are expected to waste.
    fn at_stake(&self) -> f32 {
        let begun = self.candidates.iter().filter(|c| c.begun.is_some());
        begun.map(|c| (1.0 - c.probability) * self.bytes_of(c.key.layer) as f32).sum()
    }

    /// A read was begun for the guess.
    pub(crate) fn begun(&mut self, key: ExpertKey) {
        let saved = self.pace.read().unwrap_or_default();
        self.acted_in_pass = true;
        if let Some(candidate) = self.candidates.iter_mut().find(|c| c.key == key) {
            candidate.begun = Some(saved.times(candidate.probability));
        }
    }

    /// The read was taken back before it began: it is a guess like any other again.
    pub(crate) fn withdrawn(&mut self, key: ExpertKey) {
        if let Some(candidate) = self.candidates.iter_mut().find(|c| c.key == key) {
            candidate.begun = None;
        }
    }

    /// The read was given up half-way. If its layer was opened without it meanwhile, all of it has been charged already.
    pub(crate) fn given_up(&mut self, key: ExpertKey, read_bytes: u64) {
        match self.candidates.iter_mut().find(|c| c.key == key) {
            Some(candidate) => {
                candidate.begun = None;
                self.allowance.wasted(read_bytes);
            }
            None => match self.charged.iter().position(|charged| *charged == key) {
                Some(at) => {
                    self.charged.swap_remove(at);
                    self.allowance.unspent(self.bytes_of(key.layer).saturating_sub(read_bytes));
                }
                None => self.allowance.wasted(read_bytes),
            },
        }
    }

    /// The guess can't be read.
    pub(crate) fn drop_guess(&mut self, key: ExpertKey) {
        self.candidates.retain(|c| c.key != key);
    }

    /// The turn of `layer` begins, which wants `wanted`, ascending; those guesses that weren't on the wire have been
    /// withdrawn.
    pub(crate) fn opened(&mut self, layer: LayerId, wanted: &[ExpertKey], busy: Nanos) {
        self.pace.opened(layer, busy);
        let is_wanted = |key: ExpertKey| wanted.binary_search(&key).is_ok();
        for &Offered { view, key, rank } in self.offered.iter().filter(|offered| offered.key.layer == layer) {
            self.calibration.learn(view, layer, rank, is_wanted(key));
        }
        self.offered.retain(|offered| offered.key.layer != layer);
        let saved = self.candidates.iter().filter(|c| c.key.layer == layer).filter_map(|c| c.begun);
        self.asking.saved(layer, saved.fold(Nanos(0), |sum, saved| sum + saved));
        let bytes = self.bytes_of(layer);
        for candidate in self.candidates.iter().filter(|c| c.key.layer == layer && c.begun.is_some()) {
            if is_wanted(candidate.key) {
                self.allowance.useful(bytes);
            } else {
                self.allowance.wasted(bytes);
                self.charged.push(candidate.key);
            }
        }
        self.candidates.retain(|c| c.key.layer != layer);
    }

    /// An expert that a router asked for has been read.
    pub(crate) fn demand_landed(&mut self, bytes: u64) {
        if self.counts() {
            self.allowance.useful(bytes);
        }
    }

    /// A router wants an expert that was guessed for an earlier pass, in vain.
    pub(crate) fn used_later(&mut self, layer: LayerId) {
        self.allowance.refund(self.bytes_of(layer));
    }

    /// A record of `layer` has so many bytes.
    pub(crate) fn record(&mut self, layer: LayerId, bytes: u64) {
        if self.record_bytes.len() <= layer.idx() {
            self.record_bytes.resize(layer.idx() + 1, 0);
        }
        self.record_bytes[layer.idx()] = bytes;
    }

    fn bytes_of(&self, layer: LayerId) -> u64 {
        self.record_bytes.get(layer.idx()).copied().unwrap_or(0)
    }

    /// What was decided otherwise while the model ran.
    pub(crate) fn changes(&self) -> &[Change] {
        &self.changes
    }

    fn note(&mut self, verdict: &Verdict) {
        let Verdict { width, with, without, next, .. } = *verdict;
        let choice = if width == 0 { "off".to_owned() } else { format!("{width} guesses a layer") };
        let reason = format!(
            "a token took {with} with guesses and {without} without; looked at again after {next} tokens"
        );
        self.changes.truncate(CHANGES_MAX - 1);
        self.changes.push(Change { choice, reason });
    }
}

/// What a guess about a layer would meet.
struct Outlook {
    layer: LayerId,
    read: Nanos,
    /// Time that the disk has before the layer is opened.
    spare: Nanos,
    /// Time that the layer is expected to wait.
    stall: Nanos,
    /// Guesses that it may still have.
    width: usize,
    /// Reads that the disk has still to do.
    n_reads: usize,
}

#[cfg(test)]
mod tests;
