//! A walk through the layers, as decoding does it, for one token or several.

use forerun_model::{Clock as _, ExpertId, LayerId, Nanos, Routing, Stage};
use forerun_scheduler::{GuessInput, Listener, Scheduler, View};

use super::compute::Spans;
use super::stretch::Stretch;
use super::{Replay, Told};
use crate::{Guesses, RunError, Trace, VirtualClock};

/// Passes over a trace's tokens.
pub(super) struct Walk<'a> {
    trace: &'a Trace,
    stretch: Stretch,
    layers: Vec<LayerId>,
    told: Told,
    spans: Spans,
    /// What each row beyond the first adds to a part's time, as a share of the first.
    row_growth: f32,
    clock: VirtualClock,
    /// Time spent on asking routers ahead of their turn.
    pub(super) asked: Nanos,
    routing: Routing,
    chosen: Vec<(ExpertId, f32)>,
    probabilities: Vec<f32>,
}

impl<'a> Walk<'a> {
    /// A walk over `trace` on the machine of `replay`, whose time passes on `clock`.
    pub(super) fn new(replay: &Replay, trace: &'a Trace, clock: &VirtualClock) -> Self {
        Self {
            trace,
            stretch: Stretch::new(trace, replay.n_layers),
            layers: (0..u16::MAX).map(LayerId).take(replay.n_layers).collect(),
            told: replay.told,
            spans: replay.compute.spans(replay.n_layers, trace.top_k),
            row_growth: 1.0,
            clock: clock.clone(),
            asked: Nanos(0),
            routing: Routing::default(),
            chosen: Vec::new(),
            probabilities: Vec::new(),
        }
    }

    /// The same with rows that cost `row_growth` of the first each.
    pub(super) fn growing(self, row_growth: f32) -> Self {
        Self { row_growth, ..self }
    }

    /// The time of one token when nothing is waited for or asked ahead.
    pub(super) fn token_alone(&self) -> Nanos {
        let Spans { mixer, shared, expert, head, .. } = self.spans;
        let experts = expert.0.saturating_mul(self.trace.top_k as u64);
        let layer = mixer.0.saturating_add(shared.0).saturating_add(experts);
        Nanos(layer.saturating_mul(self.layers.len() as u64).saturating_add(head.0))
    }

    /// One pass; each row is routed as that token of the trace, or as a token beyond its end from the beginning again.
    pub(super) fn pass(&mut self, scheduler: &mut Scheduler, tokens: &[usize]) -> Result<(), RunError> {
        scheduler.begin_pass(tokens.len());
        self.look_ahead(Stage::Begin, tokens, 0, scheduler.listener());
        for i in 0..self.layers.len() {
            self.layer(scheduler, tokens, i)?;
        }
        self.spend(self.spans.head, tokens.len());
        scheduler.end_pass()?;
        Ok(())
    }

    /// Lets the time of a part pass that takes `span` for one row.
    fn spend(&self, span: Nanos, n_rows: usize) {
        let further = n_rows.saturating_sub(1);
        self.clock.advance(span + span.times(self.row_growth * further as f32));
    }

    fn layer(&mut self, scheduler: &mut Scheduler, tokens: &[usize], i: usize) -> Result<(), RunError> {
        let layer = self.layers[i];
        self.route(tokens, layer);
        self.spend(self.spans.mixer, tokens.len());
        let mut turn = scheduler.open_layer(layer, &self.routing)?;
        self.look_ahead(Stage::Early, tokens, i + 1, turn.listener());
        self.spend(self.spans.shared, tokens.len());
        while let Some(ready) = turn.next_ready()? {
            self.spend(self.spans.expert, self.routing.uses(ready.key.expert).len());
        }
        drop(turn);
        self.look_ahead(Stage::Closed, tokens, i + 1, scheduler.listener());
        Ok(())
    }

    fn route(&mut self, tokens: &[usize], layer: LayerId) {
        self.routing.reset(self.trace.top_k);
        for &token in tokens {
            let (at, from) = self.stretch.at(token, layer);
            self.chosen.clear();
            self.chosen.extend(self.trace.row(at, from).iter().map(|&id| (ExpertId(id.into()), 1.0)));
            self.routing.push_row(&self.chosen);
        }
        self.routing.group();
    }

    /// Offers what the routers of the layers from the `first` on say at `stage`, as far as anybody listens and
    /// something is known.
    fn look_ahead(&mut self, stage: Stage, tokens: &[usize], first: usize, mut to: Listener<'_>) {
        for (i, ahead) in (first..self.layers.len()).zip(1..) {
            let (layer, view) = (self.layers[i], View { stage, ahead });
            if !to.listens(view, layer) {
                break;
            }
            if to.wants_scores() {
                if !self.ask(view, tokens, layer) {
                    break;
                }
                let before = self.clock.now();
                self.spend(self.spans.scores, tokens.len());
                self.asked = self.asked + (self.clock.now() - before);
            }
            let (n_experts, probabilities) = (self.trace.n_experts, self.probabilities.as_slice());
            to.offer(GuessInput { view, layer, n_experts, probabilities });
        }
    }

    /// Leaves what the router of `layer` says at `view` of each row in `probabilities`; false when nobody knows.
    fn ask(&mut self, view: View, tokens: &[usize], layer: LayerId) -> bool {
        let Trace { prev_mid, prev_out, n_experts, .. } = self.trace;
        let guesses = match view.stage {
            Stage::Begin => prev_mid.as_ref().or(prev_out.as_ref()),
            Stage::Early => prev_mid.as_ref(),
            Stage::Closed => prev_out.as_ref(),
        };
        self.probabilities.clear();
        self.probabilities.resize(tokens.len() * n_experts, 0.0);
        for (&token, row) in tokens.iter().zip(self.probabilities.chunks_mut(*n_experts)) {
            let (at, from) = self.stretch.at(token, layer);
            let told = match self.told {
                Told::Recorded => guesses.map(|guesses: &Guesses| guesses.row(at, from)),
                Told::Truth => Some(self.trace.row(at, from)),
            };
            let Some(told) = told.filter(|_| view.ahead == 1) else { return false };
            for (&expert, rank) in told.iter().zip(1u16..) {
                row[usize::from(expert)] = 0.5 / f32::from(rank);
            }
        }
        true
    }
}
