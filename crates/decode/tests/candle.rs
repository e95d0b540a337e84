//! Candle's devices keep every rule of the trait, are near the reference and other programs' values, and run under the
//! whole engine. `FORERUN_CANDLE_DEVICE` names another device than candle's CPU.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/conformance/mod.rs"]
mod conformance;
mod support;

use conformance::agreeing::with_the_reference;
use conformance::{Subject, conformance};
use forerun_candle::CandleStack;
use forerun_compute::{Backend, ComputeError, DeviceName, KvType, Rounding, StackConfig, Taps, Weights};
use forerun_decode::config::DraftChoice;
use forerun_decode::{
    BackendChoice, Collect, DecodeError, Engine, EngineConfig, GenerationConfig, IoChoice, Report, SlotWish,
};
use forerun_model::TokenId;
use support::answers::{answer, prompts, sampling};
use support::goldens::check_cases_of;
use support::tolerance::Tolerance;
use support::{config, difference, fixture, ids, json, logits_of_all};

const TINY_A: &str = "tiny-a-f32.gguf";
const TINY_B: &str = "tiny-b-q3_k_m.gguf";
const PICO: &str = "pico-q4_k_m.gguf";

/// How far results of plain weights may be from the reference's, and on a GPU from one another.
const PLAIN: f32 = 1e-3;
/// How far those of quantised weights may be from one another on a GPU.
const QUANTISED: f32 = 0.5;

/// The device that the tests are of.
fn device() -> DeviceName {
    std::env::var("FORERUN_CANDLE_DEVICE").map_or(DeviceName::Cpu, |name| name.parse().unwrap())
}

fn backend() -> BackendChoice {
    BackendChoice::Candle(device())
}

/// On the CPU a row's bits are its own. A GPU's sums come in an order that depends on the size of a step.
fn tolerance(bound: f32) -> Tolerance {
    if device() == DeviceName::Cpu { Tolerance::Bits } else { Tolerance::Within(bound) }
}

fn stack(weights: Weights, config: StackConfig, taps: Taps) -> Box<dyn Backend> {
    Box::new(CandleStack::new(&weights, config, taps, device()).unwrap())
}

