//! With every expert resident, a token is made without one allocation: by the engine, the sampler, and on the way to
//! text.
//!
//! The only test of its file, since the count is the process's.

#![expect(unsafe_code, reason = "an allocator that counts must be an allocator")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use forerun_decode::config::DraftChoice;
use forerun_decode::sampler::{Draw, History, Sampler, SamplerConfig};
use forerun_decode::text::TextBuffer;
use forerun_decode::{BackendChoice, Engine, Event, Generation, GenerationConfig, IoChoice};
use forerun_decode::{Logits, Session, SlotWish};
use forerun_model::TokenId;
use support::{config, fixture};

/// Tokens after which every expert that the others need is resident, and every buffer has its size.
const N_WARM: usize = 96;
/// Tokens that are counted.
const N_COUNTED: usize = 64;

/// What an expert of three ranges that is read may cost: lists of its ranges, windows and pieces.
const N_PER_READ: usize = 32;

static N_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is the system allocator's own; counting touches an atomic only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        N_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        N_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        N_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of the whole process while `work` ran.
fn counted(work: impl FnOnce()) -> usize {
    let before = N_ALLOCATIONS.load(Ordering::Relaxed);
    work();
    N_ALLOCATIONS.load(Ordering::Relaxed) - before
}

fn open(io: IoChoice, slots: SlotWish, n_threads: usize) -> Engine {
    let mut config = config(&fixture("pico-q4_k_m.gguf"), BackendChoice::Cpu);
    (config.io, config.slots, config.n_threads) = (io, slots, Some(n_threads));
    config.context = Some(512);
    Engine::open(&config).unwrap()
}

fn sampled() -> SamplerConfig {
    SamplerConfig { min_p: 0.01, repetition_penalty: 1.1, seed: 7, ..SamplerConfig::default() }
}

/// Tokens from the logits of the one before, to text: what a generation does, by hand.
struct Loop<'a> {
    engine: &'a mut Engine,
    session: Session,
    sampler: Sampler,
    history: History,
    stream: TextBuffer,
    text: String,
    token: TokenId,
}

impl<'a> Loop<'a> {
    fn new(engine: &'a mut Engine, sampler: SamplerConfig) -> Self {
        let banned = engine.tokenizer().vocabulary().banned();
        let sampler = Sampler::new(sampler, engine.shape().n_vocab, banned).unwrap();
        let history = History::with_capacity(&[TokenId(5)], N_WARM + N_COUNTED);
        let stream = TextBuffer::new(engine.tokenizer().vocabulary());
        let text = String::with_capacity(1 << 16);
        Self { engine, session: Session::new(), sampler, history, stream, text, token: TokenId(5) }
    }

    fn run(&mut self, n_tokens: usize) {
        for _ in 0..n_tokens {
            let position = self.session.tokens().len() as u64;
            let logits = self.session.extend(self.engine, &[self.token], Logits::Last).unwrap().unwrap();
            let draw = Draw { choice: 0, position };
            self.token = self.sampler.sample(logits, &self.history, draw).unwrap();
            self.history.push(self.token);
            self.stream.push(self.engine.tokenizer().vocabulary(), self.token, &mut self.text);
        }
    }
}

#[test]
fn a_token_is_made_without_an_allocation() {
    assert_eq!(counted(|| drop(std::hint::black_box(Box::new(1)))), 1, "the counter counts");
    for n_threads in [1, 2] {
        resident_tokens(n_threads);
        streamed_tokens(n_threads);
        for draft in [DraftChoice::None, DraftChoice::Ngram] {
            generated_text(n_threads, draft);
        }
    }
}

fn resident_tokens(n_threads: usize) {
    for io in [IoChoice::Memory, IoChoice::Pread, IoChoice::Mmap] {
        for sampler in [SamplerConfig::greedy(), sampled()] {
            let mut engine = open(io, SlotWish::Fill, n_threads);
            assert_eq!(engine.plan().mapped > 0, io == IoChoice::Mmap);
            // Twice the same tokens, so that the second time every expert is there.
            let mut first = Loop::new(&mut engine, sampler.clone());
            first.run(N_WARM + N_COUNTED);
            let text = first.text;
            let mut second = Loop::new(&mut engine, sampler.clone());
            second.run(N_WARM);
            let n = counted(|| second.run(N_COUNTED));
            assert!(second.text == text, "{io:?}: another text");
            assert_eq!(
                n, 0,
                "{io:?}, {n_threads} threads, temperature {}: allocations in {N_COUNTED} tokens",
                sampler.temperature
            );
        }
    }
}

fn streamed_tokens(n_threads: usize) {
    for io in [IoChoice::Memory, IoChoice::Pread, IoChoice::Uring, IoChoice::Mmap] {
        let mut engine = open(io, SlotWish::PerLayer(8), n_threads);
        let mut tokens = Loop::new(&mut engine, SamplerConfig::greedy());
        tokens.run(N_WARM);
        let before = tokens.engine.scheduler_stats().fetches;
        let n = counted(|| tokens.run(N_COUNTED));
        let n_reads = usize::try_from(tokens.engine.scheduler_stats().fetches - before).unwrap();
        assert!(n_reads > 0, "{io:?}: nothing was read");
        assert!(n <= N_PER_READ * n_reads, "{io:?}: {n} allocations for {n_reads} experts");
    }
}

/// A generation hands out each piece of text as a string of its own, and that is all.
fn generated_text(n_threads: usize, draft: DraftChoice) {
    let mut config = config(&fixture("pico-q4_k_m.gguf"), BackendChoice::Cpu);
    (config.io, config.context, config.n_threads) = (IoChoice::Mmap, Some(512), Some(n_threads));
    (config.draft, config.draft_length) = (draft, Some(7));
    let mut engine = Engine::open(&config).unwrap();
    let mut session = Session::new();
    // A text that repeats itself from the start, so that whole drafts are verified before allocations are counted.
    let is_drafted = config.draft != DraftChoice::None;
    let prompt = if is_drafted { [5, 6, 7, 8].map(TokenId).repeat(8) } else { vec![TokenId(5)] };
    let config = GenerationConfig {
        sampler: if is_drafted { SamplerConfig::greedy() } else { sampled() },
        stops: vec!["\u{7}".into()],
        max_tokens: None,
        ..GenerationConfig::default()
    };
    let mut generation = Generation::new(&mut engine, &mut session, prompt, &config).unwrap();
    let mut n_pieces = 0;
    let mut next = || match generation.next().unwrap() {
        Some(Event::Text(piece)) => usize::from(!piece.text.is_empty()),
        Some(Event::Prompt { .. }) | None => 0,
    };
    let _ = (0..N_WARM).map(|_| next()).sum::<usize>();
    let n = counted(|| n_pieces = (0..N_COUNTED).map(|_| next()).sum());
    assert!(n <= n_pieces, "{n_threads} threads: {n} allocations for {n_pieces} pieces of text");
    assert_eq!(generation.finish().telemetry.draft_tokens > 0, is_drafted);
}
