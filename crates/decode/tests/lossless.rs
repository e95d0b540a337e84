//! No schedule, cache size, I/O backend, thread count or chunk changes one bit of the logits.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../cli/tests/support/shards.rs"]
#[allow(dead_code, reason = "written for the program's tests, which use more of it")]
mod shards;
mod support;

use std::sync::{Arc, LazyLock};

use forerun_decode::{
    BackendChoice, Engine, EngineConfig, IoChoice, Logits, Parts, PolicyName, Schedule, Session, SlotWish,
};
use forerun_model::{ModelShape, Nanos, TokenId};
use forerun_scheduler::{
    Blend, GUESSES_MAX, Gate, LookaheadConfig, NoPredictor, Predictor, Recent, RouterAhead,
};
use forerun_sim::{Faults, Guessing, Machine, RandomPredictor};
use forerun_storage::repack::{Order, Settings, pack};
use forerun_storage::{Catalog, Gguf};
use proptest::prelude::*;
use support::{config, fixture, ids, json};

const EVERY_IO: [IoChoice; 6] =
    [IoChoice::Auto, IoChoice::Uring, IoChoice::Pread, IoChoice::Cached, IoChoice::Memory, IoChoice::Mmap];

/// A prompt, and the tokens that are decoded one by one after it.
type Text = (Vec<TokenId>, Vec<TokenId>);

/// The golden prompts and their continuations of 64 tokens.
static TEXTS: LazyLock<Vec<Text>> = LazyLock::new(|| {
    let golden = json("pico-golden.json");
    let cases = golden["cases"].as_array().unwrap().iter();
    cases.map(|case| (ids(&case["prompt_ids"]), ids(&case["greedy_ids"]))).collect()
});

/// Everything resident, one thread, the prompt in one step.
static CALM: LazyLock<Vec<Vec<u32>>> = LazyLock::new(|| {
    let mut engine = Engine::open(&pico(IoChoice::Memory, SlotWish::Fill, 1)).unwrap();
    TEXTS.iter().map(|text| bits(&mut engine, text, usize::MAX)).collect()
});

fn pico(io: IoChoice, slots: SlotWish, n_threads: usize) -> EngineConfig {
    let mut config = config(&fixture("pico-q4_k_m.gguf"), BackendChoice::Cpu);
    (config.io, config.slots, config.n_threads) = (io, slots, Some(n_threads));
    config
}

/// The bits of the logits after the prompt, fed in steps of `chunk`, and after each decoded token.
fn bits(engine: &mut Engine, (prompt, decoded): &Text, chunk: usize) -> Vec<u32> {
    let mut session = Session::new();
    let mut bits = Vec::new();
    let mut push = |logits: &[f32]| bits.extend(logits.iter().map(|v| v.to_bits()));
    let n_chunks = prompt.len().div_ceil(chunk);
    for (i, part) in prompt.chunks(chunk.min(prompt.len())).enumerate() {
        let wish = if i + 1 == n_chunks { Logits::Last } else { Logits::None };
        if let Some(logits) = session.extend(engine, part, wish).unwrap() {
            push(logits);
        }
    }
    for token in decoded {
        push(session.extend(engine, &[*token], Logits::Last).unwrap().unwrap());
    }
    bits
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn settings_change_time_and_nothing_else(
        io in prop::sample::select(EVERY_IO.to_vec()),
        slots in prop_oneof![
            Just(SlotWish::PerLayer(0)),
            Just(SlotWish::PerLayer(2)),
            Just(SlotWish::Fill),
            (1_usize..32).prop_map(SlotWish::PerLayer),
        ],
        n_threads in 1_usize..=4,
        chunk in prop_oneof![Just(1_usize), Just(7), Just(64), 2_usize..40],
        text in 0_usize..6,
    ) {
        let mut engine = Engine::open(&pico(io, slots, n_threads)).unwrap();
        let found = bits(&mut engine, &TEXTS[text], chunk);
        prop_assert!(found == CALM[text], "bits differ");
    }
}

/// Long enough that steps of every size walk other kernels, tiles and shares of the threads.
#[test]
fn threads_and_chunks_change_time_and_nothing_else() {
    let mut tokens: Vec<_> =
        TEXTS.iter().flat_map(|(prompt, decoded)| prompt.iter().chain(decoded)).copied().collect();
    assert!(tokens.len() > 512, "{} tokens", tokens.len());
    let decoded = tokens.split_off(tokens.len() - 4);
    let text = (tokens, decoded);
    let mut engines: Vec<_> =
        (1..=4).map(|n| Engine::open(&pico(IoChoice::Memory, SlotWish::Fill, n)).unwrap()).collect();
    let want = bits(&mut engines[0], &text, 512);
    for (engine, n_threads) in engines.iter_mut().zip(1..) {
        for chunk in [1, 7, 64, 100, 512] {
            let found = bits(engine, &text, chunk);
            assert!(found == want, "{n_threads} threads, steps of {chunk}");
        }
    }
}

