//! Types against llama.cpp's, fallbacks, rules, and what is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use forerun_storage::gguf::Dims;

use super::*;
use crate::Importance;
use crate::recipe::{Mixture, Recipe};

#[path = "../../../decode/tests/support/older_layout.rs"]
mod older_layout;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// `NAME columns rows [matrices]`, all of one type.
fn tensors(quant: QuantType, lines: &[&str]) -> Vec<TensorInfo> {
    let tensor = |line: &&str| {
        let mut words = line.split(' ');
        let name = words.next().unwrap().to_owned();
        let sizes: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
        TensorInfo { name, quant, dims: Dims::new(&sizes).unwrap(), file: 0, offset_bytes: 0, len_bytes: 0 }
    };
    lines.iter().map(tensor).collect()
}

const FACTS: Facts = Facts { n_layers: 40, n_experts: 4, top_k: 2 };

fn plan(tensors: &[TensorInfo], recipe: &Recipe) -> Result<Plan, PlanError> {
    Plan::new(tensors, FACTS, recipe, None, Permissions::default())
}

/// Types after the plan of `recipe`, one per line.
#[track_caller]
fn check(recipe: &str, lines: &[&str], expect: &[&str]) {
    let recipe = Recipe::named(recipe).unwrap_or_else(|| Recipe::parse("test", recipe).unwrap());
    let plan = plan(&tensors(QuantType::BF16, lines), &recipe).unwrap();
    let found: Vec<_> = plan.choices.iter().map(|choice| choice.to.name()).collect();
    assert_eq!(found, expect);
}

/// `llama-types.txt` has what llama-quantize chooses for files of ours.
#[test]
fn mixtures_choose_as_llama_cpp_does() {
    type Types = BTreeMap<String, String>;
    let mut goldens: BTreeMap<(String, String), Types> = BTreeMap::new();
    for line in include_str!("llama-types.txt").lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<_> = line.split(' ').collect();
        let types = goldens.entry((words[0].to_owned(), words[1].to_owned())).or_default();
        for layer in &words[4..] {
            let name = if *layer == "-" { words[2].to_owned() } else { format!("blk.{layer}.{}", words[2]) };
            types.insert(name, words[3].to_owned());
        }
    }
    assert_eq!(goldens.len(), 19);
    let folder = tempfile::tempdir().unwrap();
    let older = older_layout::written(&fixture("architectures/qwen3next-f32.gguf"), folder.path());
    for ((model, mixture), want) in goldens {
        let folder = if model.starts_with("qwen") { "architectures/" } else { "" };
        let path = fixture(&format!("{folder}{model}.gguf"));
        let gguf = Gguf::open(if path.ends_with(older_layout::NAME) { &older } else { &path }).unwrap();
        let mut tensors = gguf.tensors().to_vec();
        // The choice doesn't depend on what a tensor was.
        tensors.iter_mut().filter(|t| t.quant != QuantType::F32).for_each(|t| t.quant = QuantType::BF16);
        let recipe = Recipe::named(&mixture).unwrap();
        let plan =
            Plan::new(&tensors, Facts::of(&gguf).unwrap(), &recipe, None, Permissions::default()).unwrap();
        let changed = plan.choices.iter().filter(|choice| choice.from != choice.to);
        let found: Types = changed.map(|c| (c.tensor.clone(), c.to.name().to_owned())).collect();
        assert_eq!(found, want, "{model} {mixture}");
    }
}

#[test]
fn les_means_routed_experts_however_they_are_kept() {
    check(
        "les",
        &[
            "blk.9.ffn_gate_exps.weight 256 8 4",
            "blk.9.ffn_gate_up_exps.weight 256 8 4",
            "blk.9.ffn_down.2.weight 256 8",
            "blk.9.ffn_up_shexp.weight 256 8",
            "blk.9.ffn_gate_inp.weight 256 8",
            "blk.9.ffn_down_shexp.weight 256 8",
            "blk.10.ffn_down_shexp.weight 256 8",
            "token_embd.weight 256 8",
        ],
        // Layer 9 is the fifth after the first eighth, layer 10 the sixth.
        &["Q3_K", "Q3_K", "Q3_K", "Q4_K", "BF16", "Q4_K", "Q6_K", "Q6_K"],
    );
}

