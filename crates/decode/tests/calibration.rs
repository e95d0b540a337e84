//! What a text's inputs add up to: llama.cpp's figures, and that nothing but the model and the text changes a bit of them.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use forerun_decode::text::TokenReader;
use forerun_decode::{
    BackendChoice, Calibration, Collect, Engine, EngineConfig, InputSums, Inputs, IoChoice, ModelSource,
    ReadEvent, SlotWish, TextLength,
};
use forerun_model::{LayerId, LayerKind, ModelShape};
use support::{config, fixture, json};

fn pico(context: usize) -> EngineConfig {
    let mut config = config(&fixture("pico-q4_k_m.gguf"), BackendChoice::Cpu);
    (config.context, config.collects, config.n_threads) = (Some(context), Some(Collect::Layers), Some(2));
    config
}

fn heldout() -> String {
    std::fs::read_to_string(fixture("heldout.txt")).unwrap()
}

/// One place: its sums' bits, its counts, and the bits of its moments.
type Place = (LayerId, Inputs, Vec<u32>, Vec<u32>, Vec<u32>);

fn places(sums: &InputSums) -> Vec<Place> {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    sums.iter()
        .map(|(layer, inputs, sums)| {
            (layer, inputs, bits(sums.sums()), sums.counts().to_vec(), bits(sums.moments()))
        })
        .collect()
}

/// The sums over `text` after `skipped` windows, and how many steps they took.
fn read(engine: &mut Engine, text: &str, skipped: u64, n_max: u64) -> (Vec<Place>, usize) {
    let length = TextLength::of(text.as_bytes(), engine.tokenizer(), engine.plan().context).unwrap();
    let mut reading = Calibration::new(engine, TokenReader::new(text.as_bytes()), length.at_most(n_max));
    reading.skip(skipped).unwrap();
    let (mut n_steps, mut n_windows) = (0, skipped);
    while let Some(event) = reading.next().unwrap() {
        n_steps += 1;
        if let ReadEvent::Window { n } = event {
            n_windows += 1;
            assert_eq!(n, n_windows);
        }
    }
    assert_eq!(n_windows, length.n_windows.min(n_max));
    let found = places(&reading.engine().input_sums().unwrap());
    (found, n_steps)
}

#[test]
fn budget_threads_and_steps_change_time_and_nothing_else() {
    let text = &heldout()[..2400];
    let (want, n_steps) = read(&mut Engine::open(&pico(128)).unwrap(), text, 0, u64::MAX);
    let ways: [fn(&mut EngineConfig); 4] = [
        |config| config.n_threads = Some(1),
        |config| (config.io, config.budget_bytes) = (IoChoice::Pread, Some(24 << 20)),
        |config| config.slots = SlotWish::PerLayer(2),
        |config| (config.io, config.slots) = (IoChoice::Pread, SlotWish::PerLayer(0)),
    ];
    let mut most = n_steps;
    for (i, way) in ways.into_iter().enumerate() {
        let mut config = pico(128);
        way(&mut config);
        let (found, n_steps) = read(&mut Engine::open(&config).unwrap(), text, 0, u64::MAX);
        assert!(found == want, "way {i}");
        most = most.max(n_steps);
    }
    assert!(most > n_steps, "a budget must cut windows into more steps");
}

#[test]
fn a_pause_changes_nothing() {
    let text = &heldout()[..2400];
    let (want, _) = read(&mut Engine::open(&pico(64)).unwrap(), text, 0, u64::MAX);
    let mut first = Engine::open(&pico(64)).unwrap();
    let (half, _) = read(&mut first, text, 0, 3);
    assert!(half != want);
    let mut second = Engine::open(&pico(64)).unwrap();
    for ((_, _, to), (_, _, from)) in
        second.input_sums().unwrap().iter_mut().zip(first.input_sums().unwrap().iter())
    {
        assert!(!to.restore(&from.sums()[1..], from.counts(), from.moments()), "sums of another size");
        assert!(!to.restore(from.sums(), from.counts(), &[1.0]), "moments of another size");
        assert!(to.restore(from.sums(), from.counts(), from.moments()));
    }
    let (found, _) = read(&mut second, text, 3, u64::MAX);
    assert!(found == want);
}

