//! Headers that must be read, and headers that must be refused by name.

use std::collections::BTreeMap;

use super::*;

#[derive(Clone)]
enum V {
    I(i128),
    F(f64),
    B(bool),
    T(&'static str),
    Is(Vec<i128>),
    Bs(Vec<bool>),
    Ts(Vec<String>),
}

#[derive(Clone)]
struct Map(BTreeMap<String, V>);

impl KeyValues for Map {
    fn get(&self, key: &str) -> Option<KeyValue<'_>> {
        Some(match self.0.get(key)? {
            V::I(v) => KeyValue::Integer(*v),
            V::F(v) => KeyValue::Float(*v),
            V::B(v) => KeyValue::Bool(*v),
            V::T(v) => KeyValue::Text(v),
            V::Is(v) => KeyValue::Integers(v.clone()),
            V::Bs(v) => KeyValue::Bools(v.clone()),
            V::Ts(v) => KeyValue::Texts(v),
        })
    }
}

/// The header of the 35B model.
fn header() -> Map {
    let mut map = BTreeMap::new();
    map.insert("general.architecture".to_owned(), V::T("qwen35moe"));
    map.insert("tokenizer.ggml.tokens".to_owned(), V::Ts(vec!["a".into(), "b".into()]));
    for (key, value) in [
        ("block_count", V::I(40)),
        ("context_length", V::I(262_144)),
        ("embedding_length", V::I(2048)),
        ("attention.head_count", V::I(16)),
        ("attention.head_count_kv", V::I(2)),
        ("attention.key_length", V::I(256)),
        ("attention.value_length", V::I(256)),
        ("attention.layer_norm_rms_epsilon", V::F(1e-6)),
        ("rope.dimension_count", V::I(64)),
        ("rope.dimension_sections", V::Is(vec![11, 11, 10, 0])),
        ("rope.freq_base", V::F(1e7)),
        ("expert_count", V::I(256)),
        ("expert_used_count", V::I(8)),
        ("expert_feed_forward_length", V::I(512)),
        ("expert_shared_feed_forward_length", V::I(512)),
        ("ssm.conv_kernel", V::I(4)),
        ("ssm.state_size", V::I(128)),
        ("ssm.group_count", V::I(16)),
        ("ssm.time_step_rank", V::I(32)),
        ("ssm.inner_size", V::I(4096)),
    ] {
        map.insert(format!("qwen35moe.{key}"), value);
    }
    Map(map)
}

fn with(changes: &[(&str, V)]) -> Result<ModelShape, ShapeError> {
    let mut map = header();
    for (key, value) in changes {
        map.0.insert(format!("qwen35moe.{key}"), value.clone());
    }
    ModelShape::from_metadata(&map)
}

#[track_caller]
fn refused(changes: &[(&str, V)], names: &str) {
    let error = with(changes).unwrap_err().to_string();
    assert!(error.contains(names), "{error:?} should name {names:?}");
}

#[test]
fn the_35b_header_is_read() {
    let shape = with(&[]).unwrap();
    assert_eq!((shape.n_layers(), shape.hidden, shape.n_vocab), (40, 2048, 2));
    assert_eq!(shape.n_layers_of(LayerKind::Attention), 10);
    assert_eq!(shape.layers[3], LayerKind::Attention);
    let net = shape.delta_net.unwrap();
    assert_eq!((net.conv_channels(), net.state_len(), net.key_head(17)), (8192, 524_288, 1));
}

#[test]
fn mtp_blocks_are_not_layers() {
    let shape = with(&[("block_count", V::I(41)), ("nextn_predict_layers", V::I(1))]).unwrap();
    assert_eq!((shape.n_layers(), shape.n_mtp), (40, 1));
    refused(&[("nextn_predict_layers", V::I(40))], "nextn_predict_layers");
}

#[test]
fn recurrent_layers_win_over_the_interval() {
    let mut flags = vec![true; 40];
    flags[0] = false;
    let shape = with(&[("attention.recurrent_layers", V::Bs(flags))]).unwrap();
    assert_eq!(shape.layers[0], LayerKind::Attention);
    assert_eq!(shape.n_layers_of(LayerKind::Attention), 1);
    refused(&[("attention.recurrent_layers", V::Bs(vec![true; 3]))], "recurrent_layers");
}

