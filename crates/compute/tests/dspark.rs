//! Small drafters with made-up weights against `fixtures/dspark.json`, and what must not matter to a draft.

#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::cast_precision_loss, reason = "24 bits fit an f32")]

use std::collections::BTreeMap;

use forerun_compute::kernels::best;
use forerun_compute::products::{Exact, Products, Quantised, Rounding};
use forerun_compute::workers::Workers;
use forerun_compute::{ComputeError, Dspark, DsparkConfig, DsparkWeights, KvType, Tensor, Weights};
use forerun_model::drafter::{CONFIDENCE_BIAS, ConfidenceShape, TARGET_IDS, specs};
use forerun_model::names::{self, OUTPUT, Spec, TOKEN_EMBD};
use forerun_model::{
    AttentionParts, AttentionShape, DrafterShape, ExpertLayout, LayerId, LayerKind, MatrixLayout, ModelShape,
    MoeShape, QuantType, RopeShape, TokenId,
};
use proptest::prelude::*;
use serde_json::Value;

const ROWS: usize = 11;
const ANCHOR: TokenId = TokenId(7);
const VOCAB: usize = 40;
const DRAFTED: usize = 24;
const CONTEXT: usize = 300;

/// The values that the fixture's script makes of a tensor's name.
fn stream(name: &str, n: usize) -> impl Iterator<Item = f32> {
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let next = |state: &u64| {
        Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
    };
    std::iter::successors(next(&seed), next).take(n).map(|state| (state >> 40) as f32 / 16_777_216.0 - 0.5)
}

fn tensor(spec: &Spec) -> Tensor {
    let name = &*spec.names[0];
    let dims: Vec<usize> = spec.dims.iter().map(|&n| usize::try_from(n).unwrap()).collect();
    let (n_cols, n_rows) = (dims[0], dims.get(1).copied().unwrap_or(1));
    let value = |v: f32| match name {
        TOKEN_EMBD | OUTPUT => 2.0 * v,
        CONFIDENCE_BIAS => v,
        _ if dims.len() == 1 && !name.starts_with("conf_proj") => 1.0 + 0.5 * v,
        _ => 0.5 * v,
    };
    let bytes: Vec<u8> = stream(name, n_cols * n_rows).flat_map(|v| value(v).to_le_bytes()).collect();
    Tensor::new(name, QuantType::F32, n_rows, n_cols, bytes.into()).unwrap()
}

fn find(specs: Vec<Spec>) -> impl FnMut(&str) -> Option<Result<Tensor, ComputeError>> {
    move |name| Some(Ok(tensor(specs.iter().find(|spec| spec.names[0] == name)?)))
}

/// A model of which only the tables matter.
fn target() -> Weights {
    let shape = ModelShape {
        hidden: 32,
        n_vocab: VOCAB,
        context_max: CONTEXT,
        norm_eps: 1e-6,
        layers: vec![LayerKind::Attention],
        n_mtp: 0,
        attention: attention(2),
        rope: RopeShape { n_rot: 8, freq_base: 1e4, sections: [4, 0, 0, 0] },
        delta_net: None,
        moe: MoeShape { n_experts: 2, top_k: 1, expert_ff: 32, shared_ff: None, renormalises: true },
    };
    let part = MatrixLayout::new(QuantType::F32, 32, 32).unwrap();
    let experts = [ExpertLayout { gate: part, up: part, down: part }];
    // One tensor of queries, keys and values is enough.
    let specs = names::resident(&shape)
        .into_iter()
        .filter(|s| !s.names[0].contains("attn_qkv") && !s.names[0].contains("bias"));
    Weights::bind(&shape, &experts, find(specs.collect())).unwrap()
}

fn attention(n_kv_heads: usize) -> AttentionShape {
    let parts = AttentionParts { gate: false, head_norms: true };
    AttentionShape { n_heads: 4, n_kv_heads, head_dim: 8, parts }
}

/// Whether a tensor is the one of that name, or one of some block's.
fn is_of(tensor: &str, name: &str) -> bool {
    tensor == name || tensor.strip_prefix("blk.").and_then(|rest| rest.split('.').nth(1)) == Some(name)
}

/// A case of the fixture: what the file would say, and which tensors it would lack.
struct Case {
    shape: DrafterShape,
    lacks: &'static str,
    ids: Option<Vec<i64>>,
}

