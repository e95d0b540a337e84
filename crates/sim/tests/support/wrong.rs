//! A toy that makes one of two mistakes on purpose.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::ops::Range;

use forerun_compute::{Backend, Checkpoint, ComputeError, ExpertJob, Scores, SequenceIdx, Step, StepOutput};
use forerun_model::{LayerId, PartOffsets, Routing, Stage, Use};
use forerun_sim::ToyBackend;

/// What a backend double does otherwise than the toy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// Results are added as they arrive, not by rank.
    ArrivalOrder,
    /// An expert computes after its slot was filled anew.
    LateRead,
}

/// A toy with a mistake.
pub(crate) struct Wrong {
    toy: ToyBackend,
    mistake: Mistake,
    /// Experts that have run in the layer, by row.
    n_arrived: HashMap<u32, u32>,
    /// An expert that computes when the next one has come.
    late: Option<(PartOffsets, Vec<Use>)>,
}

impl Wrong {
    pub(crate) fn new(toy: ToyBackend, mistake: Mistake) -> Self {
        Self { toy, mistake, n_arrived: HashMap::new(), late: None }
    }

    fn in_order_of_arrival(&mut self, uses: &[Use]) -> Vec<Use> {
        let next = |&u: &Use| {
            let n = self.n_arrived.entry(u.row).or_default();
            *n += 1;
            Use { rank: *n - 1, ..u }
        };
        uses.iter().map(next).collect()
    }
}

impl Backend for Wrong {
    fn begin(&mut self, step: &Step<'_>) -> Result<(), ComputeError> {
        self.toy.begin(step)
    }

    fn mix_route(&mut self, layer: LayerId, routing: &mut Routing) -> Result<(), ComputeError> {
        self.n_arrived.clear();
        self.toy.mix_route(layer, routing)
    }

    fn scores(&mut self, stage: Stage, layer: LayerId, scores: &mut Scores) -> Result<(), ComputeError> {
        self.toy.scores(stage, layer, scores)
    }

    fn run_shared(&mut self, layer: LayerId) -> Result<(), ComputeError> {
        self.toy.run_shared(layer)
    }

    fn run_expert(&mut self, job: ExpertJob<'_>) -> Result<(), ComputeError> {
        match self.mistake {
            Mistake::ArrivalOrder => {
                let uses = self.in_order_of_arrival(job.uses);
                self.toy.run_expert(ExpertJob { uses: &uses, ..job })
            }
            Mistake::LateRead => {
                let late = self.late.replace((job.parts, job.uses.to_vec()));
                let Some((parts, uses)) = late else { return Ok(()) };
                self.toy.run_expert(ExpertJob { parts, uses: &uses, ..job })
            }
        }
    }

    fn close_layer(&mut self, layer: LayerId) -> Result<(), ComputeError> {
        self.toy.close_layer(layer)
    }

    fn finish(&mut self, output: &mut StepOutput) -> Result<(), ComputeError> {
        self.toy.finish(output)
    }

    fn accept(&mut self, part: usize, n_rows: usize) -> Result<(), ComputeError> {
        self.toy.accept(part, n_rows)
    }

    fn exchange(&mut self) {
        self.toy.exchange();
    }

    fn save(&self, sequence: SequenceIdx, checkpoint: &mut Checkpoint) -> Result<(), ComputeError> {
        self.toy.save(sequence, checkpoint)
    }

    fn restore(&mut self, sequence: SequenceIdx, checkpoint: &Checkpoint) -> Result<(), ComputeError> {
        self.toy.restore(sequence, checkpoint)
    }

    fn save_rows(
        &self,
        sequence: SequenceIdx,
        rows: Range<usize>,
        out: &mut dyn Write,
    ) -> Result<(), ComputeError> {
        self.toy.save_rows(sequence, rows, out)
    }

    fn load(
        &mut self,
        sequence: SequenceIdx,
        checkpoint: &Checkpoint,
        rows: &mut dyn Read,
    ) -> Result<(), ComputeError> {
        self.toy.load(sequence, checkpoint, rows)
    }
}