/// The corners that a user meets, every one of them.
#[test]
fn every_io_with_few_and_all_slots() {
    for io in EVERY_IO {
        for slots in [SlotWish::PerLayer(0), SlotWish::PerLayer(2), SlotWish::Fill] {
            for n_threads in [1, 2] {
                let mut engine = Engine::open(&pico(io, slots, n_threads)).unwrap();
                let found = bits(&mut engine, &TEXTS[1], 16);
                assert!(found == CALM[1], "{io:?} {slots:?} {n_threads} threads");
            }
        }
    }
}

#[test]
fn schedules_and_policies_change_time_and_nothing_else() {
    for slots in [SlotWish::PerLayer(0), SlotWish::PerLayer(1), SlotWish::PerLayer(9)] {
        for policy in PolicyName::ALL {
            for schedule in [Schedule::OnDemand, Schedule::ReadyFirst] {
                let config = EngineConfig { policy, schedule, ..pico(IoChoice::Pread, slots, 2) };
                let mut engine = Engine::open(&config).unwrap();
                assert!(bits(&mut engine, &TEXTS[2], 6) == CALM[2], "{slots:?} {policy:?} {schedule:?}");
            }
        }
    }
}

#[test]
fn guesses_change_time_and_nothing_else() {
    for seed in 1..=6 {
        let parts = Parts {
            predictor: Some(Box::new(RandomPredictor::new(seed, 8))),
            lookahead: Some(LookaheadConfig::open()),
            ..Parts::default()
        };
        let mut engine = Engine::open_with(&pico(IoChoice::Pread, SlotWish::PerLayer(5), 2), parts).unwrap();
        let text = usize::try_from(seed).unwrap() % TEXTS.len();
        assert!(bits(&mut engine, &TEXTS[text], 16) == CALM[text], "seed {seed}");
        assert!(engine.scheduler_stats().guesses > 0, "seed {seed}: nothing was guessed");
    }
}

/// Who guesses, by a number.
fn guessing(n: usize, seed: u64) -> Box<dyn Predictor> {
    match n {
        0 => Box::new(NoPredictor),
        1 => Box::<RouterAhead>::default(),
        2 => Box::new(RouterAhead::new(2)),
        3 => Box::<Recent>::default(),
        4 => Box::<Blend>::default(),
        _ => Box::new(RandomPredictor::new(seed, 12)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// The smallest and the largest numbers of slots, which are other policies too, and those between.
    #[test]
    fn looking_ahead_changes_time_and_nothing_else(
        (predictor, seed) in (0_usize..6, any::<u64>()),
        slots in prop_oneof![
            Just(SlotWish::PerLayer(0)),
            Just(SlotWish::Fill),
            (1_usize..24).prop_map(SlotWish::PerLayer),
        ],
        gate in prop::sample::select(vec![Gate::Open, Gate::Paying]),
        width_max in 0..=GUESSES_MAX,
        extra_permille in 0_u32..=1000,
        times in prop::array::uniform2(prop::option::of(1_u64..3_000)),
        io in prop::sample::select(vec![IoChoice::Pread, IoChoice::Uring, IoChoice::Memory]),
        text in 0_usize..6,
    ) {
        let [read, hold] = times.map(|micros| micros.map(Nanos::from_micros));
        let parts = Parts {
            predictor: Some(guessing(predictor, seed)),
            lookahead: Some(LookaheadConfig { width_max, extra_permille, gate, read, hold }),
            ..Parts::default()
        };
        let mut engine = Engine::open_with(&pico(io, slots, 2), parts).unwrap();
        prop_assert!(bits(&mut engine, &TEXTS[text], 16) == CALM[text], "bits differ");
    }
}

/// Packed in the ids' order, in the order of a chain through them, and packed anew from one to the other.
#[test]
fn packing_changes_time_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["file.gguf", "chain.gguf", "again.gguf"].map(|name| folder.path().join(name));
    let pico = Gguf::open(&fixture("pico-q4_k_m.gguf")).unwrap();
    let shape = ModelShape::from_metadata(&pico.metadata).unwrap();
    let n = u32::try_from(shape.moe.n_experts).unwrap();
    let row = |layer: u32| (0..n).map(|expert| (7 * expert + layer) % n).collect();
    let chain = Order::Given(shape.layer_ids().map(|layer| row(layer.0.into())).collect());
    for (source, target, order) in [(None, 0, Order::File), (None, 1, chain), (Some(1), 2, Order::File)] {
        let source = source.map_or_else(|| fixture("pico-q4_k_m.gguf"), |i: usize| paths[i].clone());
        let settings = Settings { order, ..Settings::default() };
        pack(&Gguf::open(&source).unwrap(), &paths[target], &settings).unwrap().finish().unwrap();
    }
    for (i, path) in paths.iter().enumerate() {
        let ways = [
            (IoChoice::Uring, SlotWish::PerLayer(2)),
            (IoChoice::Cached, SlotWish::PerLayer(3)),
            (IoChoice::Pread, SlotWish::PerLayer(2)),
            (IoChoice::Mmap, SlotWish::PerLayer(0)),
            (IoChoice::Memory, SlotWish::Fill),
        ];
        for (io, slots) in ways {
            let mut config = config(path, BackendChoice::Cpu);
            (config.io, config.slots, config.verify_reads) = (io, slots, true);
            let mut engine = Engine::open(&config).unwrap();
            let text = (i + 1) % TEXTS.len();
            assert!(bits(&mut engine, &TEXTS[text], 16) == CALM[text], "{} {io:?} {slots:?}", path.display());
        }
    }
}

/// The same model in three files, every way to read them, and packed from them.
#[test]
fn splitting_changes_time_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let shards = shards::Copy::of(&fixture("pico-q4_k_m.gguf")).write_shards(folder.path(), 3);
    let packed = folder.path().join("packed.gguf");
    let source = Gguf::open(&shards[1]).unwrap();
    pack(&source, &packed, &Settings::default()).unwrap().finish().unwrap();
    let ways = [IoChoice::Uring, IoChoice::Pread, IoChoice::Cached, IoChoice::Mmap, IoChoice::Memory];
    for (path, ways) in [(&shards[2], &ways[..]), (&packed, &ways[..1])] {
        for &io in ways {
            let mut config = config(path, BackendChoice::Cpu);
            (config.io, config.slots) = (io, SlotWish::PerLayer(3));
            let mut engine = Engine::open(&config).unwrap();
            assert!(bits(&mut engine, &TEXTS[2], 16) == CALM[2], "{} {io:?}", path.display());
        }
    }
}

