//! Which tensors of a file multiply the same inputs.

use forerun_compute::Inputs;
use forerun_model::LayerId;
use forerun_model::names::{OUTPUT, block};
use forerun_storage::expert_name::{ExpertTensor, Holds};

/// First products of a mixer: attention's, apart or fused, and a delta-net's, apart or in the older two tensors.
const MIXER: [&str; 9] =
    ["attn_q", "attn_k", "attn_v", "attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta", "ssm_in", "ssm_ba"];

/// The tensors that multiply `inputs` of `layer`, in the file whose tensors `has` knows by name.
///
/// Routed experts go by the names of their stacked tensors, as llama.cpp has them, even where the file keeps experts apart
/// or packed; only where it has gate and up in one tensor, that is named.
pub fn fed_by(layer: LayerId, inputs: Inputs, has: &dyn Fn(&str) -> bool) -> Vec<String> {
    let all: &[&str] = match inputs {
        Inputs::Mixer => &MIXER,
        Inputs::MixerOutput => &["attn_output", "ssm_out"],
        Inputs::Router => &["ffn_gate_inp", "ffn_gate_inp_shexp", "ffn_gate_shexp", "ffn_up_shexp"],
        Inputs::SharedDown => &["ffn_down_shexp"],
        Inputs::Experts if has(&block(layer, "ffn_gate_up_exps")) => &["ffn_gate_up_exps"],
        Inputs::Experts => return vec![block(layer, "ffn_gate_exps"), block(layer, "ffn_up_exps")],
        Inputs::ExpertsDown => return vec![block(layer, "ffn_down_exps")],
        Inputs::Head => return [OUTPUT.to_owned()].into_iter().filter(|name| has(name)).collect(),
    };
    all.iter().map(|name| block(layer, name)).filter(|name| has(name)).collect()
}

/// Tensors of the same layer that may multiply the same inputs as `tensor`, itself among them, where these are inputs that
/// all tokens share. A routed expert's first matrices see what the router sees, as far as their tokens go.
pub fn sharing(tensor: &str) -> Vec<String> {
    let all = |layer, inputs| fed_by(layer, inputs, &|_| true);
    if let Some(ExpertTensor { layer, holds }) = ExpertTensor::parse(tensor) {
        return match holds {
            Holds::Stacked(0 | 1) | Holds::GateUp | Holds::One { part: 0 | 1, .. } => {
                all(layer, Inputs::Router)
            }
            _ => Vec::new(),
        };
    }
    if tensor == OUTPUT {
        return vec![tensor.to_owned()];
    }
    let layer = tensor.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok());
    let Some(layer) = layer.map(LayerId) else { return Vec::new() };
    let places = [Inputs::Mixer, Inputs::MixerOutput, Inputs::Router, Inputs::SharedDown];
    let lists = places.into_iter().map(|inputs| all(layer, inputs));
    lists.into_iter().find(|names| names.iter().any(|name| name == tensor)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The short names of the tensors that share `inputs` in a file that has `names`.
    #[track_caller]
    fn check(inputs: Inputs, names: &[&str], expect: &[&str]) {
        let layer = LayerId(2);
        let has = |name: &str| names.iter().any(|short| block(layer, short) == name || *short == name);
        let full = |short: &&str| if *short == OUTPUT { OUTPUT.to_owned() } else { block(layer, short) };
        assert_eq!(fed_by(layer, inputs, &has), expect.iter().map(full).collect::<Vec<_>>());
    }

    #[test]
    fn mixers_are_known_in_every_form() {
        check(Inputs::Mixer, &["attn_q", "attn_k", "attn_v"], &["attn_q", "attn_k", "attn_v"]);
        check(Inputs::Mixer, &["attn_qkv", "attn_gate", "ssm_beta"], &["attn_qkv", "attn_gate", "ssm_beta"]);
        check(Inputs::Mixer, &["ssm_in", "ssm_ba", "ssm_out"], &["ssm_in", "ssm_ba"]);
        check(Inputs::MixerOutput, &["ssm_in", "ssm_ba", "ssm_out"], &["ssm_out"]);
    }

    #[test]
    fn experts_go_by_their_stacked_names() {
        for names in [&["ffn_gate_exps", "ffn_up_exps"][..], &["blk.2.ffn_gate.0.weight"], &[]] {
            check(Inputs::Experts, names, &["ffn_gate_exps", "ffn_up_exps"]);
            check(Inputs::ExpertsDown, names, &["ffn_down_exps"]);
        }
        check(Inputs::Experts, &["ffn_gate_up_exps"], &["ffn_gate_up_exps"]);
    }

    #[test]
    fn tensors_that_share_inputs_find_each_other() {
        let finds = |tensor: &str, other: &str| {
            sharing(&block(LayerId(2), tensor)).contains(&block(LayerId(2), other))
        };
        for (tensor, other) in [
            ("attn_k", "attn_q"),
            ("attn_gate", "attn_qkv"),
            ("ssm_out", "ssm_out"),
            ("ffn_up_shexp", "ffn_gate_inp"),
            ("ffn_up_exps", "ffn_gate_inp"),
            ("ffn_gate_up_exps", "ffn_gate_inp"),
            ("ffn_gate.7", "ffn_gate_inp"),
        ] {
            assert!(finds(tensor, other), "{tensor}, {other}");
        }
        for tensor in ["ffn_down_exps", "ffn_down.7", "attn_norm"] {
            assert_eq!(sharing(&block(LayerId(2), tensor)), [""; 0], "{tensor}");
        }
        assert_eq!(sharing("token_embd.weight"), [""; 0]);
        assert_eq!(sharing(OUTPUT), [OUTPUT]);
    }

    #[test]
    fn a_tied_head_has_no_name_of_its_own() {
        check(Inputs::Head, &[OUTPUT], &[OUTPUT]);
        check(Inputs::Head, &[], &[]);
        check(Inputs::Router, &["ffn_gate_inp"], &["ffn_gate_inp"]);
        check(Inputs::SharedDown, &[], &[]);
    }
}
