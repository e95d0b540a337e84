//! The script: tokens that a greedy reader walks one after the other, and the channels that make it do so.
//!
//! Of the `hidden` channels of the residual stream the last few are *carriers*: no layer writes them, so that they
//! say the same at the end as at the beginning, however much the layers add to the others. Their first half holds the
//! topic, a slowly turning direction; the second half tells one token from the next, and the head of token i + 1 is
//! what those channels hold for token i. The head of the first token is that of the last: a reader never runs out.

use crate::chance::{Purpose, bell, stream};
use crate::knobs::Knobs;

/// How much larger carriers are than other channels of an embedding: layers make those larger, not these.
pub(crate) const CARRIER_SIZE: f32 = 2.0;

/// Which channels do what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channels {
    /// Channels that layers read and write.
    pub(crate) n_free: usize,
    /// Carriers of the topic.
    pub(crate) n_topic: usize,
    /// Carriers of the token.
    pub(crate) n_token: usize,
}

impl Channels {
    /// The split of a residual stream of `hidden` values.
    pub(crate) fn of(hidden: usize) -> Self {
        // Thousands of random tokens are told apart by 64 channels, hardly by fewer.
        let (n_topic, n_token) = ((hidden / 32).max(32), (hidden / 32).max(64));
        Self { n_free: hidden - n_topic - n_token, n_topic, n_token }
    }

    /// Carriers, which are the last channels.
    pub(crate) fn n_carriers(&self) -> usize {
        self.n_topic + self.n_token
    }
}

/// Embeddings of all script tokens.
#[derive(Debug)]
pub(crate) struct Script {
    channels: Channels,
    /// `[n_tokens, hidden]`.
    rows: Vec<f32>,
}

impl Script {
    /// The script of a seed: `n_tokens` tokens over a topic that turns as `knobs` say.
    pub(crate) fn new(seed: u64, channels: Channels, n_tokens: usize, knobs: &Knobs) -> Self {
        let hidden = channels.n_free + channels.n_carriers();
        let mut walk = stream(seed, Purpose::Topic, 0);
        let mut topic: Vec<f32> = (0..channels.n_topic).map(|_| bell(&mut walk)).collect();
        let keep = (1.0 - knobs.turn * knobs.turn).sqrt();
        let mut rows = Vec::with_capacity(n_tokens * hidden);
        for token in 0..n_tokens {
            let mut own = stream(seed, Purpose::Token, token as u64);
            rows.extend((0..channels.n_free).map(|_| bell(&mut own)));
            normalise(&mut topic);
            rows.extend(topic.iter().map(|v| v * CARRIER_SIZE));
            let mut mark: Vec<f32> = (0..channels.n_token).map(|_| bell(&mut own)).collect();
            normalise(&mut mark);
            rows.extend(mark.iter().map(|v| v * CARRIER_SIZE));
            topic.iter_mut().for_each(|v| *v = keep * *v + knobs.turn * bell(&mut walk));
        }
        Self { channels, rows }
    }

    /// Tokens.
    pub(crate) fn len(&self) -> usize {
        self.rows.len() / self.hidden()
    }

    /// The embedding of `token`.
    pub(crate) fn embedding(&self, token: usize) -> &[f32] {
        &self.rows[token * self.hidden()..][..self.hidden()]
    }

    /// The head of `token`: `size` times what the token's carriers hold in the token before.
    pub(crate) fn head(&self, token: usize, size: f32) -> Vec<f32> {
        let before = (token + self.len() - 1) % self.len();
        let n_others = self.channels.n_free + self.channels.n_topic;
        let mut row = self.embedding(before).to_vec();
        row[..n_others].fill(0.0);
        row[n_others..].iter_mut().for_each(|v| *v *= size);
        row
    }

    /// What the product of a token's embedding and the head of size 1 that it calls is.
    #[expect(clippy::cast_precision_loss, reason = "a few channels")]
    pub(crate) fn carried(&self) -> f32 {
        CARRIER_SIZE * CARRIER_SIZE * self.channels.n_token as f32
    }

    fn hidden(&self) -> usize {
        self.channels.n_free + self.channels.n_carriers()
    }
}

/// Makes the mean square 1.
#[expect(clippy::cast_precision_loss, reason = "a few channels")]
fn normalise(values: &mut [f32]) {
    let square: f32 = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
    let factor = 1.0 / square.sqrt().max(1e-6);
    values.iter_mut().for_each(|v| *v *= factor);
}

/// The literal of a script token.
pub(crate) fn literal(token: usize) -> String {
    format!("<|s{token:04}|>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knobs::tests::plain;

    fn dot(a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    #[test]
    fn each_token_calls_the_next_and_the_last_calls_the_first() {
        let script = Script::new(1, Channels::of(512), 300, &plain());
        for token in 0..300 {
            let called = (0..300)
                .max_by(|&a, &b| {
                    let score = |next| dot(&script.head(next, 1.0), script.embedding(token));
                    score(a).total_cmp(&score(b))
                })
                .unwrap();
            assert_eq!(called, (token + 1) % 300);
        }
    }

    #[test]
    fn the_topic_turns_slowly() {
        let knobs = Knobs { turn: 0.2, ..plain() };
        let channels = Channels::of(2048);
        let script = Script::new(1, channels, 200, &knobs);
        let topic = |token: usize| &script.embedding(token)[channels.n_free..][..channels.n_topic];
        let alike = |a, b| dot(topic(a), topic(b)) / dot(topic(a), topic(a));
        assert!(alike(0, 1) > 0.9, "{}", alike(0, 1));
        assert!(alike(0, 199).abs() < 0.5, "{}", alike(0, 199));
    }

    #[test]
    fn a_stream_has_room_for_carriers() {
        assert_eq!(Channels::of(2048), Channels { n_free: 1920, n_topic: 64, n_token: 64 });
        assert_eq!(Channels::of(256), Channels { n_free: 160, n_topic: 32, n_token: 64 });
    }
}