/// Experts used where they are mapped: of the file as it is, packed, and split, where those that lie in two files go
/// through slots.
#[test]
fn lending_changes_time_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let packed = folder.path().join("packed.gguf");
    let source = Gguf::open(&fixture("pico-q4_k_m.gguf")).unwrap();
    pack(&source, &packed, &Settings::default()).unwrap().finish().unwrap();
    let shards = shards::Copy::of(&fixture("pico-q4_k_m.gguf")).write_shards(folder.path(), 3);
    let mut n_read = 0;
    for path in [&fixture("pico-q4_k_m.gguf"), &packed, &shards[0]] {
        for (budget_bytes, n_threads) in [(None, 1), (Some(64 << 20), 2)] {
            let mut config = config(path, BackendChoice::Cpu);
            (config.io, config.budget_bytes, config.n_threads) =
                (IoChoice::Mmap, budget_bytes, Some(n_threads));
            config.context = Some(512);
            let mut engine = Engine::open(&config).unwrap();
            assert!(engine.plan().mapped > 0, "{}: {}", path.display(), engine.plan());
            assert!(engine.decisions().iter().any(|decision| decision.choice == "mapped"));
            assert!(bits(&mut engine, &TEXTS[3], 16) == CALM[3], "{}", path.display());
            let stats = engine.scheduler_stats();
            assert!(stats.lent > 0 && stats.hits - stats.lent + stats.misses <= stats.lent, "{stats:?}");
            assert_eq!(stats.again, 0, "slots for those that can't be lent are enough: {stats:?}");
            n_read += stats.fetches;
        }
    }
    assert!(n_read > 0, "no expert of the split set lay in two files");
}

/// The real backend over simulated flash: 20 seeds decide slots, latency, depth, guesses and faults.
#[test]
fn flash_with_faults_changes_time_and_nothing_else() {
    let path = fixture("tiny-b-q3_k_m.gguf");
    let bytes = bytes::Bytes::from(std::fs::read(&path).unwrap());
    let gguf = Gguf::open_bytes("tiny-b", bytes.clone()).unwrap();
    let shape = ModelShape::from_metadata(&gguf.metadata).unwrap();
    let catalog = Arc::new(Catalog::new(&shape, &gguf).unwrap());
    let n_experts = shape.n_layers() * shape.moe.n_experts;
    let text: Text = ((0..24).map(|i| TokenId(i * 19 % 512)).collect(), (0..16).map(TokenId).collect());
    let want = bits(&mut Engine::open(&config(&path, BackendChoice::Cpu)).unwrap(), &text, 64);
    let mut faults = 0;
    for seed in 1..=20 {
        let machine = Machine::from_seed(seed, n_experts).faults(Faults::survivable());
        let rig = machine.guessing(Guessing::Random { n_guesses_max: 8 }).rig(&catalog, vec![bytes.clone()]);
        let rig = rig.unwrap();
        let flash = rig.flash.clone();
        let mut config = config(&path, BackendChoice::Cpu);
        config.n_threads = Some(1 + usize::try_from(seed).unwrap() % 2);
        let mut engine = Engine::open_with(&config, Parts::over(rig.scheduler, Arc::new(rig.clock))).unwrap();
        assert!(bits(&mut engine, &text, 7) == want, "seed {seed}");
        let log = flash.log();
        faults += log.n_eio + log.n_interrupted + log.n_short + log.n_stalled;
    }
    assert!(faults > 20, "only {faults} faults were injected");
}