fn case(name: &str) -> Case {
    let confidence = ConfidenceShape { reads_markov: true, temperatures: Vec::new() };
    let shape = DrafterShape {
        hidden: 32,
        n_vocab: VOCAB,
        n_drafted: VOCAB,
        context_max: CONTEXT,
        norm_eps: 1e-6,
        windows: vec![None; 2],
        attention: attention(2),
        rope: RopeShape { n_rot: 8, freq_base: 1e4, sections: [4, 0, 0, 0] },
        ff: 48,
        block: 5,
        taps: vec![LayerId(0), LayerId(1)],
        mask: TokenId(39),
        drafts_from_anchor: true,
        causal: false,
        markov_rank: Some(8),
        confidence: Some(confidence),
    };
    let state_only = Some(ConfidenceShape { reads_markov: false, temperatures: Vec::new() });
    let (mut lacks, mut ids) = (OUTPUT, None);
    let shape = match name {
        "plain" => shape,
        "causal" => DrafterShape { causal: true, ..shape },
        "window" => DrafterShape { windows: vec![Some(4); 2], ..shape },
        "causal_window" => {
            DrafterShape { causal: true, windows: vec![Some(3); 2], confidence: state_only, ..shape }
        }
        "no_markov" => DrafterShape { markov_rank: None, confidence: state_only, ..shape },
        "no_confidence" => DrafterShape { confidence: None, ..shape },
        "not_from_anchor" => DrafterShape { drafts_from_anchor: false, ..shape },
        "one_to_one_heads" => DrafterShape { attention: attention(4), ..shape },
        "mapped" => {
            lacks = TOKEN_EMBD;
            ids = Some((0..DRAFTED as i64).map(|i| (i * 7 + 3) % VOCAB as i64).collect());
            DrafterShape { n_drafted: DRAFTED, ..shape }
        }
        "values_are_keys" => {
            lacks = "attn_v";
            shape
        }
        "calibrated" => {
            let temperatures = vec![0.5, 1.0, 1.5, 2.0, 4.0];
            let confidence = Some(ConfidenceShape { reads_markov: true, temperatures });
            DrafterShape { confidence, ..shape }
        }
        other => panic!("no case {other}"),
    };
    Case { shape, lacks, ids }
}

fn drafter<P: Products>(name: &str, kv: KvType, products: P) -> Dspark<P> {
    let Case { shape, lacks, ids } = case(name);
    let own = specs(&shape).into_iter();
    let own = own.filter(|spec| !is_of(&spec.names[0], lacks) && spec.names[0] != TARGET_IDS);
    let weights = DsparkWeights::bind(&shape, &target(), ids.as_deref(), find(own.collect())).unwrap();
    Dspark::new(weights, DsparkConfig { context: CONTEXT, kv }, products)
}

fn features(n: usize) -> Vec<f32> {
    stream("features", n * 64).collect()
}

/// What one block proposes: tokens, confidences, logits.
type Drafts = Vec<(u32, f32, Vec<f32>)>;

fn propose<P: Products>(drafter: &mut Dspark<P>, n: usize) -> Drafts {
    drafter.block(ANCHOR).unwrap();
    let mut before = ANCHOR;
    let mut draft = |i| {
        let confidence = drafter.confidence(i, before).unwrap();
        let logits = drafter.logits(i, before).unwrap();
        let best = |a: usize, b: usize| if logits[b] > logits[a] { b } else { a };
        before = TokenId(u32::try_from((0..logits.len()).reduce(best).unwrap()).unwrap());
        (before.0, confidence, logits.to_vec())
    };
    (0..n).map(&mut draft).collect()
}

fn bits(drafts: &Drafts) -> Vec<(u32, u32, Vec<u32>)> {
    let of = |(token, c, row): &(u32, f32, Vec<f32>)| {
        (*token, c.to_bits(), row.iter().map(|v| v.to_bits()).collect())
    };
    drafts.iter().map(of).collect()
}

fn expected() -> BTreeMap<String, Vec<Value>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/dspark.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn check<P: Products>(name: &str, want: &[Value], mut drafter: Dspark<P>, bound: f64) {
    drafter.observe(0, &features(ROWS)).unwrap();
    // Twice, since the second block takes its heads at once.
    for _ in 0..2 {
        let n_drafts = drafter.shape().n_drafts();
        let found = propose(&mut drafter, n_drafts);
        assert_eq!(found.len(), want.len(), "{name}");
        for (i, ((token, confidence, logits), want)) in found.iter().zip(want).enumerate() {
            assert_eq!(u64::from(*token), want["token"].as_u64().unwrap(), "{name} {i}");
            match want["confidence"].as_f64() {
                None => assert!(confidence.is_nan()),
                Some(want) => {
                    assert!((f64::from(*confidence) - want).abs() < bound, "{name} {i}: {confidence} {want}");
                }
            }
            // In the file they are in the order of what can be drafted.
            let ids = case(name).ids.unwrap_or_else(|| (0..VOCAB as i64).collect());
            for (id, want) in ids.iter().zip(want["logits"].as_array().unwrap()) {
                let (found, want) =
                    (f64::from(logits[usize::try_from(*id).unwrap()]), want.as_f64().unwrap());
                assert!((found - want).abs() < 10.0 * bound, "{name} {i}: {found} {want}");
            }
            let n_none = logits.iter().filter(|v| **v == f32::NEG_INFINITY).count();
            assert_eq!(n_none, VOCAB - ids.len());
        }
    }
}