#[test]
fn other_exporters_spellings_are_read() {
    let per_layer = (0..40).map(|i| if (i + 1) % 4 == 0 { 2 } else { 0 }).collect();
    let shape = with(&[
        ("attention.head_count_kv", V::Is(per_layer)),
        ("rope.dimension_sections", V::Is(vec![11, 11, 10])),
        ("expert_used_count", V::Is(vec![8; 40])),
        ("ssm.v_head_reordered", V::B(false)),
    ])
    .unwrap();
    assert_eq!(shape.attention.n_kv_heads, 2);
    assert_eq!(shape.rope.sections, [11, 11, 10, 0]);
    assert_eq!(shape.moe.top_k, 8);
    assert_eq!(shape.delta_net.unwrap().key_head(17), 8);
}

/// Every architecture, and whether it has a shared expert.
const ARCHITECTURES_READ: [(&str, bool); 4] =
    [("qwen35moe", true), ("qwen3next", true), ("qwen3moe", false), ("qwen2moe", true)];

#[test]
fn every_number_has_a_range() {
    for key in [
        "block_count",
        "context_length",
        "embedding_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "rope.dimension_count",
        "expert_count",
        "expert_used_count",
        "expert_feed_forward_length",
        "expert_shared_feed_forward_length",
        "ssm.conv_kernel",
        "ssm.state_size",
        "ssm.group_count",
        "ssm.time_step_rank",
        "ssm.inner_size",
    ] {
        for value in [0, -1, i128::from(u32::MAX), i128::from(u64::MAX)] {
            refused(&[(key, V::I(value))], key);
        }
        refused(&[(key, V::T("8"))], key);
    }
}

/// Without `key_length` and `value_length` a head's size follows from two other numbers, and is in its range as well.
#[test]
fn a_head_size_that_follows_from_others_has_a_range() {
    for (architecture, _) in ARCHITECTURES_READ {
        for (hidden, n_heads, fine) in
            [(2048, 2, true), (2048, 1, false), (1 << 17, 16, false), (8, 16, false)]
        {
            let mut map =
                header_of(architecture, &["attention.key", "attention.value", "attention.head_count_kv"]);
            map.0.insert(format!("{architecture}.embedding_length"), V::I(hidden));
            map.0.insert(format!("{architecture}.attention.head_count"), V::I(n_heads));
            let outcome = ModelShape::from_metadata(&map);
            assert_eq!(outcome.is_ok(), fine, "{architecture}: {hidden} / {n_heads}: {outcome:?}");
            if let Err(error) = outcome {
                assert!(error.to_string().contains("attention.head_count"), "{error}");
            }
        }
    }
}

#[test]
fn the_width_of_a_layer_without_experts_is_read_only_where_nothing_else_says_it() {
    for (architecture, shared) in ARCHITECTURES_READ {
        for odd in [V::I(0), V::Is(vec![0; 40]), V::T("none")] {
            let mut map = header_of(architecture, &[]);
            map.0.insert(format!("{architecture}.feed_forward_length"), odd.clone());
            assert!(ModelShape::from_metadata(&map).is_ok(), "{architecture}");
            for (dropped, asked) in [("expert_feed", true), ("expert_shared", shared)] {
                let mut map = header_of(architecture, &[dropped]);
                map.0.insert(format!("{architecture}.feed_forward_length"), odd.clone());
                assert_eq!(
                    ModelShape::from_metadata(&map).is_err(),
                    asked,
                    "{architecture} without {dropped}"
                );
            }
        }
    }
}

#[test]
fn numbers_must_fit_together() {
    refused(&[("expert_used_count", V::I(257))], "expert_used_count");
    refused(&[("attention.head_count_kv", V::I(3))], "head_count_kv");
    refused(&[("attention.value_length", V::I(128))], "value_length");
    refused(&[("ssm.inner_size", V::I(4095))], "ssm.inner_size");
    refused(&[("ssm.time_step_rank", V::I(24)), ("ssm.inner_size", V::I(4080))], "value heads");
    refused(&[("rope.dimension_count", V::I(63))], "rope.dimension_count");
    refused(&[("rope.dimension_count", V::I(258))], "rope.dimension_count");
    refused(&[("rope.dimension_sections", V::Is(vec![11, 11, 11, 0]))], "sections");
    refused(&[("rope.dimension_sections", V::Is(vec![16, 16]))], "sections");
    refused(&[("rope.dimension_sections", V::Is(vec![-1, 22, 11]))], "sections");
    refused(&[("rope.scaling.type", V::T("yarn"))], "rope.scaling.type");
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        refused(&[("rope.freq_base", V::F(bad))], "rope.freq_base");
        refused(&[("attention.layer_norm_rms_epsilon", V::F(bad))], "epsilon");
    }
}

