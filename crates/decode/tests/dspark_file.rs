//! A drafter's file, written here: what it takes, what it gives, and what is refused by name.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::error::Error;
use std::io::Write;

use forerun_compute::workers::Workers;
use forerun_decode::draft::{Anchor, Draft, DsparkFile, Seen};
use forerun_decode::sampler::SamplerError;
use forerun_decode::{BackendChoice, DecodeError};
use forerun_model::drafter::TARGET_IDS;
use forerun_model::{QuantType, TokenId};
use forerun_storage::gguf::{Array, Dims, HeaderWriter, TensorSpec, Value};
use support::fixture;
use support::rig::rig;
use tempfile::NamedTempFile;

/// Tokens that can be drafted, of the 512 of `tiny-a`.
const DRAFTED: u64 = 16;
/// Which ones: all odd.
const IDS: [i64; 16] = [1, 3, 5, 7, 9, 11, 13, 15, 101, 103, 105, 107, 505, 507, 509, 511];

/// Keys of a header.
type Keys = Vec<(String, Value)>;
/// Names of tensors, and their dimensions.
type Tensors = Vec<(String, Vec<u64>)>;

/// Keys and tensors of a drafter for `tiny-a`.
fn parts() -> (Keys, Tensors) {
    let mut keys = vec![
        ("general.architecture".to_owned(), Value::Text("dflash".into())),
        ("tokenizer.ggml.mask_token_id".to_owned(), Value::U32(0)),
        ("dflash.target_layers".to_owned(), Value::Array(Array::I32(vec![2, 5]))),
        ("dflash.attention.layer_norm_rms_epsilon".to_owned(), Value::F32(1e-6)),
    ];
    for (key, value) in [
        ("block_count", 1),
        ("embedding_length", 128),
        ("feed_forward_length", 64),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 32),
        ("block_size", 4),
    ] {
        keys.push((format!("dflash.{key}"), Value::U32(value)));
    }
    let tensors = [
        ("fc.weight", vec![256, 128]),
        ("enc.output_norm.weight", vec![128]),
        ("output_norm.weight", vec![128]),
        ("output.weight", vec![128, DRAFTED]),
        (TARGET_IDS, vec![DRAFTED]),
        ("markov_w1.weight", vec![32, 512]),
        ("markov_w2.weight", vec![32, DRAFTED]),
        ("conf_proj.weight", vec![160, 1]),
        ("blk.0.attn_norm.weight", vec![128]),
        ("blk.0.attn_q.weight", vec![128, 64]),
        ("blk.0.attn_k.weight", vec![128, 32]),
        ("blk.0.attn_output.weight", vec![64, 128]),
        ("blk.0.attn_q_norm.weight", vec![32]),
        ("blk.0.attn_k_norm.weight", vec![32]),
        ("blk.0.ffn_norm.weight", vec![128]),
        ("blk.0.ffn_gate.weight", vec![128, 64]),
        ("blk.0.ffn_up.weight", vec![128, 64]),
        ("blk.0.ffn_down.weight", vec![64, 128]),
    ];
    (keys, tensors.into_iter().map(|(name, dims)| (name.to_owned(), dims)).collect())
}

/// Writes a drafter whose weights are noise.
fn written((keys, tensors): (Keys, Tensors)) -> NamedTempFile {
    let quant = |name: &str| if name == TARGET_IDS { QuantType::I64 } else { QuantType::F32 };
    let spec = |(name, dims): &(String, Vec<u64>)| TensorSpec {
        name: name.clone(),
        quant: quant(name),
        dims: Dims::new(dims).unwrap(),
    };
    let header = HeaderWriter::new(keys, tensors.iter().map(spec).collect()).unwrap();
    let mut bytes = Vec::new();
    header.write(&mut bytes).unwrap();
    let mut state = 7_u32;
    for (i, (name, dims)) in tensors.iter().enumerate() {
        bytes.resize(usize::try_from(header.offset_bytes(i)).unwrap(), 0);
        if name == TARGET_IDS {
            IDS.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
            continue;
        }
        for _ in 0..dims.iter().product() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bytes.extend((f32::from((state >> 16) as u16) / 65_536.0 - 0.5).to_le_bytes());
        }
    }
    bytes.resize(usize::try_from(header.file_bytes()).unwrap(), 0);
    let mut file = NamedTempFile::with_suffix(".gguf").unwrap();
    file.write_all(&bytes).unwrap();
    file
}

/// Keeps what it is offered.
#[derive(Default)]
struct Offers {
    logits: Vec<Vec<f32>>,
    confidences: Vec<f32>,
}

impl Draft for Offers {
    fn admits(&mut self, confidence: f32) -> bool {
        self.confidences.push(confidence);
        self.confidences.len() < 4
    }

    fn choose(&mut self, logits: &[f32]) -> Result<TokenId, SamplerError> {
        self.logits.push(logits.to_vec());
        Ok(TokenId(u32::try_from(support::argmax(logits)).unwrap()))
    }

    fn push(&mut self, _: TokenId) {
        unreachable!("every draft is chosen")
    }
}

