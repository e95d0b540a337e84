//! Hears what routers say in single-token steps and writes it down.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forerun_decode::RoutingObserver;
use forerun_decode::observe::{GuessInput, Row, View};
use forerun_model::{ExpertId, LayerId, Routing, Stage};
use forerun_sim::recording::best;
use forerun_sim::{Recording, TraceShape};
use serde::Serialize;

use super::files::Column;

/// How many of a layer's experts were guessed, over all tokens and all layers but the first.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Recall {
    /// Share found in as many guesses as a token uses experts.
    pub(super) recall_top_k: f64,
    /// Share found in all guesses that are recorded.
    pub(super) recall_predicted: f64,
    #[serde(skip)]
    n_found: [u64; 2],
    #[serde(skip)]
    n_wanted: u64,
    /// For the next layer.
    #[serde(skip)]
    guesses: Vec<ExpertId>,
}

impl Recall {
    fn routed(&mut self, chosen: &[(ExpertId, f32)]) {
        let found = |n: usize| {
            let among = &self.guesses[..n.min(self.guesses.len())];
            chosen.iter().filter(|(expert, _)| among.contains(expert)).count() as u64
        };
        let found = [found(chosen.len()), found(usize::MAX)];
        self.n_wanted += chosen.len() as u64;
        self.n_found = [self.n_found[0] + found[0], self.n_found[1] + found[1]];
        #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 53 bits")]
        let shares = self.n_found.map(|found| found as f64 / self.n_wanted as f64);
        [self.recall_top_k, self.recall_predicted] = shares;
    }
}

/// Writes down what is heard.
pub(super) struct Recorder {
    recording: Recording<Column>,
    shape: TraceShape,
    /// After mixers, and after layers.
    recalls: [Recall; 2],
    /// Whether the step is one token: those of more are a prompt's, or a draft's.
    is_single: bool,
    failed: Option<io::Error>,
}

impl Recorder {
    pub(super) fn new(shape: TraceShape, columns: [Column; forerun_sim::recording::N_COLUMNS]) -> Self {
        let recording = Recording::over(shape, columns);
        Self { recording, shape, recalls: Default::default(), is_single: false, failed: None }
    }

    /// What was recorded, for which model, and how good the guesses were.
    ///
    /// # Errors
    /// The first that a sink had.
    pub(super) fn finish(self) -> io::Result<(Recording<Column>, TraceShape, [Recall; 2])> {
        match self.failed {
            Some(error) => Err(error),
            None => Ok((self.recording, self.shape, self.recalls)),
        }
    }

    fn write(&mut self, write: impl FnOnce(&mut Recording<Column>) -> io::Result<()>) {
        if self.failed.is_none() {
            self.failed = write(&mut self.recording).err();
        }
    }
}

/// A recorder that an engine has an ear of.
pub(super) struct Shared(pub(super) Arc<Mutex<Recorder>>);

impl Shared {
    fn get(&self) -> MutexGuard<'_, Recorder> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RoutingObserver for Shared {
    fn begin(&mut self, rows: &[Row]) {
        let mut recorder = self.get();
        recorder.is_single = rows.len() == 1;
        if recorder.is_single {
            recorder.write(|recording| recording.begin(rows[0].token));
        }
    }

    fn asks(&self, view: View) -> bool {
        view.ahead == 1 && self.get().is_single
    }

    fn routed(&mut self, layer: LayerId, routing: &Routing) {
        let mut recorder = self.get();
        if !recorder.is_single {
            return;
        }
        recorder.write(|recording| recording.push(routing.row(0)));
        if layer != LayerId(0) {
            recorder.recalls.iter_mut().for_each(|recall| recall.routed(routing.row(0)));
        }
    }

    fn told(&mut self, input: &GuessInput<'_>) {
        let mut recorder = self.get();
        let guesses = best(input.probabilities, recorder.shape.n_predicted());
        let [mid, out] = match input.view.stage {
            Stage::Begin => [true, true],
            Stage::Early => [true, false],
            Stage::Closed => [false, true],
        };
        if mid {
            recorder.write(|recording| recording.push_prev_mid(&guesses));
            recorder.recalls[0].guesses.clone_from(&guesses);
        }
        if out {
            recorder.write(|recording| recording.push_prev_out(&guesses));
            recorder.recalls[1].guesses = guesses;
        }
    }
}
