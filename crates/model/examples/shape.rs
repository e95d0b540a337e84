//! What a header says of a model, and which tensors it then needs.
//!
//! `cargo run -p forerun-model --example shape`

#![expect(clippy::print_stdout, reason = "an example talks")]

use std::collections::BTreeMap;

use forerun_model::{KeyValue, KeyValues, LayerKind, ModelShape, ShapeError, names};

/// The header of the 35B model, as a file would hold it.
struct Header(BTreeMap<&'static str, i128>, Vec<String>);

impl KeyValues for Header {
    fn get(&self, key: &str) -> Option<KeyValue<'_>> {
        match key {
            "general.architecture" => Some(KeyValue::Text("qwen35moe")),
            "tokenizer.ggml.tokens" => Some(KeyValue::Texts(&self.1)),
            "qwen35moe.attention.layer_norm_rms_epsilon" => Some(KeyValue::Float(1e-6)),
            "qwen35moe.rope.dimension_sections" => Some(KeyValue::Integers(vec![11, 11, 10, 0])),
            _ => self.0.get(key.strip_prefix("qwen35moe.")?).map(|v| KeyValue::Integer(*v)),
        }
    }
}

fn main() -> Result<(), ShapeError> {
    let numbers = [
        ("block_count", 40),
        ("context_length", 262_144),
        ("embedding_length", 2048),
        ("attention.head_count", 16),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 256),
        ("rope.dimension_count", 64),
        ("expert_count", 256),
        ("expert_used_count", 8),
        ("expert_feed_forward_length", 512),
        ("expert_shared_feed_forward_length", 512),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 128),
        ("ssm.group_count", 16),
        ("ssm.time_step_rank", 32),
        ("ssm.inner_size", 4096),
    ];
    let mut header = Header(numbers.into(), vec!["a".into(), "b".into()]);
    let shape = ModelShape::from_metadata(&header)?;
    println!(
        "{} layers, {} of them with attention; {} of {} experts per token",
        shape.n_layers(),
        shape.n_layers_of(LayerKind::Attention),
        shape.moe.top_k,
        shape.moe.n_experts
    );
    println!("{} resident tensors, such as:", names::resident(&shape).len());
    for spec in names::resident(&shape).iter().skip(3).take(4) {
        println!("  {} {:?}", spec.names.join(" or "), spec.dims);
    }
    header.0.insert("expert_used_count", 300);
    if let Err(error) = ModelShape::from_metadata(&header) {
        println!("and what a bad header is told: {error}");
    }
    Ok(())
}
