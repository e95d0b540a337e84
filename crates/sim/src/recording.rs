//! A routing trace in the making, and its two files; `fixtures/README.md` describes the format.

use std::cmp::Ordering;
use std::io::{self, Write};

use forerun_model::{ExpertId, TokenId};
use half::f16;
use serde::Serialize;

use crate::{Document, Guesses, Trace, TraceError, TraceShape};

/// Arrays of a recording.
pub const N_COLUMNS: usize = 5;
const TOKENS: usize = 0;
const IDS: usize = 1;
const WEIGHTS: usize = 2;
const PREV_MID: usize = 3;
const PREV_OUT: usize = 4;

/// Writes down what routers say, token by token and layer by layer: each array grows in a sink of its own, and nothing
/// else is kept. For every token come, in any order between the arrays, its choices, its guesses after the mixers and its
/// guesses after the layers, each from the first layer to the last.
#[derive(Clone, Debug)]
pub struct Recording<W = Vec<u8>> {
    shape: TraceShape,
    n_tokens: usize,
    columns: [W; N_COLUMNS],
}

/// A trace's header, in the order in which it is written.
#[derive(Serialize)]
struct Header<'a> {
    format: &'a str,
    version: u32,
    kind: &'a str,
    layers: usize,
    experts: usize,
    top_k: usize,
    predicted: usize,
    tokens: usize,
    documents: &'a [Document],
    arrays: [Array; N_COLUMNS],
}

#[derive(Serialize)]
struct Array {
    name: &'static str,
    dtype: &'static str,
    shape: Vec<usize>,
    offset: usize,
}

impl TraceShape {
    /// Guesses that are recorded for each layer: twice as many as are right, if there are so many experts.
    pub fn n_predicted(&self) -> usize {
        (2 * self.top_k).min(self.n_experts)
    }
}

impl Recording {
    /// An empty recording in memory.
    pub fn new(shape: TraceShape) -> Self {
        Self::over(shape, Default::default())
    }

    /// What was recorded, with its guesses.
    ///
    /// # Errors
    /// [`TraceError`] when the format can't hold it.
    pub fn trace(&self) -> Result<Trace, TraceError> {
        let guesses = |column: usize| {
            let ids = self.columns[column].clone();
            Some(Guesses::of(self.shape.n_layers, self.shape.n_predicted(), ids))
        };
        let (prev_mid, prev_out) = (guesses(PREV_MID), guesses(PREV_OUT));
        Ok(Trace { prev_mid, prev_out, ..Trace::new(self.shape, self.columns[IDS].clone())? })
    }

    /// Mean weight of the experts of `rank`, over tokens and layers.
    #[expect(clippy::cast_precision_loss, reason = "far fewer weights than 2^52")]
    pub fn weight(&self, rank: usize) -> f64 {
        let weights =
            self.columns[WEIGHTS].chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f64());
        let n_rows = weights.len() / self.shape.top_k;
        weights.skip(rank).step_by(self.shape.top_k).sum::<f64>() / n_rows.max(1) as f64
    }
}

impl<W: Write> Recording<W> {
    /// An empty recording whose arrays grow in `columns`.
    pub fn over(shape: TraceShape, columns: [W; N_COLUMNS]) -> Self {
        Self { shape, n_tokens: 0, columns }
    }

    /// Tokens that were begun.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Begins the next token; its layers follow.
    ///
    /// # Errors
    /// The sink's.
    pub fn begin(&mut self, token: TokenId) -> io::Result<()> {
        self.n_tokens += 1;
        self.columns[TOKENS].write_all(&token.0.to_le_bytes())
    }

    /// What the router of the token's next layer chose, best first, with weights.
    ///
    /// # Errors
    /// The sink's.
    ///
    /// # Panics
    /// When there are other than `top_k` experts, or one is above 255.
    pub fn push(&mut self, chosen: &[(ExpertId, f32)]) -> io::Result<()> {
        assert_eq!(chosen.len(), self.shape.top_k, "as many experts for every layer");
        for &(expert, weight) in chosen {
            self.columns[IDS].write_all(&[byte(expert)])?;
            self.columns[WEIGHTS].write_all(&f16::from_f32(weight).to_le_bytes())?;
        }
        Ok(())
    }

    /// What the router of the next layer guessed after the mixer of the layer before, or for the first layer on the
    /// embedding: the [best] [`TraceShape::n_predicted`].
    ///
    /// # Errors
    /// The sink's.
    ///
    /// # Panics
    /// When there are more or fewer, or one is above 255.
    pub fn push_prev_mid(&mut self, best_first: &[ExpertId]) -> io::Result<()> {
        self.push_guesses(PREV_MID, best_first)
    }

