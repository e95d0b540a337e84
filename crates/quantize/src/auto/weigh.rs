//! What noise in a tensor's output does to the model's answer: an estimate, good enough to say where bytes help most.
//!
//! A layer's parts (the mixer, the routed experts, the shared one) each add a vector to the residual stream. Noise that is
//! a share `n` of a part's output disturbs the stream by `n * E / X`, where `E` is the mean square length of what the part
//! adds and `X` that of the stream behind it. Both follow from the importance matrix, columns taken as uncorrelated: a
//! matrix `w` on inputs `x` gives `sum E[x_c^2] w_rc^2`, the stream begins as an embedding row, and parts add up. How much
//! of a tensor's own noise its part passes on, and how much of a disturbance reaches the answer, is in the table of
//! [`passed_on`].

use std::collections::BTreeMap;

use super::groups::{Group, Part};
use super::measure::Loss;

/// Mean square of the shared expert's switch, a sigmoid about zero.
const SWITCH_SQUARE: f64 = 0.25;
/// The sum of squares of a token's routing weights, times their number: 1 if all were alike.
const UNEVENNESS: f64 = 1.2;

/// For each group, the loss of the answer per share of noise in the group's output.
pub(super) fn weights(groups: &[Group], losses: &[Loss], top_k: u32) -> Vec<f64> {
    let stream = Stream::of(groups, losses, top_k);
    let weight = |group: &Group| {
        let share = match group.part {
            Part::Embedding | Part::Head => 1.0,
            Part::Mixer | Part::Routed | Part::Shared | Part::Other => stream.share(group),
        };
        share * passed_on(group)
    };
    groups.iter().map(weight).collect()
}

/// What each part of each layer adds, as a share of the stream behind it.
struct Stream {
    shares: BTreeMap<(u32, Part), f64>,
}

impl Stream {
    #[expect(clippy::cast_precision_loss, reason = "numbers of rows")]
    fn of(groups: &[Group], losses: &[Loss], top_k: u32) -> Self {
        let mut added: BTreeMap<(u32, Part), f64> = BTreeMap::new();
        let mut square = 0.0;
        for (group, loss) in groups.iter().zip(losses) {
            let per_token = match group.part {
                Part::Routed => UNEVENNESS / f64::from(top_k.max(1)),
                Part::Shared => SWITCH_SQUARE,
                _ => 1.0,
            };
            match (group.layer, group.is_last) {
                (Some(layer), true) => {
                    *added.entry((layer, group.part)).or_default() += loss.energy * per_token;
                }
                // A tied head is the embedding too.
                _ if group.layer.is_none() && group.n_rows > 0 && square == 0.0 && group.is_embedding => {
                    square = loss.energy / group.n_rows as f64;
                }
                _ => {}
            }
        }
        let mut shares = BTreeMap::new();
        // By layer, and in it the mixer before the experts.
        for (key, energy) in added {
            square += energy;
            shares.insert(key, if square > 0.0 { energy / square } else { 0.0 });
        }
        Self { shares }
    }

    /// The share of the group's part; of a part that adds nothing itself, the mean of all.
    #[expect(clippy::cast_precision_loss, reason = "numbers of parts")]
    fn share(&self, group: &Group) -> f64 {
        let own = group.layer.and_then(|layer| self.shares.get(&(layer, group.part)));
        own.copied().unwrap_or_else(|| self.shares.values().sum::<f64>() / self.shares.len().max(1) as f64)
    }
}

/// How much of a noise share in the group's output reaches the answer, over the share of its part in the stream.
///
/// Measured on the small model, one kind of tensors rounded to Q3_K after the other and the rest Q8_0, as KL divergence per
/// weighted noise share (`docs/measurements.md`, "Which tensors feel rounding"). Kinds that aren't there count like
/// their nearest kin.
fn passed_on(group: &Group) -> f64 {
    let name = group.tensors[0].as_str();
    let has = |part: &str| name.contains(part);
    match group.part {
        Part::Embedding => 4.8,
        Part::Head => 2.0,
        Part::Mixer if has("ssm_alpha") || has("ssm_beta") || has("ssm_ba") => 0.2,
        // A delta-net's gate multiplies what it gives, like an expert's.
        Part::Mixer if has("attn_gate") => 1.2,
        Part::Mixer => 3.3,
        Part::Shared => 0.4,
        Part::Routed | Part::Other if group.is_last => 2.5,
        Part::Routed | Part::Other => 1.4,
    }
}
