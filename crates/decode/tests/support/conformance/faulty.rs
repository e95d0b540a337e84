//! Backends that break one rule each, to see that the rules are looked at.

use std::io::{self, Read, Write};
use std::ops::Range;

use forerun_compute::{Backend, Checkpoint, ComputeError, ExpertJob, Scores, SequenceIdx, Step, StepOutput};
use forerun_model::{LayerId, Routing, Stage};

use super::{FIRST, SECOND};

/// What is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A finished step is accepted when the next one begins.
    AcceptsUnasked,
    /// Past 0 forgets what other sequences hold.
    ForgetsOthers,
    /// A row's logits depend on how many rows the step has.
    SeesOtherRows,
    /// Logits depend on which expert came last.
    SeesOrder,
    /// Asking a router changes the logits.
    CountsGuesses,
    /// Nothing is put aside.
    KeepsOnlyOneStep,
    /// A sequence stays where it is.
    RestoresNothing,
    /// The last row is saved as zeros.
    SavesTooLittle,
    /// Taps are of the step's last row, as often as there are rows.
    TapsOneRow,
    /// What isn't a number is passed on.
    PassesOnWhatIsNoNumber,
}

/// A backend with a fault.
pub(crate) struct Faulty {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) fault: Fault,
    n_rows: usize,
    /// Rows of a finished step's only part.
    finished: Option<usize>,
    last_expert: u16,
    n_guesses: u16,
    /// What a sequence is that holds nothing.
    empty: Checkpoint,
}

impl Faulty {
    pub(crate) fn new(backend: Box<dyn Backend>, fault: Fault) -> Self {
        let mut empty = Checkpoint::default();
        backend.save(FIRST, &mut empty).unwrap();
        Self { backend, fault, n_rows: 0, finished: None, last_expert: 0, n_guesses: 0, empty }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }
}

#[deny(clippy::missing_trait_methods)]
impl Backend for Faulty {
    fn begin(&mut self, step: &Step<'_>) -> Result<(), ComputeError> {
        if self.has(Fault::AcceptsUnasked)
            && let Some(n_rows) = self.finished.take()
        {
            self.backend.accept(0, n_rows)?;
        }
        self.backend.begin(step)?;
        if self.has(Fault::ForgetsOthers) && step.parts[0].past == 0 {
            let own = step.parts[0].sequence;
            for sequence in [FIRST, SECOND].into_iter().filter(|sequence| *sequence != own) {
                self.backend.load(sequence, &self.empty, &mut io::empty())?;
            }
        }
        (self.n_rows, self.last_expert, self.n_guesses) = (step.rows.len(), 0, 0);
        Ok(())
    }

    fn mix_route(&mut self, layer: LayerId, routing: &mut Routing) -> Result<(), ComputeError> {
        match self.backend.mix_route(layer, routing) {
            Err(ComputeError::NotFinite { .. }) if self.has(Fault::PassesOnWhatIsNoNumber) => Ok(()),
            other => other,
        }
    }

    fn scores(&mut self, stage: Stage, layer: LayerId, scores: &mut Scores) -> Result<(), ComputeError> {
        self.n_guesses += 1;
        self.backend.scores(stage, layer, scores)
    }

    fn run_shared(&mut self, layer: LayerId) -> Result<(), ComputeError> {
        self.backend.run_shared(layer)
    }

    fn run_expert(&mut self, job: ExpertJob<'_>) -> Result<(), ComputeError> {
        self.last_expert = job.uses[0].expert.0;
        self.backend.run_expert(job)
    }

    fn close_layer(&mut self, layer: LayerId) -> Result<(), ComputeError> {
        self.backend.close_layer(layer)
    }

    fn finish(&mut self, output: &mut StepOutput) -> Result<(), ComputeError> {
        self.backend.finish(output)?;
        self.finished = Some(self.n_rows);
        let off = match self.fault {
            Fault::SeesOtherRows => f32::from(u16::try_from(self.n_rows).unwrap()),
            Fault::SeesOrder => f32::from(self.last_expert),
            Fault::CountsGuesses => f32::from(self.n_guesses),
            _ => 0.0,
        };
        output.logits.iter_mut().for_each(|logit| *logit += off);
        if self.has(Fault::TapsOneRow) {
            let row = output.taps.len() / self.n_rows;
            let last = output.taps.len() - row;
            (0..self.n_rows).for_each(|i| output.taps.copy_within(last.., i * row));
        }
        Ok(())
    }

    fn accept(&mut self, part: usize, n_rows: usize) -> Result<(), ComputeError> {
        self.finished = None;
        self.backend.accept(part, n_rows)
    }

    fn exchange(&mut self) {
        if !self.has(Fault::KeepsOnlyOneStep) {
            self.backend.exchange();
        }
    }

    fn save(&self, sequence: SequenceIdx, checkpoint: &mut Checkpoint) -> Result<(), ComputeError> {
        self.backend.save(sequence, checkpoint)
    }

    fn restore(&mut self, sequence: SequenceIdx, checkpoint: &Checkpoint) -> Result<(), ComputeError> {
        if self.has(Fault::RestoresNothing) {
            return Ok(());
        }
        self.backend.restore(sequence, checkpoint)
    }

    fn save_rows(
        &self,
        sequence: SequenceIdx,
        rows: Range<usize>,
        out: &mut dyn Write,
    ) -> Result<(), ComputeError> {
        if !self.has(Fault::SavesTooLittle) || rows.is_empty() {
            return self.backend.save_rows(sequence, rows, out);
        }
        let mut bytes = Vec::new();
        let n_rows = rows.len();
        self.backend.save_rows(sequence, rows, &mut bytes)?;
        let kept = bytes.len() / n_rows * (n_rows - 1);
        bytes[kept..].fill(0);
        out.write_all(&bytes).map_err(|source| ComputeError::SavedBytes { source })
    }

    fn load(
        &mut self,
        sequence: SequenceIdx,
        checkpoint: &Checkpoint,
        rows: &mut dyn Read,
    ) -> Result<(), ComputeError> {
        self.backend.load(sequence, checkpoint, rows)
    }
}
