//! Which tensors hold routed experts, by their names.

use forerun_model::LayerId;

/// The three matrices of an expert, in the order of a record.
pub const PARTS: [&str; 3] = ["ffn_gate", "ffn_up", "ffn_down"];

/// What a tensor holds of the routed experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertTensor {
    /// The layer.
    pub layer: LayerId,
    /// Which of its matrices.
    pub holds: Holds,
}

/// Which matrices of which experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// One part (of [`PARTS`]) of every expert.
    Stacked(usize),
    /// Gate and up of every expert.
    GateUp,
    /// One part of one expert.
    One {
        /// Index in [`PARTS`].
        part: usize,
        /// The expert.
        expert: u16,
    },
    /// Every expert whole.
    Packed,
}

impl ExpertTensor {
    /// What the tensor of that name may hold; `None` when it is no expert's.
    pub fn parse(name: &str) -> Option<Self> {
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let layer = LayerId(number(layer)?);
        if rest == "ffn_experts.packed" {
            return Some(Self { layer, holds: Holds::Packed });
        }
        let part_of = |name: &str| PARTS.iter().position(|part| *part == name);
        let rest = rest.strip_suffix(".weight")?;
        let holds = match rest.split_once('.') {
            Some((part, expert)) => Holds::One { part: part_of(part)?, expert: number(expert)? },
            None => match rest.strip_suffix("_exps")? {
                "ffn_gate_up" => Holds::GateUp,
                part => Holds::Stacked(part_of(part)?),
            },
        };
        Some(Self { layer, holds })
    }
}

/// A number as a name has it: no sign, no zeros before it.
fn number(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expert_tensors_are_known_by_name() {
        let is = |name: &str| ExpertTensor::parse(name).map(|found| (found.layer.0, found.holds));
        assert_eq!(is("blk.3.ffn_gate_exps.weight"), Some((3, Holds::Stacked(0))));
        assert_eq!(is("blk.0.ffn_gate_up_exps.weight"), Some((0, Holds::GateUp)));
        assert_eq!(is("blk.7.ffn_down.12.weight"), Some((7, Holds::One { part: 2, expert: 12 })));
        assert_eq!(is("blk.40.ffn_experts.packed"), Some((40, Holds::Packed)));
        for name in [
            "blk.3.ffn_gate_inp.weight",
            "blk.3.ffn_down_shexp.weight",
            "blk.x.ffn_gate_exps.weight",
            "blk.03.ffn_gate_exps.weight",
            "blk.+3.ffn_gate_exps.weight",
            "blk..ffn_gate_exps.weight",
            "blk.7.ffn_down.weight",
            "blk.7.ffn_gate_exps.bias",
            "blk.7.ffn_experts.packed.weight",
            "output.weight",
        ] {
            assert_eq!(is(name), None, "{name}");
        }
    }
}
