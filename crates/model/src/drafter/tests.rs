//! Headers that must be read, and headers that must be refused by name.

use std::collections::BTreeMap;

use super::*;
use crate::metadata::KeyValue;
use crate::{AttentionParts, LayerKind, MoeShape};

#[derive(Clone)]
enum V {
    I(i128),
    F(f64),
    B(bool),
    T(&'static str),
    Is(Vec<i128>),
    Fs(Vec<f64>),
    Bs(Vec<bool>),
    Ts(Vec<String>),
}

/// A file: keys, and dimensions of tensors.
#[derive(Clone)]
struct File {
    keys: BTreeMap<String, V>,
    dims: BTreeMap<String, Vec<u64>>,
}

impl KeyValues for File {
    fn get(&self, key: &str) -> Option<KeyValue<'_>> {
        Some(match self.keys.get(key)? {
            V::I(v) => KeyValue::Integer(*v),
            V::F(v) => KeyValue::Float(*v),
            V::B(v) => KeyValue::Bool(*v),
            V::T(v) => KeyValue::Text(v),
            V::Is(v) => KeyValue::Integers(v.clone()),
            V::Fs(v) => KeyValue::Floats(v.clone()),
            V::Bs(v) => KeyValue::Bools(v.clone()),
            V::Ts(v) => KeyValue::Texts(v),
        })
    }
}

/// A model of 8 layers, 256 wide, with 100 tokens.
fn target() -> ModelShape {
    let parts = AttentionParts { gate: false, head_norms: true };
    ModelShape {
        hidden: 256,
        n_vocab: 100,
        context_max: 2048,
        norm_eps: 1e-6,
        layers: vec![LayerKind::Attention; 8],
        n_mtp: 0,
        attention: AttentionShape { n_heads: 4, n_kv_heads: 2, head_dim: 64, parts },
        rope: RopeShape { n_rot: 64, freq_base: 1e4, sections: [32, 0, 0, 0] },
        delta_net: None,
        moe: MoeShape { n_experts: 4, top_k: 2, expert_ff: 64, shared_ff: None, renormalises: true },
    }
}

/// A drafter like pico's.
fn file() -> File {
    let mut keys = BTreeMap::new();
    keys.insert("general.architecture".to_owned(), V::T("dflash"));
    keys.insert("tokenizer.ggml.mask_token_id".to_owned(), V::I(99));
    for (key, value) in [
        ("block_count", V::I(3)),
        ("context_length", V::I(2048)),
        ("embedding_length", V::I(256)),
        ("feed_forward_length", V::I(512)),
        ("attention.head_count", V::I(4)),
        ("attention.head_count_kv", V::I(2)),
        ("attention.key_length", V::I(64)),
        ("attention.layer_norm_rms_epsilon", V::F(1e-6)),
        ("rope.freq_base", V::F(1e4)),
        ("rope.dimension_sections", V::Is(vec![32, 0, 0, 0])),
        ("block_size", V::I(7)),
        ("target_layers", V::Is(vec![2, 3, 6])),
        ("has_confidence_head", V::B(true)),
    ] {
        keys.insert(format!("dflash.{key}"), value);
    }
    let dims = [
        (FEATURES, vec![768, 256]),
        (MARKOV_IN, vec![128, 100]),
        (MARKOV_OUT, vec![128, 100]),
        (CONFIDENCE, vec![384, 1]),
    ];
    File { keys, dims: dims.into_iter().map(|(name, dims)| (name.to_owned(), dims)).collect() }
}

fn read(file: &File) -> Result<DrafterShape, ShapeError> {
    DrafterShape::read(file, &|name| file.dims.get(name).cloned(), &target())
}

/// The file with one key changed, or without it.
fn with(key: &str, value: Option<V>) -> File {
    let mut file = file();
    let key = if key.contains("tokenizer") || key.contains("general") {
        key.into()
    } else {
        format!("dflash.{key}")
    };
    match value {
        Some(value) => file.keys.insert(key, value),
        None => file.keys.remove(&key),
    };
    file
}

#[test]
fn a_whole_header_is_read() {
    let shape = read(&file()).unwrap();
    assert_eq!(shape.taps, [LayerId(1), LayerId(2), LayerId(5)], "the file counts layers' inputs");
    assert_eq!((shape.mask, shape.block, shape.n_drafts(), shape.slot(0)), (TokenId(99), 7, 7, 0));
    assert_eq!((shape.n_drafted, shape.markov_rank, shape.feature_width()), (100, Some(128), 768));
    assert_eq!((shape.windows.clone(), shape.window(), shape.causal), (vec![None; 3], None, false));
    let confidence = ConfidenceShape { reads_markov: true, temperatures: Vec::new() };
    assert_eq!(shape.confidence, Some(confidence));
    let known = specs(&shape);
    let has = |name: &str| known.iter().any(|spec| spec.names[0] == name && !spec.optional);
    assert!(has("blk.2.attn_k_norm.weight") && has(MARKOV_OUT) && !has("output.weight"));
}

