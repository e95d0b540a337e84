//! Least frequently used, where each token makes the uses before it count a little less.

use forerun_model::{ExpertKey, LayerId, Routing};

use crate::CachePolicy;

/// What a use counts after each further token of its layer.
const DECAY: f32 = 0.98;

/// An expert is worth the number of its uses, each counted 0.98 to the power of its age in tokens of the layer.
#[derive(Clone, Debug, Default)]
pub struct Lfu {
    /// By layer, then expert.
    counts: Vec<Vec<f32>>,
}

impl CachePolicy for Lfu {
    fn name(&self) -> &'static str {
        "lfu"
    }

    fn observe(&mut self, layer: LayerId, routing: &Routing) {
        if self.counts.len() <= layer.idx() {
            self.counts.resize_with(layer.idx() + 1, Vec::new);
        }
        let counts = &mut self.counts[layer.idx()];
        for row in 0..routing.n_rows() {
            counts.iter_mut().for_each(|count| *count *= DECAY);
            for &(expert, _) in routing.row(row) {
                let i = usize::from(expert.0);
                if counts.len() <= i {
                    counts.resize((i + 1).next_power_of_two(), 0.0);
                }
                counts[i] += 1.0;
            }
        }
    }

    fn worth(&mut self, key: ExpertKey) -> f32 {
        let of_layer = self.counts.get(key.layer.idx());
        of_layer.and_then(|counts| counts.get(usize::from(key.expert.0))).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::alike::tests::routing;

    #[test]
    fn many_uses_outweigh_a_late_one() {
        let mut lfu = Lfu::default();
        let worth = |lfu: &mut Lfu, expert| lfu.worth(ExpertKey::new(1, expert));
        lfu.observe(LayerId(1), &routing(&[&[7], &[7], &[7], &[300]]));
        assert!(worth(&mut lfu, 7) > worth(&mut lfu, 300) && worth(&mut lfu, 300) > worth(&mut lfu, 8));
        assert_eq!((worth(&mut lfu, 9_999), lfu.worth(ExpertKey::new(9, 7))), (0.0, 0.0));
    }
}
