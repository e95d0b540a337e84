//! What an architecture's name says that no key of its header does.
//!
//! Source: the graphs and converters that llama.cpp has for each name; the weights of a `norm_topk_prob` model are
//! told from those of another by nothing else.

use super::{AttentionParts, HeadOrder};

/// One row of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Architecture {
    /// `general.architecture`, which also prefixes the header's keys.
    pub(super) name: &'static str,
    /// The order of value heads unless the header says otherwise; `None`: every layer has attention.
    pub(super) delta_net: Option<HeadOrder>,
    /// What attention has besides its four products.
    pub(super) attention: AttentionParts,
    /// Whether the header splits rotated pairs among time, height and width.
    pub(super) has_rope_sections: bool,
    /// Whether a shared expert runs for every row.
    pub(super) has_shared_expert: bool,
    /// Whether the weights of the chosen experts are made to sum 1.
    pub(super) renormalises: bool,
}

const GATED: AttentionParts = AttentionParts { gate: true, head_norms: true };

/// Every architecture that runs.
const REGISTRY: [Architecture; 4] = [
    Architecture {
        name: "qwen35moe",
        delta_net: Some(HeadOrder::Tiled),
        attention: GATED,
        has_rope_sections: true,
        has_shared_expert: true,
        renormalises: true,
    },
    Architecture {
        name: "qwen3next",
        delta_net: Some(HeadOrder::Grouped),
        attention: GATED,
        has_rope_sections: false,
        has_shared_expert: true,
        renormalises: true,
    },
    Architecture {
        name: "qwen3moe",
        delta_net: None,
        attention: AttentionParts { gate: false, head_norms: true },
        has_rope_sections: false,
        has_shared_expert: false,
        renormalises: true,
    },
    Architecture {
        name: "qwen2moe",
        delta_net: None,
        attention: AttentionParts { gate: false, head_norms: false },
        has_rope_sections: false,
        has_shared_expert: true,
        renormalises: false,
    },
];

impl Architecture {
    /// The row of that name.
    pub(super) fn named(name: &str) -> Option<Self> {
        REGISTRY.into_iter().find(|row| row.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_lists_every_row() {
        assert_eq!(REGISTRY.map(|row| row.name).join(", "), super::super::ARCHITECTURES);
    }
}