#[test]
fn what_may_be_otherwise() {
    let shape = read(&with("sample_from_anchor", Some(V::B(false)))).unwrap();
    assert_eq!((shape.n_drafts(), shape.slot(0)), (6, 1));
    assert!(read(&with("attention.causal", Some(V::B(true)))).unwrap().causal);
    assert_eq!(read(&with("attention.sliding_window", Some(V::I(0)))).unwrap().window(), None);
    let mut windowed = with("attention.sliding_window", Some(V::I(128)));
    assert_eq!(read(&windowed).unwrap().window(), Some(128));
    let pattern = V::Bs(vec![true, false, true]);
    windowed.keys.insert("dflash.attention.sliding_window_pattern".into(), pattern);
    let shape = read(&windowed).unwrap();
    assert_eq!((shape.windows.clone(), shape.window()), (vec![Some(128), None, Some(128)], None));

    let mut plain = with("has_confidence_head", None);
    plain.dims.retain(|name, _| name == FEATURES);
    let shape = read(&plain).unwrap();
    assert_eq!((shape.markov_rank, &shape.confidence), (None, &None));
    let mut mapped = file();
    mapped.dims.insert(TARGET_IDS.into(), vec![32]);
    assert_eq!(read(&mapped).unwrap().n_drafted, 32);
    assert_eq!(read(&with("has_confidence_head", Some(V::B(false)))).unwrap().confidence, None);
    let mut state_only = file();
    state_only.dims.insert(CONFIDENCE.into(), vec![256, 1]);
    assert!(!read(&state_only).unwrap().confidence.unwrap().reads_markov);
    let calibrated = with("confidence_temperature", Some(V::Fs(vec![1.5; 7])));
    assert_eq!(read(&calibrated).unwrap().confidence.unwrap().temperatures, [1.5; 7]);
}

/// A change that must be refused, and what the message says.
type Refusal = (&'static str, Option<V>, &'static [&'static str]);

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let table: Vec<Refusal> = vec![
        ("general.architecture", Some(V::T("llama")), &["`llama`", "dflash"]),
        ("general.architecture", None, &["general.architecture", "missing"]),
        ("embedding_length", Some(V::I(128)), &["128", "256", "hidden size of its model"]),
        ("tokenizer.ggml.tokens", Some(V::Ts(vec!["a".into()])), &["tokenizer.ggml.tokens", "100"]),
        ("tokenizer.ggml.mask_token_id", Some(V::I(100)), &["mask_token_id", "is 100", "0..=99"]),
        ("tokenizer.ggml.mask_token_id", None, &["mask_token_id", "missing"]),
        ("target_layers", Some(V::Is(vec![2, 3])), &["target_layers", "`fc.weight` 768"]),
        ("target_layers", Some(V::Is(vec![2, 3, 9])), &["target_layers", "is 9", "4..=8"]),
        ("target_layers", Some(V::Is(vec![2, 2, 6])), &["target_layers", "is 2", "3..=8"]),
        ("target_layers", Some(V::Is(vec![0, 3, 6])), &["target_layers", "is 0", "1..=8"]),
        ("target_layers", Some(V::Is(vec![])), &["target_layers", "0 entries"]),
        ("target_layers", None, &["target_layers", "missing"]),
        ("block_size", Some(V::I(0)), &["block_size", "is 0", "1..=64"]),
        ("block_size", Some(V::T("7")), &["block_size", "an integer"]),
        ("attention.head_count_kv", Some(V::I(3)), &["head_count_kv 3", "multiple"]),
        ("attention.value_length", Some(V::I(32)), &["value_length 32", "equal"]),
        ("attention.key_length", Some(V::I(63)), &["even number"]),
        ("attention.sliding_window_pattern", Some(V::I(4)), &["sliding_window_pattern", "an array of bools"]),
        ("attention.sliding_window_pattern", Some(V::Bs(vec![true])), &["has 1 entries", "3, one per layer"]),
        ("attention.causal", Some(V::I(1)), &["attention.causal", "a bool"]),
        ("rope.dimension_sections", Some(V::Is(vec![11, 11, 10, 0])), &["[11, 11, 10, 0]", "first section"]),
        ("rope.scaling.type", Some(V::T("yarn")), &["rope.scaling.type", "`yarn`"]),
        ("rope.freq_base", Some(V::F(-1.0)), &["freq_base", "above zero"]),
        ("final_logit_softcapping", Some(V::F(30.0)), &["final_logit_softcapping", "absent or zero"]),
        ("expert_count", Some(V::I(8)), &["expert_count", "is 8"]),
        (
            "confidence_temperature",
            Some(V::Fs(vec![1.0; 6])),
            &["confidence_temperature", "6 entries", "7, one per draft"],
        ),
        ("confidence_temperature", Some(V::Fs(vec![0.0; 7])), &["confidence_temperature", "above zero"]),
    ];
    for (key, value, words) in table {
        let message = read(&with(key, value)).unwrap_err().to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{key}: {message}");
    }
}

#[test]
fn tensors_that_would_change_drafts_are_refused_by_name() {
    let known = specs(&read(&file()).unwrap());
    let message = |name: &str| check_known(&known, [MARKOV_IN, name]).unwrap_err().to_string();
    for name in
        ["blk.0.attn_sinks.weight", "markov_gate.weight", "blk.1.attn_kv_a_mqa.weight", "rope_freqs.weight"]
    {
        assert!(message(name).starts_with(&format!("tensor `{name}` is not supported")), "{}", message(name));
    }
    assert!(message("\x1b[2J").contains("\\u{1b}"), "a name doesn't rule the terminal");
    assert_eq!(check_known(&known, known.iter().map(|spec| &*spec.names[0])), Ok(()));
    let mut headless = file();
    headless.dims.remove(CONFIDENCE);
    assert_eq!(read(&headless).unwrap_err().to_string(), "tensor `conf_proj.weight` is missing");
}