#[test]
fn a_written_drafter_offers_what_its_table_of_ids_says() {
    let (mut rig, weights) = rig("tiny-a-f32.gguf");
    let file = written(parts());
    let (mut offers, mut taken) = (Vec::new(), Vec::new());
    for backend in [BackendChoice::EXACT, BackendChoice::Cpu] {
        let drafter = DsparkFile::open(file.path(), &rig.shape).unwrap();
        taken.push(drafter.bytes(100, backend));
        let mut drafter = drafter.start(&weights, 100, backend, &Workers::new(2).unwrap()).unwrap();
        assert_eq!(drafter.taps().layers.iter().map(|layer| layer.0).collect::<Vec<_>>(), [1, 4]);
        assert_eq!((drafter.name(), drafter.n_max()), ("dspark", 4));
        let taps: Vec<f32> = (0..5 * 256_u16).map(|i| f32::from(i % 11) / 7.0 - 0.7).collect();
        let seen = Seen { first: 0, tokens: &[TokenId(1); 5], taps: &taps, normed: &[] };
        drafter.observe(&mut rig.scheduler, seen).unwrap();
        let anchor = Anchor { held: &[TokenId(1); 5], token: TokenId(3) };
        let mut draft = Offers::default();
        drafter.propose(&mut rig.scheduler, anchor, &mut draft).unwrap();
        assert_eq!(
            (draft.logits.len(), draft.confidences.len()),
            (3, 4),
            "what isn't admitted isn't computed"
        );
        for row in &draft.logits {
            let offered = (0..512).zip(row).filter(|(_, logit)| logit.is_finite());
            let offered: Vec<i64> = offered.map(|(id, _)| id).collect();
            assert_eq!(offered, IDS, "only what can be drafted");
        }
        offers.push(draft);
    }
    let off = offers[0].logits.iter().zip(&offers[1].logits).flat_map(|(a, b)| a.iter().zip(b));
    let off = off.filter(|(a, _)| a.is_finite()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off < 1e-2, "backends differ by {off}");
    // One layer's keys and values of 104 rows; half as many bytes in f16.
    assert_eq!(taken[0].context, 104 * 2 * 32 * 4);
    assert_eq!((taken[1].context, taken[1].scratch), (taken[0].context / 2, taken[0].scratch));
    let len = file.as_file().metadata().unwrap().len();
    assert!((len..len + (1 << 17)).contains(&taken[0].weights), "{} of a file of {len}", taken[0].weights);
}

/// What is said of a file that was changed: the file, then the reason.
fn refusal(change: impl Fn(&mut Keys, &mut Tensors)) -> String {
    let (rig, weights) = rig("tiny-a-f32.gguf");
    let (mut keys, mut tensors) = parts();
    change(&mut keys, &mut tensors);
    let file = written((keys, tensors));
    let started = DsparkFile::open(file.path(), &rig.shape)
        .and_then(|drafter| drafter.start(&weights, 10, BackendChoice::EXACT, &Workers::single()));
    let error = started.err().unwrap();
    assert!(matches!(error, DecodeError::Drafter { .. }), "{error:?}");
    assert!(error.to_string().starts_with(&*file.path().to_string_lossy()), "{error}");
    error.source().unwrap().to_string()
}

#[test]
fn files_that_do_not_fit_are_refused_by_name() {
    let dims = |name: &'static str, dims: Vec<u64>| {
        refusal(move |_, tensors| tensors.iter_mut().find(|t| t.0 == name).unwrap().1 = dims.clone())
    };
    let message = dims("markov_w2.weight", vec![32, 15]);
    assert_eq!(message, "tensor `markov_w2.weight` has dimensions [32, 15]; the header needs [32, 16]");
    let message = dims("conf_proj.weight", vec![150, 1]);
    assert_eq!(message, "tensor `conf_proj.weight` has dimensions [150, 1]; the header needs [160]");
    let message = dims("fc.weight", vec![384, 128]);
    assert!(message.contains("dflash.target_layers (entries) 2") && message.contains("384"), "{message}");
    let message = refusal(|_, tensors| tensors.push(("blk.0.attn_sinks.weight".into(), vec![2])));
    assert!(message.starts_with("tensor `blk.0.attn_sinks.weight` is not supported"), "{message}");
    let message = refusal(|_, tensors| tensors.retain(|tensor| tensor.0 != "output.weight"));
    assert_eq!(message, "tensor `output.weight` is missing");
    let message = refusal(|keys, _| keys.push(("dflash.final_logit_softcapping".into(), Value::F32(30.0))));
    assert!(message.contains("final_logit_softcapping` is 30"), "{message}");

    let (rig, _) = rig("tiny-a-f32.gguf");
    let error = DsparkFile::open(&fixture("tiny-a-f32.gguf"), &rig.shape).unwrap_err();
    assert!(error.to_string().contains("tiny-a-f32.gguf can't draft"), "{error}");
    let reason = error.source().unwrap().to_string();
    assert_eq!(reason, "architecture `qwen35moe` is not supported; supported: dflash");
}
