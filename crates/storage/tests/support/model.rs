//! A whole small model of the architecture, its experts kept in any of the three ways.

use forerun_model::{ExpertKey, LayerId, ModelShape, QuantType, names};
use forerun_storage::Gguf;

use super::raw::{ARRAY, File, I32, Raw, TEXT, Tensor, U32};

/// How a file keeps its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Experts {
    Stacked,
    Fused,
    Apart,
}

/// Sizes of a small model.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub hidden: u32,
    pub expert_ff: u32,
    pub n_experts: u32,
    pub quant: QuantType,
    pub experts: Experts,
}

impl Default for Model {
    fn default() -> Self {
        Self { hidden: 32, expert_ff: 5, n_experts: 3, quant: QuantType::F32, experts: Experts::Stacked }
    }
}

impl Model {
    pub fn metadata(&self) -> Vec<Raw> {
        let key = |name: &str| format!("qwen35moe.{name}");
        let mut entries = vec![
            Raw::default().entry("general.architecture", TEXT).text("qwen35moe"),
            Raw::default().entry(&key("attention.layer_norm_rms_epsilon"), super::raw::F32).f32(1e-6),
            Raw::default().entry(&key("rope.freq_base"), super::raw::F32).f32(1e7),
            Raw::default().array(&key("rope.dimension_sections"), I32, 4).i32(2).i32(1).i32(1).i32(0),
        ];
        for (name, value) in [
            ("block_count", 2),
            ("context_length", 64),
            ("embedding_length", self.hidden),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
            ("attention.key_length", 16),
            ("attention.value_length", 16),
            ("rope.dimension_count", 8),
            ("expert_count", self.n_experts),
            ("expert_used_count", 1),
            ("expert_feed_forward_length", self.expert_ff),
            ("expert_shared_feed_forward_length", 4),
            ("ssm.conv_kernel", 4),
            ("ssm.state_size", 8),
            ("ssm.group_count", 1),
            ("ssm.time_step_rank", 2),
            ("ssm.inner_size", 16),
            ("full_attention_interval", 2),
        ] {
            entries.push(Raw::default().entry(&key(name), U32).u32(value));
        }
        let tokens = Raw::default().entry("tokenizer.ggml.tokens", ARRAY).u32(TEXT).u64(6);
        entries.push((0..6).fold(tokens, |raw, i| raw.text(format!("token {i}"))));
        entries
    }

    pub fn shape(&self) -> ModelShape {
        let file = File { entries: self.metadata(), ..File::default() };
        let gguf = Gguf::open_bytes("model", file.write().into()).unwrap();
        ModelShape::from_metadata(&gguf.metadata).unwrap()
    }

    pub fn file(&self) -> File {
        let shape = self.shape();
        let mut file = File { entries: self.metadata(), ..File::default() };
        for spec in names::resident(&shape) {
            // Attention is written unfused.
            if spec.optional && spec.names[0].ends_with("attn_qkv.weight") {
                continue;
            }
            let n: u64 = spec.dims.iter().product();
            let data = (0..4 * n).map(|i| (i % 127).to_le_bytes()[0]).collect();
            file = file.tensor(&spec.names[0], &spec.dims, data);
        }
        for layer in shape.layer_ids() {
            self.add_experts(layer, &mut file);
        }
        file
    }

    fn add_experts(&self, layer: LayerId, file: &mut File) {
        let (d, ff, n) = (u64::from(self.hidden), u64::from(self.expert_ff), u64::from(self.n_experts));
        let experts = 0..u16::try_from(n).unwrap();
        let all = |parts: &[usize]| -> Vec<u8> {
            let keys = experts.clone().map(|expert| ExpertKey::new(layer.0, expert));
            keys.flat_map(|key| parts.iter().flat_map(move |&part| self.matrix(key, part))).collect()
        };
        let mut add = |name: String, dims: &[u64], data: Vec<u8>| {
            file.tensors.push(Tensor { name, dims: dims.to_vec(), kind: self.quant.id(), data });
        };
        let parts = [("ffn_gate", [d, ff]), ("ffn_up", [d, ff]), ("ffn_down", [ff, d])];
        let stacked = |part: usize| names::block(layer, &format!("{}_exps", parts[part].0));
        match self.experts {
            Experts::Stacked => {
                for (i, (_, [cols, rows])) in parts.into_iter().enumerate() {
                    add(stacked(i), &[cols, rows, n], all(&[i]));
                }
            }
            Experts::Fused => {
                add(names::block(layer, "ffn_gate_up_exps"), &[d, 2 * ff, n], all(&[0, 1]));
                add(stacked(2), &[ff, d, n], all(&[2]));
            }
            Experts::Apart => {
                for expert in experts.clone() {
                    for (i, (part, dims)) in parts.iter().enumerate() {
                        let key = ExpertKey::new(layer.0, expert);
                        add(names::block_expert(layer, part, expert.into()), dims, self.matrix(key, i));
                    }
                }
            }
        }
    }

    /// The bytes of one matrix: gate 0, up 1, down 2.
    pub fn matrix(&self, key: ExpertKey, part: usize) -> Vec<u8> {
        let (d, ff) = (self.hidden as usize, self.expert_ff as usize);
        let (cols, rows) = if part == 2 { (ff, d) } else { (d, ff) };
        let len = self.quant.row_bytes(cols).unwrap() * rows;
        let seed = usize::from(key.layer.0) * 31 + usize::from(key.expert.0) * 7 + part * 3;
        (0..len).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 3).to_le_bytes()[0]).collect()
    }
}
