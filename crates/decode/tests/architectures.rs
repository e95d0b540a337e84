//! Every architecture against transformers, and both backends against each other: `fixtures/architectures.py` says how
//! the goldens are made.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::io::{Read, Write};
use std::ops::Range;

use forerun_compute::{
    Backend, Checkpoint, ComputeError, ExpertJob, Part, Reference, Rounding, Scores, SequenceIdx, Step,
    StepOutput,
};
use forerun_decode::{BackendChoice, DecodeError, Engine, ModelSource, SlotWish};
use forerun_model::{ExpertId, LayerId, Routing, Stage, TokenId};
use serde_json::Value;
use support::goldens::{EXACT, check_cases};
use support::rig::{CONFIG, rig, text_rows};
use support::{config, difference, fixture, floats, ids, json, logits_of_all, logits_of_last};

/// Each model, and what transformers makes of its weights.
const MODELS: [(&str, &str); 4] = [
    ("architectures/qwen3moe-f32.gguf", "architectures/qwen3moe.expected.json"),
    ("architectures/qwen2moe-f32.gguf", "architectures/qwen2moe.expected.json"),
    ("architectures/qwen3next-f32.gguf", "architectures/qwen3next.expected.json"),
    ("architectures/qwen3next-ssm_in-f32.gguf", "architectures/qwen3next.expected.json"),
];

fn cases(expected: &Value) -> &[Value] {
    expected["cases"].as_array().unwrap()
}

#[test]
fn logits_are_those_of_transformers() {
    for (model, expected) in MODELS {
        check_cases(model, &json(expected), 1e-4);
    }
}

/// Keys and values are half floats in the cpu backend, which is where the wider bound comes from: products of F32
/// weights are not rounded. Chunks and slots change no bit.
#[test]
fn cpu_has_the_bits_of_the_reference_that_rounds_alike() {
    for (model, expected) in MODELS {
        let like = BackendChoice::Reference(Rounding::LikeQuantised);
        let mut reference = Engine::open(&config(&fixture(model), like)).unwrap();
        let mut cpu = Engine::open(&config(&fixture(model), BackendChoice::Cpu)).unwrap();
        let mut few = config(&fixture(model), BackendChoice::Cpu);
        (few.slots, few.n_threads) = (SlotWish::PerLayer(0), Some(2));
        let mut few = Engine::open(&few).unwrap();
        for case in cases(&json(expected)) {
            let tokens = ids(&case["ids"]);
            let all = logits_of_all(&mut cpu, &tokens);
            let last = all.last().unwrap();
            let off = difference(last, &floats(&case["logits_last_full"]));
            assert!(off < 3e-3, "{model} {}: off by {off}", case["name"]);
            assert_eq!(all, logits_of_all(&mut reference, &tokens), "{model} {}", case["name"]);
            for chunk in [7, 64, tokens.len()] {
                assert_eq!(&logits_of_last(&mut cpu, &tokens, chunk), last, "{model}: chunks of {chunk}");
                assert_eq!(&logits_of_last(&mut few, &tokens, chunk), last, "{model}: no slots, {chunk}");
            }
        }
    }
}

/// The copies of regrouped matrices are read in place of the file's.
#[test]
fn a_token_reads_as_much_in_either_layout() {
    let traffic = |model| Engine::open(&config(&fixture(model), BackendChoice::Cpu)).unwrap().token_traffic();
    let (apart, grouped) = (traffic(MODELS[2].0), traffic(MODELS[3].0));
    assert_eq!(apart, grouped);
}

/// `qwen2moe` without some biases: their tensors have names that nothing asks for.
fn without_biases(parts: &[&str]) -> Result<Engine, DecodeError> {
    let mut bytes = std::fs::read(fixture(MODELS[1].0)).unwrap();
    for part in parts {
        let name = format!("attn_{part}.bias");
        let found = |&i: &usize| bytes[i..].starts_with(name.as_bytes());
        let at: Vec<_> = (0..bytes.len()).filter(found).collect();
        assert!(!at.is_empty(), "the file has {name}");
        at.into_iter().for_each(|i| bytes[i + name.len() - 4] = b'd');
    }
    let mut config = config(&fixture(MODELS[1].0), BackendChoice::Cpu);
    config.model = ModelSource::Embedded { name: "edited", bytes: bytes.into() };
    Engine::open(&config)
}

#[test]
fn whether_attention_has_biases_is_the_files_to_say() {
    let tokens = [TokenId(1), TokenId(2), TokenId(3)];
    let with = logits_of_last(&mut without_biases(&[]).unwrap(), &tokens, 3);
    let without = logits_of_last(&mut without_biases(&["q", "k", "v"]).unwrap(), &tokens, 3);
    assert!(with != without && without.iter().all(|logit| logit.is_finite()));
    for (parts, missing) in
        [(&["k"][..], "attn_k.bias"), (&["q", "k"], "attn_q.bias"), (&["v"], "attn_v.bias")]
    {
        let error = without_biases(parts).err().unwrap().to_string();
        assert!(error.contains(missing), "{error}");
    }
}

