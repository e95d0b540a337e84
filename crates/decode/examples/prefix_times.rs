//! How long it takes to keep a conversation and to bring it back, in memory and on disk: for so long others' steps wait.
//!
//! `cargo run --release -p forerun-decode --example prefix_times -- [MODEL [TOKENS [FOLDER]]]`. Prints a line a way, with the
//! bytes of rows and states and the median of five times; then the copies alone for a sequence of a 35B-A3B's shape. The folder must not exist; it is removed.

#![expect(clippy::print_stdout, reason = "an example talks")]

use std::error::Error;
use std::path::PathBuf;

use forerun_compute::sequence::Sequence;
use forerun_compute::{Checkpoint, KvType};
use forerun_decode::config::CheckpointConfig;
use forerun_decode::{
    Batch, Engine, EngineConfig, GenerationConfig, ModelSource, PrefixConfig, PrefixDisk, bytes_text,
};
use forerun_model::{
    AttentionShape, Clock, DeltaNetShape, LayerKind, ModelShape, Nanos, SystemClock, TokenId,
};

const N_ROUNDS: u32 = 5;
/// Too few to be kept.
const OTHERS: u32 = 8;

/// Runs an answer of one token; returns the milliseconds that it took to be admitted, and the tokens reused.
fn say(batch: &mut Batch, prompt: &[TokenId]) -> Result<(f64, usize), Box<dyn Error>> {
    let clock = SystemClock::new();
    let config = GenerationConfig { max_tokens: Some(1), ..GenerationConfig::default() };
    let begin = clock.now();
    let admitted = batch.admit(prompt.to_vec(), &config)?.ok_or("no seat is free")?;
    let time = since(&clock, begin);
    while batch.advance() {}
    while batch.next_event().is_some() {}
    Ok((time, admitted.n_reused))
}

/// Milliseconds since `begin`.
fn since(clock: &SystemClock, begin: Nanos) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds need no more than 53 bits")]
    let time = (clock.now() - begin).0 as f64 / 1e6;
    time
}

/// Copies a sequence of `n_tokens` of a 35B-A3B's shape out and back.
fn large(like: &ModelShape, n_tokens: usize) -> Result<(), Box<dyn Error>> {
    let attention = AttentionShape { n_kv_heads: 2, head_dim: 256, ..like.attention };
    let net = like.delta_net.ok_or("the model must have recurrent states")?;
    let net = DeltaNetShape { n_key_heads: 16, n_value_heads: 32, key_dim: 128, value_dim: 128, ..net };
    let layers = [[LayerKind::DeltaNet; 3].as_slice(), &[LayerKind::Attention]].concat().repeat(10);
    let shape = ModelShape { layers, attention, delta_net: Some(net), ..like.clone() };
    let mut sequence = Sequence::new(&shape, KvType::F16, n_tokens, 0);
    sequence.commit(n_tokens);
    let (mut rows, mut checkpoint) = (Vec::new(), Checkpoint::default());
    let clock = SystemClock::new();
    let (mut states, mut out, mut back) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..N_ROUNDS {
        let begin = clock.now();
        sequence.save(&mut checkpoint);
        states.push(since(&clock, begin));
        rows.clear();
        let begin = clock.now();
        sequence.save_rows(0..n_tokens, &mut rows)?;
        out.push(since(&clock, begin));
        let begin = clock.now();
        sequence.load(&checkpoint, &mut &rows[..])?;
        back.push(since(&clock, begin));
    }
    let (state, rows) = (bytes_text(Checkpoint::bytes(&shape)), bytes_text(rows.len() as u64));
    println!(
        "35B's shape: a state of {state} out {:.1} ms, rows of {rows} out {:.1} ms, both back {:.1} ms",
        median(states),
        median(out),
        median(back)
    );
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/pico-q4_k_m.gguf");
    let model = args.next().map_or_else(|| PathBuf::from(fixture), PathBuf::from);
    let n_tokens: u32 = args.next().map_or(Ok(1900), |n| n.parse())?;
    let folder = args.next().map_or_else(|| std::env::temp_dir().join("prefix-times"), PathBuf::from);
    let context = Some(n_tokens as usize + 64);
    let checkpoints = CheckpointConfig { n_max: 1, every: None, is_asked: true };
    let base = EngineConfig { context, checkpoints, ..EngineConfig::new(ModelSource::Path(model)) };
    let plain = Engine::open(&base)?;
    let shape = plain.shape();
    let (row, state) = (Sequence::kv_bytes(shape, KvType::F16, 1), Checkpoint::bytes(shape));
    let n_vocab = u32::try_from(shape.n_vocab)?;
    println!("{n_tokens} tokens of {row} bytes, states of {}", bytes_text(state));
    println!("way       kept in ms  back in ms");
    let working = 16 * row + state + (2 << 20);
    for (way, prefix_bytes) in
        [("memory", working + 2 * (u64::from(n_tokens + 64) * row + 4 * state)), ("disk", working)]
    {
        let (mut kept, mut back) = (Vec::new(), Vec::new());
        for round in 0..N_ROUNDS {
            let disk = PrefixDisk { folder: folder.clone(), bytes_max: 1 << 40, write_bytes_max: 1 << 40 };
            let config = PrefixConfig { disk: (way == "disk").then_some(disk) };
            let engine = Engine::open(&EngineConfig { prefix_bytes, ..base.clone() })?;
            let mut batch = Batch::with_prefixes(engine, config)?;
            let text: Vec<_> = (0..n_tokens).map(|i| TokenId((round * 31 + i * 7) % (n_vocab / 2))).collect();
            let others: Vec<_> = (0..OTHERS).map(|i| TokenId(n_vocab / 2 + i)).collect();
            say(&mut batch, &text)?;
            kept.push(say(&mut batch, &others)?.0);
            let (time, n_reused) = say(&mut batch, &[&text[..], &others].concat())?;
            assert!(n_reused >= text.len(), "{way}: {n_reused} tokens were restored");
            back.push(time);
        }
        println!("{way:<8}  {:>10.2}  {:>10.2}", median(kept), median(back));
    }
    std::fs::remove_dir_all(folder)?;
    large(plain.shape(), n_tokens as usize)
}
