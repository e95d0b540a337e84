//! A routing trace in the making, and its two files; `fixtures/README.md` describes the format.

use forerun_model::{ExpertId, TokenId};
use half::f16;
use serde::Serialize;

use crate::{Guesses, Trace, TraceError, TraceShape};

/// Collects what routers say, token by token and layer by layer.
#[derive(Clone, Debug)]
pub struct Recording {
    shape: TraceShape,
    tokens: Vec<TokenId>,
    ids: Vec<u8>,
    weights: Vec<f16>,
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
    documents: [Document<'a>; 1],
    arrays: [Array<'a>; 4],
}

#[derive(Serialize)]
struct Document<'a> {
    source: &'a str,
    first: usize,
    count: usize,
}

#[derive(Serialize)]
struct Array<'a> {
    name: &'a str,
    dtype: &'a str,
    shape: Vec<usize>,
    offset: usize,
}

impl Recording {
    /// An empty recording.
    pub fn new(shape: TraceShape) -> Self {
        Self { shape, tokens: Vec::new(), ids: Vec::new(), weights: Vec::new() }
    }

    /// Begins the next token; its layers follow.
    pub fn begin(&mut self, token: TokenId) {
        self.tokens.push(token);
    }

    /// What the router of the token's next layer chose, best first, with weights.
    ///
    /// # Panics
    /// When there are other than `top_k` experts, or one is above 255.
    pub fn push(&mut self, chosen: &[(ExpertId, f32)]) {
        assert_eq!(chosen.len(), self.shape.top_k, "as many experts for every layer");
        let byte = |expert: ExpertId| u8::try_from(expert.0).expect("ids of a trace are bytes");
        self.ids.extend(chosen.iter().map(|(expert, _)| byte(*expert)));
        self.weights.extend(chosen.iter().map(|(_, weight)| f16::from_f32(*weight)));
    }

    /// What was recorded.
    ///
    /// # Errors
    /// [`TraceError`] when the format can't hold it.
    pub fn trace(&self) -> Result<Trace, TraceError> {
        Trace::new(self.shape, self.ids.clone())
    }

    /// Mean weight of the experts of `rank`, over tokens and layers.
    #[expect(clippy::cast_precision_loss, reason = "far fewer weights than 2^52")]
    pub fn weight(&self, rank: usize) -> f64 {
        let of_rank = self.weights.iter().skip(rank).step_by(self.shape.top_k);
        let n_rows = self.weights.len() / self.shape.top_k;
        of_rank.map(|weight| weight.to_f64()).sum::<f64>() / n_rows.max(1) as f64
    }

    /// The bytes of the trace's two files, header and arrays, with the `guesses` made one layer ahead. `source` says
    /// where the tokens come from.
    ///
    /// # Panics
    /// When there are guesses for more or fewer tokens.
    pub fn files(&self, source: &str, guesses: &Guesses) -> (Vec<u8>, Vec<u8>) {
        let TraceShape { n_layers, n_experts, top_k } = self.shape;
        let (n, predicted) = (self.tokens.len(), guesses.n_each());
        assert_eq!(guesses.ids().len(), n * n_layers * predicted, "guesses for every token and layer");
        let mut arrays = Vec::new();
        let mut array = |name, dtype, shape: &[usize], bytes: &mut dyn Iterator<Item = u8>| {
            let offset = arrays.len();
            arrays.extend(bytes);
            Array { name, dtype, shape: shape.to_vec(), offset }
        };
        let described = [
            array("tokens", "u32", &[n], &mut self.tokens.iter().flat_map(|token| token.0.to_le_bytes())),
            array("ids", "u8", &[n, n_layers, top_k], &mut self.ids.iter().copied()),
            array(
                "weights",
                "f16",
                &[n, n_layers, top_k],
                &mut self.weights.iter().flat_map(|weight| weight.to_le_bytes()),
            ),
            array("pred:prev_mid", "u8", &[n, n_layers, predicted], &mut guesses.ids().iter().copied()),
        ];
        let header = Header {
            format: "routing-trace",
            version: 1,
            kind: source,
            layers: n_layers,
            experts: n_experts,
            top_k,
            predicted,
            tokens: n,
            documents: [Document { source, first: 0, count: n }],
            arrays: described,
        };
        (serde_json::to_vec(&header).expect("numbers and texts become JSON"), arrays)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_recorded_is_what_is_read() {
        let shape = TraceShape { n_layers: 2, n_experts: 8, top_k: 2 };
        let mut recording = Recording::new(shape);
        let mut guesses = Guesses::new(2, 3);
        for token in 0..3u16 {
            recording.begin(TokenId(100_000 + u32::from(token)));
            for layer in 0..2 {
                recording.push(&[(ExpertId(token), 0.75), (ExpertId(4 + layer), 0.25)]);
                guesses.push(&[ExpertId(1), ExpertId(2), ExpertId(3)]);
            }
        }
        let (header, arrays) = recording.files("test", &guesses);
        assert_eq!(arrays.len(), 3 * 4 + 12 + 2 * 12 + 18);
        let mut expected = recording.trace().unwrap();
        expected.documents = vec![crate::Document { source: "test".into(), first: 0, count: 3 }];
        expected.prev_mid = Some(guesses);
        assert_eq!(Trace::parse(&header, &arrays).unwrap(), expected);
        assert_eq!((recording.weight(0), recording.weight(1)), (0.75, 0.25));
    }
}