#[test]
fn every_token_counts_once_and_top_k_times_among_experts() {
    let mut config = pico(64);
    config.collects = Some(Collect::LayersAndHead);
    let mut engine = Engine::open(&config).unwrap();
    let (found, _) = read(&mut engine, &heldout()[..1200], 0, 3);
    let (n_layers, top_k) = (engine.shape().n_layers(), engine.shape().moe.top_k);
    assert_eq!(found.len(), 6 * n_layers + 1);
    for (layer, inputs, sums, counts, moments) in &found {
        let factor = if matches!(inputs, Inputs::Experts | Inputs::ExpertsDown) { top_k } else { 1 };
        let n: u32 = counts.iter().sum();
        assert_eq!(n as usize, 3 * 64 * factor, "{layer:?} {inputs:?}");
        if factor > 1 {
            assert!(moments.is_empty(), "{layer:?} {inputs:?}");
            continue;
        }
        let values: Vec<f32> = moments.iter().map(|bits| f32::from_bits(*bits)).collect();
        let squares = forerun_compute::moments::squares(sums.len(), &values);
        let squares: Vec<u32> = squares.iter().map(|square| square.to_bits()).collect();
        assert!(squares == *sums, "{layer:?} {inputs:?}: the moments' diagonal is the sums of squares");
    }
    assert_eq!(engine.plan().sums, InputSums::bytes(engine.shape(), Collect::LayersAndHead));
    let lens = found.iter().map(|place| place.2.len() + place.3.len() + place.4.len());
    let n = 4 * lens.sum::<usize>();
    assert!((n as u64..n as u64 * 11 / 10).contains(&engine.plan().sums), "{n}");
    assert!(Engine::open(&EngineConfig { collects: None, ..config }).unwrap().input_sums().is_none());
}

/// The model's tensor that stands for all that share `inputs`.
fn name(shape: &ModelShape, layer: LayerId, inputs: Inputs) -> Option<&'static str> {
    let is_attention = shape.layers[layer.idx()] == LayerKind::Attention;
    Some(match inputs {
        Inputs::Mixer => {
            if is_attention {
                "attn_q"
            } else {
                "attn_qkv"
            }
        }
        Inputs::MixerOutput => {
            if is_attention {
                "attn_output"
            } else {
                "ssm_out"
            }
        }
        Inputs::Router => "ffn_gate_inp",
        Inputs::SharedDown => "ffn_down_shexp",
        Inputs::Experts => "ffn_up_exps",
        Inputs::ExpertsDown => "ffn_down_exps",
        Inputs::Head => return None,
    })
}

/// Totals of each tensor and counts of each expert, as `llama-imatrix` found them, of weights that both multiply as they are.
#[test]
fn the_sums_are_llama_cpps() {
    let golden = json("tiny-a-imatrix.json");
    let mut config = pico(usize::try_from(golden["chunk_size"].as_u64().unwrap()).unwrap());
    config.model = ModelSource::Path(fixture("tiny-a-f32.gguf"));
    let mut engine = Engine::open(&config).unwrap();
    let _ = read(&mut engine, &heldout(), 0, golden["chunk_count"].as_u64().unwrap());
    let sums = engine.input_sums().unwrap();
    let mut n_compared = 0;
    for (layer, inputs, sums) in sums.iter() {
        let Some(name) = name(engine.shape(), layer, inputs) else { continue };
        let want = &golden["tensors"][forerun_model::names::block(layer, name)];
        let total: f64 = sums.sums().iter().map(|sum| f64::from(*sum)).sum();
        let off = total / want["sum"].as_f64().unwrap() - 1.0;
        assert!(off.abs() < 1e-4, "{layer:?} {name} is off by {off}");
        let counts: Vec<_> = want["counts"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
        let found: Vec<_> = sums.counts().iter().map(|n| u64::from(*n)).collect();
        assert_eq!(found, counts, "{layer:?} {name}");
        n_compared += counts.len();
    }
    let shape = engine.shape();
    assert_eq!(n_compared, shape.n_layers() * (4 + 2 * shape.moe.n_experts));
}