#[test]
fn every_kind_of_drafter_proposes_what_the_fixture_says() {
    let expected = expected();
    assert_eq!(expected.len(), 11);
    for (name, want) in &expected {
        check(name, want, drafter(name, KvType::F32, Exact::new(Rounding::None)), 2e-6);
        let products = Quantised::new(best(), Workers::new(2).unwrap());
        check(name, want, drafter(name, KvType::F16, products), 1e-3);
    }
}

#[test]
fn drafters_take_no_more_than_they_say() {
    let shape = case("plain").shape;
    let of = |windows: Vec<Option<usize>>, context| {
        DsparkConfig { context, kv: KvType::F16 }.bytes(&DrafterShape { windows, ..shape.clone() }, false).kv
    };
    // Two layers of 16 keys and values of 2 bytes, and the block's rows.
    assert_eq!(of(vec![None; 2], 1000), 1005 * 2 * 2 * 16 * 2);
    // A window bounds it, but not where only one layer has it.
    assert!(of(vec![Some(4); 2], 1000) < 200 * 128);
    assert_eq!(of(vec![Some(4), None], 1000), of(vec![None; 2], 1000));
}

#[test]
fn tensors_and_tokens_that_make_no_sense_are_refused() {
    let bind = |ids: Option<&[i64]>, lacks: &str| {
        let shape = case("plain").shape;
        let own = specs(&shape).into_iter().filter(|spec| !is_of(&spec.names[0], lacks));
        DsparkWeights::bind(&shape, &target(), ids, find(own.collect())).unwrap_err().to_string()
    };
    let mut ids: Vec<i64> = (0..40).collect();
    ids[5] = 40;
    assert_eq!(bind(Some(&ids), "-"), "tensor `d2t` has 40 at 5; it must be below 40");
    ids[5] = -1;
    assert!(bind(Some(&ids), "-").contains("has -1 at 5"));
    ids[5] = 5;
    assert_eq!(bind(Some(&ids), OUTPUT), "tensor `output.weight` is missing");
    assert_eq!(bind(None, "markov_w2.weight"), "tensor `markov_w2.weight` is missing");

    let mut drafter = drafter("plain", KvType::F32, Exact::new(Rounding::None));
    assert!(matches!(drafter.block(TokenId(40)), Err(ComputeError::Token { token: 40, .. })));
    let error = drafter.observe(0, &features(CONTEXT + 1)).unwrap_err().to_string();
    assert!(error.contains("a context of 300"), "{error}");
}

/// However positions came, and whatever was drafted or cut off between, the next block is the same.
fn same_however_it_came<P: Products>(name: &str, make: impl Fn() -> P, parts: &[(usize, usize, bool)]) {
    let new = || drafter(name, KvType::F16, make());
    let features = features(CONTEXT);
    let mut drafter = new();
    let mut len = 0;
    for &(n, cut, drafts) in parts {
        let end = (len + n).min(CONTEXT - 5);
        drafter.observe(len, &features[len * 64..end * 64]).unwrap();
        if drafts {
            propose(&mut drafter, 1 + n % 4);
        }
        len = end - cut.min(end);
        drafter.truncate(len);
        assert_eq!(drafter.len(), len);
    }
    let mut clean = new();
    clean.observe(0, &features[..len * 64]).unwrap();
    let (found, want) = (propose(&mut drafter, 4), propose(&mut clean, 4));
    assert_eq!(bits(&found), bits(&want), "{name} {parts:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn drafts_depend_on_what_was_observed_alone(parts in prop::collection::vec((0..90_usize, 0..9_usize, any::<bool>()), 1..8)) {
        for name in ["plain", "causal_window", "window", "mapped"] {
            same_however_it_came(name, || Exact::new(Rounding::None), &parts);
            same_however_it_came(name, || Quantised::new(best(), Workers::new(2).unwrap()), &parts);
        }
    }
}