fn subject((model, kv, bound): (&'static str, KvType, f32)) -> Subject {
    Subject { make: stack, model, kv, tolerance: tolerance(bound) }
}

/// A GPU rounds activations to 8 bits after sums whose last bits depend on the size of a step, and one such step may choose
/// another expert: no bound tells that from a fault, so the rules are held there with plain weights alone.
fn subjects() -> Vec<Subject> {
    let quantised = (TINY_B, KvType::F16, QUANTISED);
    let plain = [
        ("architectures/qwen3next-f32.gguf", KvType::F32, PLAIN),
        ("architectures/qwen3moe-f32.gguf", KvType::F16, PLAIN),
    ];
    let quantised = (device() == DeviceName::Cpu).then_some(quantised);
    plain.into_iter().chain(quantised).map(subject).collect()
}

conformance!(rules, crate::subjects);

#[test]
fn plain_weights_give_what_the_reference_gives() {
    for model in [TINY_A, "architectures/qwen2moe-f32.gguf", "architectures/qwen3next-f32.gguf"] {
        with_the_reference(&subject((model, KvType::F32, PLAIN)), Rounding::None, Some(PLAIN));
    }
}

#[test]
fn logits_of_plain_weights_are_those_of_transformers() {
    for (model, expected) in [
        (TINY_A, "tiny-random/tiny-a-f32.expected.json"),
        ("architectures/qwen3moe-f32.gguf", "architectures/qwen3moe.expected.json"),
        ("architectures/qwen2moe-f32.gguf", "architectures/qwen2moe.expected.json"),
        ("architectures/qwen3next-f32.gguf", "architectures/qwen3next.expected.json"),
        ("architectures/qwen3next-ssm_in-f32.gguf", "architectures/qwen3next.expected.json"),
    ] {
        // Keys and values are half floats.
        let mut expected = json(expected);
        // The longest of all is for faster backends.
        expected["cases"].as_array_mut().unwrap().truncate(3);
        check_cases_of(backend(), model, &expected, 3e-3, None);
    }
}

/// Differences of a backend's logits from `want`: the median and the largest of the rows'.
fn off_by(backend: BackendChoice, texts: &[Vec<TokenId>], want: &[Vec<f32>]) -> (f32, f32) {
    let found = rows_of(backend, texts);
    let mut off: Vec<_> = found.iter().zip(want).map(|(found, want)| difference(found, want)).collect();
    off.sort_by(f32::total_cmp);
    (off[off.len() / 2], off[off.len() - 1])
}

fn rows_of(backend: BackendChoice, texts: &[Vec<TokenId>]) -> Vec<Vec<f32>> {
    let mut engine = Engine::open(&config(&fixture(PICO), backend)).unwrap();
    texts.iter().flat_map(|text| logits_of_all(&mut engine, text)).collect()
}

/// Activations are rounded to 8 bits by candle's products as by the `cpu` backend's, and sums come in another order, so
/// single rows are as far from exact products as those of `cpu` are, and no further in the median.
#[test]
fn quantised_weights_are_as_near_to_exact_products_as_in_cpu() {
    let golden = json("pico-golden.json");
    let cases = &golden["cases"].as_array().unwrap()[..2];
    let text = |case: &serde_json::Value| {
        [ids(&case["prompt_ids"]), ids(&case["greedy_ids"])[..4].to_vec()].concat()
    };
    let texts: Vec<_> = cases.iter().map(text).collect();
    let exact = rows_of(BackendChoice::EXACT, &texts);
    let (cpu, candle) = (off_by(BackendChoice::Cpu, &texts, &exact), off_by(backend(), &texts, &exact));
    let rounded = rows_of(BackendChoice::Cpu, &texts);
    let like = off_by(backend(), &texts, &rounded);
    // Where a sum's last bit flips a code, a row is off by more than others are.
    let (median, largest) = if device() == DeviceName::Cpu { (0.05, 2.0) } else { (0.5, 6.0) };
    assert!(candle.0 < 1.5 * cpu.0 && candle.1 < 2.0 * cpu.1, "{candle:?}, but cpu {cpu:?}");
    assert!(like.0 < median && like.1 < largest, "{like:?} from cpu");
    // A bound that exact weights of another model wouldn't keep.
    let size =
        exact.iter().map(|row| row.iter().fold(0.0, |most: f32, v| most.max(v.abs()))).fold(0.0, f32::max);
    assert!(size > 12.0, "logits of up to {size} are told apart");
}

fn open(slots: SlotWish, io: IoChoice) -> Engine {
    let config = EngineConfig { slots, io, ..config(&fixture(PICO), backend()) };
    Engine::open(&config).unwrap()
}

/// Bits are only compared where they are a row's own.
fn same(found: &(Report, Vec<TokenId>, Vec<u32>), want: &(Report, Vec<TokenId>, Vec<u32>), what: &str) {
    assert_eq!(found.0.tokens, want.0.tokens, "{what}");
    assert_eq!(found.1, want.1, "{what}");
    let floats = |bits: &[u32]| bits.iter().map(|&bits| f32::from_bits(bits)).collect::<Vec<_>>();
    tolerance(QUANTISED).same(&floats(&found.2), &floats(&want.2), format!("{what}: logits after it"));
}

/// Few slots, guesses and what is lent change nothing.
#[test]
fn an_answer_is_the_same_with_few_slots_and_all() {
    let mut all = open(SlotWish::Fill, IoChoice::Memory);
    let prompt = &prompts(&all, 3)[1];
    let how = GenerationConfig { max_tokens: Some(16), ..sampling(0.7, 5) };
    let want = answer(&mut all, prompt, &how);
    for (slots, io) in [
        (SlotWish::PerLayer(0), IoChoice::Pread),
        (SlotWish::PerLayer(5), IoChoice::Pread),
        (SlotWish::Fill, IoChoice::Mmap),
    ] {
        let found = answer(&mut open(slots, io), prompt, &how);
        same(&found, &want, &format!("{slots:?} {io:?}"));
    }
}

/// A draft is verified like any other step, whoever drafts. On a GPU that is said of plain weights, as the [rules](subjects) are.
#[test]
fn drafts_change_no_answer() {
    let pairs = [(TINY_A, DraftChoice::Mtp), (PICO, DraftChoice::Ngram)];
    let n = if device() == DeviceName::Cpu { 2 } else { 1 };
    for (model, draft) in pairs.into_iter().take(n) {
        let open = |draft: &DraftChoice| {
            let draft_length = (*draft != DraftChoice::None).then_some(4);
            let config =
                EngineConfig { draft: draft.clone(), draft_length, ..config(&fixture(model), backend()) };
            Engine::open(&config).unwrap()
        };
        let how = GenerationConfig { max_tokens: Some(24), ..sampling(0.0, 1) };
        let prompt: Vec<_> = (0..20).map(|i| TokenId(7 + i % 5)).collect();
        let want = answer(&mut open(&DraftChoice::None), &prompt, &how);
        let found = answer(&mut open(&draft), &prompt, &how);
        assert!(found.0.telemetry.draft_tokens > 0, "{model}: nothing was drafted");
        same(&found, &want, model);
    }
}

#[test]
fn the_plan_says_what_candle_takes() {
    let cpu = Engine::open(&config(&fixture(PICO), BackendChoice::Cpu)).unwrap();
    let candle = Engine::open(&config(&fixture(PICO), backend())).unwrap();
    let (cpu_plan, plan) = (cpu.plan(), candle.plan());
    assert_eq!((cpu_plan.copies, plan.kv), (0, cpu_plan.kv));
    let matrices = candle.resident_bytes();
    assert!(plan.copies > matrices / 2, "{} copied of {matrices}", plan.copies);
    assert!(plan.to_string().contains("copies of weights") && !cpu_plan.to_string().contains("copies"));
    let of = |what: &str| candle.decisions().into_iter().find(|decision| decision.what == what).unwrap();
    assert_eq!(of("device").choice, device().to_string());
    assert!(of("threads").reason.contains("--threads binds"), "threads are candle's own");
}

/// A CUDA device reads page-locked slots by itself, while others are filled; elsewhere there are none.
#[test]
fn page_locked_slots_change_no_answer() {
    let config = |pin_slots, slots| EngineConfig {
        pin_slots,
        slots,
        io: IoChoice::Pread,
        ..config(&fixture(PICO), backend())
    };
    let pinned = Engine::open(&config(true, SlotWish::PerLayer(5)));
    let DeviceName::Cuda(_) = device() else {
        let error = pinned.err().unwrap().to_string();
        assert!(error.contains("page-locked") && error.contains("cuda:N"), "{error}");
        return;
    };
    let mut pinned = pinned.unwrap();
    let mut plain = Engine::open(&config(false, SlotWish::Fill)).unwrap();
    let how = GenerationConfig { max_tokens: Some(48), ..sampling(0.0, 1) };
    for prompt in prompts(&plain, 3) {
        let want = answer(&mut plain, &prompt, &how);
        same(&answer(&mut pinned, &prompt, &how), &want, "page-locked");
    }
    assert!(pinned.scheduler_stats().again > 0, "slots were filled anew");
    let error = pinned.lower_budget(1 << 30).unwrap_err();
    assert!(matches!(error, DecodeError::SlotsPinned), "{error}");
}

#[test]
fn sums_of_inputs_are_refused_by_name() {
    let config = EngineConfig { collects: Some(Collect::Layers), ..config(&fixture(TINY_B), backend()) };
    let error = Engine::open(&config).err().unwrap();
    assert!(matches!(error, DecodeError::BackendLacks { .. }), "{error}");
    assert!(error.to_string().contains("candle") && error.to_string().contains("--backend cpu"), "{error}");
}

#[test]
fn a_device_that_is_not_there_is_named() {
    for missing in [DeviceName::Cuda(63), DeviceName::Metal(63)] {
        let config = config(&fixture(TINY_B), BackendChoice::Candle(missing));
        let error = Engine::open(&config).err().unwrap();
        assert!(matches!(error, DecodeError::Compute(ComputeError::DeviceMissing { .. })), "{error}");
        assert!(error.to_string().contains(&missing.to_string()), "{error}");
    }
}