#[test]
fn the_last_rule_counts_and_changes_no_other_tensor() {
    let text = "base = \"q3_k_m\"\n\
                [[rule]]\ntensors = \"blk.*.attn_v.weight\"\ntype = \"q8_0\"\nlayers = \"0-1\"\n\
                [[rule]]\ntensors = \"blk.1.*\"\ntype = \"Q2_K\"\n";
    let lines = [0, 1, 2].map(|layer| format!("blk.{layer}.attn_v.weight 256 8"));
    let mut lines: Vec<_> = lines.iter().map(String::as_str).collect();
    lines.push("blk.1.attn_norm.weight 256 1");
    // The third is neither of the first two, which Q3_K_M gives Q5_K.
    check(text, &lines, &["Q8_0", "Q2_K", "Q4_K", "BF16"]);
}

#[test]
fn exact_types_come_back_from_a_file() {
    let names =
        ["blk.0.ffn_up_exps.weight 256 8 4", "blk.1.ffn_up_exps.weight 256 8 4", "a[1]{x}*.weight 256 8"];
    let tensors = tensors(QuantType::F16, &names);
    let types = [QuantType::Q2_K, QuantType::Q6_K, QuantType::Q5_0];
    let map = tensors.iter().map(|tensor| tensor.name.clone()).zip(types).collect();
    let recipe = Recipe::exact("auto", Mixture::Q4KM, &map).unwrap();
    for recipe in [Recipe::parse("again", &recipe.to_toml()).unwrap(), recipe] {
        let plan = plan(&tensors, &recipe).unwrap();
        assert_eq!(plan.choices.iter().map(|choice| choice.to).collect::<Vec<_>>(), types);
    }
}

#[test]
fn rows_that_no_block_divides_get_another_type() {
    let widths = [32, 64, 256, 320, 352, 512, 28];
    let names = widths.map(|width| format!("blk.0.x{width}.weight {width} 8"));
    let lines: Vec<_> = names.iter().map(String::as_str).collect();
    for (quant, small) in [
        ("Q2_K", "Q4_0"),
        ("Q3_K", "Q4_0"),
        ("Q4_K", "Q5_0"),
        ("Q5_K", "Q5_1"),
        ("Q6_K", "Q8_0"),
        ("IQ4_XS", "IQ4_NL"),
        ("Q4_0", "Q4_0"),
        ("IQ4_NL", "IQ4_NL"),
    ] {
        let large = if quant == "Q4_0" || quant == "IQ4_NL" { small } else { quant };
        let recipe = format!("default = \"{quant}\"");
        check(&recipe, &lines, &[small, small, large, small, small, large, "F16"]);
        let recipe = Recipe::parse("test", &recipe).unwrap();
        let plan = plan(&tensors(QuantType::BF16, &lines), &recipe).unwrap();
        let fallbacks: BTreeSet<_> = plan.fallbacks().map(crate::keys::fallback_text).collect();
        assert_eq!(fallbacks.len(), if large == small { 1 } else { 5 });
        let words = format!("blk.0.x28.weight: F16 for {quant}, whose blocks of");
        assert!(fallbacks.iter().any(|text| text.starts_with(&words)), "{fallbacks:?}");
    }
}

#[test]
fn rules_that_say_nothing_are_refused() {
    let tensors = tensors(QuantType::F32, &["blk.0.attn_norm.weight 256", "blk.0.attn_q.weight 256 8"]);
    let error = |rule: &str| {
        let text = format!("base = \"q4_k_m\"\n[[rule]]\n{rule}\n");
        plan(&tensors, &Recipe::parse("test", &text).unwrap()).unwrap_err().to_string()
    };
    let words = error("tensors = \"blk.*.attn_w.weight\"\ntype = \"Q6_K\"\nlayers = \"0,2-3\"");
    assert_eq!(
        words,
        "the rule \"blk.*.attn_w.weight\" -> Q6_K (layers 0,2-3) matches no tensor of the model"
    );
    let words = error("tensors = \"*_norm.weight\"\ntype = \"Q6_K\"");
    assert!(words.contains("blk.0.attn_norm.weight, which has one axis"), "{words}");
    let words = error("tensors = \"*attn_q.weight\"\ntype = \"Q6_K\"\nlayers = \"1\"");
    assert!(words.contains("matches no tensor"), "{words}");
}

