//! Least recently used.

use forerun_model::{ExpertKey, LayerId, Routing};

use crate::CachePolicy;

/// Every expert is worth the same, so the longest unused goes first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lru;

impl CachePolicy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn observe(&mut self, _layer: LayerId, _routing: &Routing) {}

    fn worth(&mut self, _key: ExpertKey) -> f32 {
        0.0
    }
}