#[test]
fn a_missing_key_is_named() {
    for key in ["block_count", "expert_count", "expert_used_count", "ssm.state_size", "context_length"] {
        let mut map = header();
        map.0.remove(&format!("qwen35moe.{key}"));
        let error = ModelShape::from_metadata(&map).unwrap_err();
        assert_eq!(error, ShapeError::MissingKey { key: format!("qwen35moe.{key}") });
    }
}

/// The 35B's header under another architecture's name, without `dropped` keys.
fn header_of(architecture: &'static str, dropped: &[&str]) -> Map {
    let Map(all) = header();
    let renamed = all.into_iter().filter_map(|(key, value)| match key.strip_prefix("qwen35moe.") {
        Some(name) if dropped.iter().any(|start| name.starts_with(start)) => None,
        Some(name) => Some((format!("{architecture}.{name}"), value)),
        None => Some((key, value)),
    });
    let mut map = Map(renamed.collect());
    map.0.insert("general.architecture".into(), V::T(architecture));
    map
}

#[test]
fn qwen3next_has_grouped_heads_and_one_axis_of_positions() {
    let shape = ModelShape::from_metadata(&header_of("qwen3next", &["rope.dimension_sections"])).unwrap();
    assert_eq!(shape.rope.sections, [32, 0, 0, 0]);
    assert_eq!(shape.delta_net.unwrap().key_head(17), 8);
    assert_eq!(shape.n_layers_of(LayerKind::Attention), 10);
    assert_eq!((shape.moe.shared_ff, shape.moe.renormalises), (Some(512), true));
    assert!(shape.attention.parts.gate);
}

#[test]
fn qwen3moe_has_attention_everywhere_and_no_shared_expert() {
    let dropped = ["rope.dimension", "ssm", "expert_shared"];
    let shape = ModelShape::from_metadata(&header_of("qwen3moe", &dropped)).unwrap();
    assert_eq!((shape.n_layers_of(LayerKind::Attention), shape.delta_net), (40, None));
    assert_eq!((shape.rope.n_rot, shape.rope.sections), (256, [128, 0, 0, 0]));
    assert_eq!((shape.moe.shared_ff, shape.moe.renormalises), (None, true));
    assert_eq!(shape.attention.parts, AttentionParts { gate: false, head_norms: true });
    assert_eq!(shape.attention.query_rows(), 4096);
}

#[test]
fn qwen2moe_has_plain_attention_and_keeps_the_routers_probabilities() {
    let dropped =
        ["rope.dimension", "ssm", "expert_shared", "attention.key", "attention.value", "expert_feed"];
    let mut map = header_of("qwen2moe", &dropped);
    map.0.insert("qwen2moe.feed_forward_length".into(), V::I(5632));
    let shape = ModelShape::from_metadata(&map).unwrap();
    assert_eq!(shape.attention.parts, AttentionParts { gate: false, head_norms: false });
    assert_eq!(shape.attention.head_dim, 128, "the hidden size, split among the heads");
    assert_eq!((shape.moe.expert_ff, shape.moe.shared_ff), (5632 / 8, Some(5632)));
    assert!(!shape.moe.renormalises);
}

#[test]
fn sections_are_demanded_of_qwen35moe_only() {
    let map = header_of("qwen35moe", &["rope.dimension_sections"]);
    let error = ModelShape::from_metadata(&map).unwrap_err().to_string();
    assert!(error.contains("qwen35moe.rope.dimension_sections"), "{error}");
}

#[test]
fn another_architecture_is_refused_by_name() {
    let mut map = header();
    map.0.insert("general.architecture".into(), V::T("llama"));
    let error = ModelShape::from_metadata(&map).unwrap_err().to_string();
    assert_eq!(
        error,
        "architecture `llama` is not supported; supported: qwen35moe, qwen3next, qwen3moe, qwen2moe"
    );
}

#[test]
fn files_that_are_no_models_are_told_apart() {
    for (kind, words) in [("adapter", "LoRA"), ("mmproj", "image projector"), ("imatrix", "--imatrix")] {
        let mut map = header();
        map.0.insert("general.type".into(), V::T(kind));
        let error = ModelShape::from_metadata(&map).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("not a model"), "{error}");
    }
    let mut map = header();
    map.0.insert("general.type".into(), V::T("model"));
    assert!(ModelShape::from_metadata(&map).is_ok());
}

#[test]
fn a_refused_architecture_does_not_rule_the_terminal() {
    let mut map = header();
    map.0.insert("general.architecture".into(), V::T("\x1b[2Jllama"));
    let message = ModelShape::from_metadata(&map).unwrap_err().to_string();
    assert!(message.contains("`\\u{1b}[2Jllama`"), "{message}");
}