#[test]
fn what_was_quantised_is_taken_only_when_that_is_allowed() {
    let lines = ["blk.0.attn_q.weight 256 8", "blk.0.attn_k.weight 256 8", "blk.0.ids 8 8"];
    let mut tensors = tensors(QuantType::Q4_K, &lines);
    tensors[2].quant = QuantType::I32;
    let recipe = Recipe::parse("test", "default = \"Q3_K\"").unwrap();
    let error = plan(&tensors, &recipe).unwrap_err();
    assert!(matches!(error, PlanError::Requantise { n_more: 1, quant: QuantType::Q4_K, .. }), "{error}");
    let permissions = Permissions { requantise: true, unseen: false };
    let plan = Plan::new(&tensors, FACTS, &recipe, None, permissions).unwrap();
    assert_eq!((plan.n_requantised, plan.choices[2].to), (2, QuantType::I32));
    // What has its type already is copied, whatever it is.
    let recipe = Recipe::parse("test", "default = \"Q4_K\"").unwrap();
    assert_eq!(self::plan(&tensors, &recipe).unwrap().n_requantised, 0);
    tensors[0].quant = QuantType::IQ1_S;
    let error = Plan::new(&tensors, FACTS, &recipe, None, permissions).unwrap_err();
    assert!(matches!(error, PlanError::Undecodable { quant: QuantType::IQ1_S, .. }), "{error}");
}

#[test]
fn experts_of_a_layer_share_their_types() {
    let tensors = tensors(QuantType::F32, &["blk.0.ffn_up.0.weight 256 8", "blk.0.ffn_up.1.weight 256 8"]);
    let text = "default = \"Q6_K\"\n[[rule]]\ntensors = \"blk.0.ffn_up.1.weight\"\ntype = \"Q3_K\"\n";
    let error = plan(&tensors, &Recipe::parse("test", text).unwrap()).unwrap_err();
    assert!(matches!(error, PlanError::ExpertTypes { .. }), "{error}");
}

/// Experts with and without data, as an importance matrix of four.
fn imatrix(name: &str, counts: [f32; 4], bad: Option<f32>) -> Imatrix {
    let mut imatrix = Imatrix::default();
    let mut sums = vec![1.0; 4 * 256];
    if let Some(value) = bad {
        sums[300] = value;
    }
    imatrix.insert(name.into(), Importance::new(name, 256, sums, counts.to_vec()).unwrap());
    imatrix
}

/// Reported as ggml-org/llama.cpp 7816 and ikawrakow/ik_llama.cpp 202.
#[test]
fn experts_without_data_are_counted_and_few_bits_refused() {
    let name = "blk.0.ffn_up_exps.weight";
    let tensors = tensors(QuantType::F32, &[&format!("{name} 256 8 4")]);
    let plan = |quant: &str, imatrix: &Imatrix, unseen| {
        let recipe = Recipe::parse("test", &format!("default = \"{quant}\"")).unwrap();
        let permissions = Permissions { requantise: false, unseen };
        Plan::new(&tensors, FACTS, &recipe, Some(imatrix), permissions)
    };
    let n_unseen = |plan: &Plan| plan.unseen.iter().map(|unseen| unseen.n_unseen).sum::<usize>();
    let one = imatrix(name, [3.0, 1.0, 0.0, 9.0], None);
    assert_eq!(n_unseen(&plan("Q2_K", &one, false).unwrap()), 1);
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        let two = imatrix(name, [3.0, 1.0, 0.0, 9.0], Some(bad));
        assert_eq!(n_unseen(&plan("Q2_K", &two, false).unwrap()), 2, "{bad}");
    }
    let three = imatrix(name, [0.0, f32::NAN, 0.0, 9.0], None);
    let error = plan("Q3_K", &three, false).unwrap_err().to_string();
    assert!(error.contains("nothing of 3 of the 4 experts of blk.0.ffn_up_exps.weight"), "{error}");
    assert_eq!(n_unseen(&plan("Q3_K", &three, true).unwrap()), 3);
    assert_eq!(n_unseen(&plan("Q4_K", &three, false).unwrap()), 3);
    let other = imatrix("blk.1.ffn_up_exps.weight", [1.0; 4], None);
    assert!(plan("Q3_K", &other, false).is_err());
    assert_eq!(plan("Q4_K", &other, false).unwrap().absent, [name]);
}