#[test]
fn routers_choose_as_in_transformers() {
    for (model, expected) in MODELS {
        let (mut rig, weights) = rig(model);
        let mut stack = Reference::reference(weights, CONFIG, Rounding::None);
        for case in cases(&json(expected)) {
            let rows = text_rows(0, &ids(&case["ids"]));
            let mut listener = Listener { backend: &mut stack, heard: Vec::new() };
            let part = Part { n_rows: rows.len(), ..Part::default() };
            let step = Step::of(&part, &rows);
            rig.run(&mut listener, &step);
            let heard = listener.heard;
            assert_eq!(heard.len(), rig.shape.n_layers());
            for (layer, rows) in heard.iter().enumerate() {
                for (row, chosen) in rows.iter().enumerate() {
                    let name = format!("{model} {}: layer {layer}, row {row}", case["name"]);
                    let experts: Vec<_> = chosen.iter().map(|c| u64::from(c.0.0)).collect();
                    assert_eq!(Value::from(experts), case["experts"][layer][row], "{name}");
                    let weights: Vec<_> = chosen.iter().map(|c| c.1).collect();
                    let off = difference(&weights, &floats(&case["weights"][layer][row]));
                    assert!(off < 1e-4, "{name}: a weight is off by {off}");
                }
            }
        }
    }
}

#[test]
fn the_layout_of_the_file_changes_no_bit() {
    let tokens = ids(&cases(&json(MODELS[2].1))[2]["ids"]);
    let logits = |model| logits_of_all(&mut Engine::open(&config(&fixture(model), EXACT)).unwrap(), &tokens);
    assert_eq!(logits(MODELS[2].0), logits(MODELS[3].0));
}

/// Rows that were copied into another order are counted, and what they were copied from is let go.
#[test]
fn regrouped_rows_are_counted_once() {
    let open = |model| Engine::open(&config(&fixture(model), EXACT)).unwrap();
    let (apart, grouped) = (open(MODELS[2].0), open(MODELS[3].0));
    let shape = apart.shape();
    let net = shape.delta_net.unwrap();
    let n_rows = net.conv_channels() + net.value_width() + 2 * net.n_value_heads;
    let per_layer = (n_rows * shape.hidden * 4) as u64;
    let n_layers = 3;
    let freed = apart.resident_bytes() - grouped.resident_bytes();
    let ba_bytes = (2 * net.n_value_heads * shape.hidden * 4) as u64;
    assert_eq!(freed, n_layers * (per_layer - ba_bytes), "ssm_ba is copied in both");
    // Whole pages that were mapped against exact bytes that are owned.
    let (apart, grouped) = (apart.plan().dense, grouped.plan().dense);
    assert!(grouped < apart && apart - grouped < n_layers * 4 * 4096, "{apart} {grouped}");
}

/// A backend that remembers what the routers said.
struct Listener<'a> {
    backend: &'a mut dyn Backend,
    /// Experts and weights of every layer and row.
    heard: Vec<Vec<Vec<(ExpertId, f32)>>>,
}

#[deny(clippy::missing_trait_methods)]
impl Backend for Listener<'_> {
    fn begin(&mut self, step: &Step<'_>) -> Result<(), ComputeError> {
        self.backend.begin(step)
    }

    fn mix_route(&mut self, layer: LayerId, routing: &mut Routing) -> Result<(), ComputeError> {
        self.backend.mix_route(layer, routing)?;
        self.heard.push((0..routing.n_rows()).map(|row| routing.row(row).to_vec()).collect());
        Ok(())
    }

    fn scores(&mut self, stage: Stage, layer: LayerId, scores: &mut Scores) -> Result<(), ComputeError> {
        self.backend.scores(stage, layer, scores)
    }

    fn run_shared(&mut self, layer: LayerId) -> Result<(), ComputeError> {
        self.backend.run_shared(layer)
    }

    fn run_expert(&mut self, job: ExpertJob<'_>) -> Result<(), ComputeError> {
        self.backend.run_expert(job)
    }

    fn close_layer(&mut self, layer: LayerId) -> Result<(), ComputeError> {
        self.backend.close_layer(layer)
    }

    fn finish(&mut self, output: &mut StepOutput) -> Result<(), ComputeError> {
        self.backend.finish(output)
    }

    fn accept(&mut self, part: usize, n_rows: usize) -> Result<(), ComputeError> {
        self.backend.accept(part, n_rows)
    }

    fn exchange(&mut self) {
        self.backend.exchange();
    }

    fn save(&self, sequence: SequenceIdx, checkpoint: &mut Checkpoint) -> Result<(), ComputeError> {
        self.backend.save(sequence, checkpoint)
    }

    fn restore(&mut self, sequence: SequenceIdx, checkpoint: &Checkpoint) -> Result<(), ComputeError> {
        self.backend.restore(sequence, checkpoint)
    }

    fn save_rows(
        &self,
        sequence: SequenceIdx,
        rows: Range<usize>,
        out: &mut dyn Write,
    ) -> Result<(), ComputeError> {
        self.backend.save_rows(sequence, rows, out)
    }

    fn load(
        &mut self,
        sequence: SequenceIdx,
        checkpoint: &Checkpoint,
        rows: &mut dyn Read,
    ) -> Result<(), ComputeError> {
        self.backend.load(sequence, checkpoint, rows)
    }
}