    /// As [`Self::push_prev_mid`], but guessed after the whole layer before.
    ///
    /// # Errors
    /// The sink's.
    ///
    /// # Panics
    /// When there are more or fewer, or one is above 255.
    pub fn push_prev_out(&mut self, best_first: &[ExpertId]) -> io::Result<()> {
        self.push_guesses(PREV_OUT, best_first)
    }

    /// The header of what was recorded, whose arrays are the [columns](Self::into_columns), one after the other.
    ///
    /// # Panics
    /// Never: numbers and texts become JSON.
    pub fn header(&self, kind: &str, documents: &[Document]) -> Vec<u8> {
        let TraceShape { n_layers, n_experts, top_k } = self.shape;
        let (n, predicted) = (self.n_tokens, self.shape.n_predicted());
        let mut offset = 0;
        let mut array = |name, dtype, bytes_each: usize, shape: &[usize]| {
            let array = Array { name, dtype, shape: shape.to_vec(), offset };
            offset += bytes_each * shape.iter().product::<usize>();
            array
        };
        let arrays = [
            array("tokens", "u32", 4, &[n]),
            array("ids", "u8", 1, &[n, n_layers, top_k]),
            array("weights", "f16", 2, &[n, n_layers, top_k]),
            array("pred:prev_mid", "u8", 1, &[n, n_layers, predicted]),
            array("pred:prev_out", "u8", 1, &[n, n_layers, predicted]),
        ];
        let header = Header {
            format: "routing-trace",
            version: 1,
            kind,
            layers: n_layers,
            experts: n_experts,
            top_k,
            predicted,
            tokens: n,
            documents,
            arrays,
        };
        serde_json::to_vec(&header).expect("numbers and texts become JSON")
    }

    /// The sinks, in the order in which the header names them.
    pub fn into_columns(self) -> [W; N_COLUMNS] {
        self.columns
    }

    fn push_guesses(&mut self, column: usize, best_first: &[ExpertId]) -> io::Result<()> {
        assert_eq!(best_first.len(), self.shape.n_predicted(), "as many guesses for every layer");
        best_first.iter().try_for_each(|&expert| self.columns[column].write_all(&[byte(expert)]))
    }
}

/// The `n` most probable experts, best first; of equals the lower id goes first.
pub fn best(probabilities: &[f32], n: usize) -> Vec<ExpertId> {
    let mut experts: Vec<ExpertId> = (0..u16::MAX).map(ExpertId).take(probabilities.len()).collect();
    let probability = |expert: &ExpertId| probabilities[expert.idx()];
    experts.sort_by(|a, b| match probability(b).total_cmp(&probability(a)) {
        Ordering::Equal => a.cmp(b),
        order => order,
    });
    experts.truncate(n);
    experts
}

fn byte(expert: ExpertId) -> u8 {
    u8::try_from(expert.0).expect("ids of a trace are bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_recorded_is_what_is_read() {
        let shape = TraceShape { n_layers: 2, n_experts: 8, top_k: 2 };
        let mut recording = Recording::new(shape);
        for token in 0..3u16 {
            recording.begin(TokenId(100_000 + u32::from(token))).unwrap();
            for layer in 0..2 {
                recording.push(&[(ExpertId(token), 0.75), (ExpertId(4 + layer), 0.25)]).unwrap();
                recording.push_prev_mid(&[1, 2, 3, 4 + layer].map(ExpertId)).unwrap();
                recording.push_prev_out(&[7, 6, 5, token].map(ExpertId)).unwrap();
            }
        }
        let documents = [Document { source: "test".into(), first: 0, count: 3 }];
        let header = recording.header("test", &documents);
        assert_eq!((recording.weight(0), recording.weight(1)), (0.75, 0.25));
        let expected = Trace { documents: documents.into(), ..recording.trace().unwrap() };
        assert_eq!(expected.prev_out.as_ref().unwrap().row(2, forerun_model::LayerId(1)), [7, 6, 5, 2]);
        let arrays = recording.into_columns().concat();
        assert_eq!(arrays.len(), 3 * 4 + 12 + 2 * 12 + 2 * 24);
        assert_eq!(arrays[..4], 100_000u32.to_le_bytes());
        assert_eq!(Trace::parse(&header, &arrays).unwrap(), expected);
    }

    #[test]
    fn the_best_are_sorted_and_ties_are_broken_by_id() {
        assert_eq!(best(&[0.1, 0.4, 0.1, 0.4], 3), [1, 3, 0].map(ExpertId));
        assert_eq!(best(&[0.5], 3), [ExpertId(0)]);
    }
}
