//! What compiling and following grammars takes at its costliest is within what the memory plan keeps for it.
//!
//! The only test of its file, since the count is the process's.

#![expect(unsafe_code, reason = "an allocator that counts must be an allocator")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod grammar_common;
mod text_common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use forerun_decode::sampler::{Draw, History, SamplerError};
use forerun_decode::{Grammar, GrammarError, GrammarSpec};
use grammar_common::Writer;
use serde_json::{Map, Value, json};

/// Tokens of an answer.
const N_TOKENS: usize = 2500;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

fn add(bytes: usize) {
    let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: every call is the system allocator's own; counting touches atomics only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // While it moves, both are there.
        add(size);
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` brings, and the most bytes that it took.
fn measured<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let done = work();
    (done, PEAK.load(Ordering::Relaxed).saturating_sub(before) as u64)
}

/// Draws what a model would that likes everything and never ends; `Err` with the reason when it can't go on.
fn follow(writer: &Writer, grammar: &Grammar, seed: u64) -> Result<(), SamplerError> {
    let mut sampler = writer.sampler(grammar, seed);
    let mut history = History::default();
    let mut logits: Vec<f32> = writer.logits().iter().map(|logit| logit / 8.0).collect();
    let ends = writer.tokenizer.vocabulary().end_ids();
    ends.iter().for_each(|end| logits[end.idx()] = -20.0);
    while history.answer().len() < N_TOKENS {
        let draw = Draw { choice: 0, position: history.answer().len() as u64 };
        let token = sampler.sample(&logits, &history, draw)?;
        if ends.contains(&token) {
            break;
        }
        history.push(token);
    }
    Ok(())
}

fn wide(n: usize) -> Value {
    let property = |i: usize| (format!("key_{i:04}"), json!({ "type": ["string", "integer", "null"] }));
    let properties: Map<String, Value> = (0..n).map(property).collect();
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

fn costly() -> Vec<GrammarSpec> {
    let many: Vec<Value> = (0..9000).map(|i| json!(format!("v{i}"))).collect();
    let rings: Map<String, Value> = (0..60)
        .map(|i| {
            let one = |k: usize| json!({ "$ref": format!("#/$defs/d{}", (i * k + 1) % 60) });
            let number = json!({ "type": "number", "minimum": i, "maximum": 1000 * i + 5 });
            let items = json!({ "type": "array", "items": one(3) });
            let properties = json!({ "a": one(7), "b": items, format!("n{i}"): number });
            (format!("d{i}"), json!({ "type": "object", "properties": properties }))
        })
        .collect();
    let schemas = [
        json!({ "type": "array", "items": wide(400), "minItems": 40 }),
        json!({ "enum": many }),
        json!({ "$ref": "#/$defs/d0", "$defs": rings }),
        json!({ "type": "string", "minLength": 60_000 }),
        json!({ "type": "string", "pattern": "^(a|b)*a(a|b){500}$" }),
        json!({ "type": "integer", "multipleOf": 4093 }),
    ];
    let letters = |i: usize| char::from_u32(0x4E00 + u32::try_from(i).unwrap()).unwrap();
    let expressions = [
        r"(\w{1,200}\s){1,200}".to_owned(),
        r".*(ab|bc|cd|de).{20,60}(x|y)\w{30}".to_owned(),
        r"(?i)(\w|\d|[à-ü]){5,900}".to_owned(),
        r"\w".repeat(8000),
        (0..2000).map(|i| format!(r"\w{}", letters(i))).collect(),
        (0..1500).map(|i| format!(r"[^\d{}]", letters(i))).collect(),
        (0..1000).map(|i| format!(r"\w*{}\w", letters(i))).collect(),
        (0..600).map(|i| format!(r"\w{{{}}}z{i}|", i % 9 + 1)).collect::<String>() + "x",
    ];
    let terms: Vec<_> = (0..900).map(|i| format!("/[a-z]{{{}}}{i}/", i % 20 + 1)).collect();
    let texts = [
        format!("start: (t)*\nt: {}\n", terms.join("|")),
        "start: \"a\" | start start \"b\"?".to_owned(),
        "start: \"a\" start | \"b\"".to_owned(),
    ];
    let specs = schemas.into_iter().map(GrammarSpec::JsonSchema);
    let specs = specs.chain(expressions.into_iter().map(GrammarSpec::Regex));
    specs.chain(texts.into_iter().map(GrammarSpec::Lark)).collect()
}

#[test]
fn costly_grammars_stay_within_what_is_kept_for_them() {
    let writer = Writer::pico();
    let (mut n_runaways, mut most) = (0, (0, 0));
    for spec in costly() {
        let (grammar, compiling) = measured(|| writer.factory.compile(&spec));
        let shown: String = format!("{spec:?}").chars().take(80).collect();
        assert!(compiling <= Grammar::COMPILED_BYTES_MAX, "{compiling} bytes to compile {shown}");
        most.0 = most.0.max(compiling);
        let Ok(grammar) = grammar else { continue };
        for seed in 0..2 {
            let (followed, following) = measured(|| follow(&writer, &grammar, seed));
            assert!(following <= Grammar::LIVE_BYTES_MAX, "{following} bytes to follow {shown}");
            most.1 = most.1.max(following);
            match followed {
                Ok(()) => {}
                Err(SamplerError::Grammar(GrammarError::Runaway { .. })) => n_runaways += 1,
                Err(error) => panic!("{shown}: {error}"),
            }
        }
    }
    assert!(n_runaways > 0, "something is too costly: {most:?}");
    // What is kept free is not a multiple of what is needed.
    assert!(2 * most.1 > Grammar::LIVE_BYTES_MAX, "{most:?}");
    println!("most bytes to compile and to follow: {most:?}");
}
