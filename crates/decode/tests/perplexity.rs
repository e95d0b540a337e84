//! A text's perplexity: its value, and that nothing but the model and the text changes a bit of it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use forerun_decode::perplexity::LOGIT_ROWS;
use forerun_decode::{
    BackendChoice, DecodeError, Engine, EngineConfig, Estimate, IoChoice, Logits, Perplexity, ScoreEvent,
    Session, SlotWish, TextLength,
};
use forerun_model::TokenId;
use support::{config, fixture};

/// Of the whole fixture in windows of 512, by the reference with f32 activations.
const REFERENCE: f64 = 24.584_914;

fn pico(context: usize) -> EngineConfig {
    let mut config = config(&fixture("pico-q4_k_m.gguf"), BackendChoice::Cpu);
    (config.context, config.logit_rows, config.n_threads) = (Some(context), LOGIT_ROWS, Some(2));
    config
}

fn heldout() -> String {
    std::fs::read_to_string(fixture("heldout.txt")).unwrap()
}

/// The result, and how many steps it took.
fn score(config: &EngineConfig, text: &str) -> (Estimate, usize) {
    let mut engine = Engine::open(config).unwrap();
    let length = TextLength::of(text.as_bytes(), engine.tokenizer(), engine.plan().context).unwrap();
    let mut scoring = Perplexity::new(&mut engine, text.as_bytes(), length);
    let (mut n_steps, mut n_windows) = (0, 0);
    while let Some(event) = scoring.next().unwrap() {
        n_steps += 1;
        if let ScoreEvent::Window { n } = event {
            n_windows += 1;
            assert_eq!(n, n_windows);
        }
    }
    assert_eq!((n_windows, scoring.n_windows()), (length.n_windows, length.n_windows));
    (scoring.estimate().unwrap(), n_steps)
}

#[test]
fn the_small_models_perplexity_is_the_references() {
    let (found, _) = score(&pico(512), &heldout());
    let off = found.perplexity / REFERENCE - 1.0;
    assert!(off.abs() < 0.005, "{found:?} is off by {off}");
    assert_eq!(found.n_tokens % 255, 0, "255 predictions a window");
}

#[test]
fn budget_threads_and_steps_change_time_and_nothing_else() {
    let text = &heldout()[..2400];
    let plain = pico(128);
    let (want, n_steps) = score(&plain, text);
    let bits = |found: Estimate| (found.perplexity.to_bits(), found.stderr.to_bits(), found.n_tokens);
    let with = |change: fn(&mut EngineConfig)| {
        let mut config = plain.clone();
        change(&mut config);
        score(&config, text)
    };
    let ways: [fn(&mut EngineConfig); 5] = [
        |config| config.n_threads = Some(1),
        |config| (config.io, config.budget_bytes) = (IoChoice::Pread, Some(24 << 20)),
        |config| config.slots = SlotWish::PerLayer(2),
        |config| config.logit_rows = 1,
        |config| config.logit_rows = 7,
    ];
    for (i, way) in ways.into_iter().enumerate() {
        let (found, n) = with(way);
        assert_eq!(bits(found), bits(want), "way {i}");
        assert!(i < 3 || n > n_steps, "way {i} must take other steps: {n} {n_steps}");
    }
}

/// Against the definition, spelled out: one token at a time, every logit.
#[test]
fn the_second_half_of_every_whole_window_is_predicted() {
    const WINDOW: usize = 32;
    let text = &heldout()[..400];
    let (found, _) = score(&pico(WINDOW), text);
    let mut engine = Engine::open(&pico(WINDOW)).unwrap();
    let tokens = engine.tokenizer().encode_plain(text).unwrap();
    let mut nll = Vec::new();
    for window in tokens.chunks_exact(WINDOW) {
        let mut session = Session::new();
        for (i, &token) in window[..WINDOW - 1].iter().enumerate() {
            let logits = session.extend(&mut engine, &[token], Logits::Last).unwrap().unwrap();
            let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            if i >= WINDOW / 2 {
                nll.push(sum.ln() - f64::from(logits[window[i + 1].idx()]));
            }
        }
    }
    let n = nll.len() as f64;
    let mean = nll.iter().sum::<f64>() / n;
    let variance = nll.iter().map(|nll| (nll - mean).powi(2)).sum::<f64>() / (n - 1.0);
    assert_eq!(found.n_tokens, nll.len() as u64);
    assert!((found.perplexity / mean.exp() - 1.0).abs() < 1e-9, "{found:?}");
    assert!((found.stderr / (mean.exp() * (variance / n).sqrt()) - 1.0).abs() < 1e-9, "{found:?}");
}

#[test]
fn logits_of_more_rows_than_planned_are_refused_and_change_nothing() {
    let mut engine = Engine::open(&pico(64)).unwrap();
    let tokens: Vec<_> = (0..17).map(TokenId).collect();
    let mut session = Session::new();
    let error = session.extend(&mut engine, &tokens, Logits::All).unwrap_err();
    assert!(matches!(error, DecodeError::LogitRows { rows: 17, rows_max: 16 }), "{error}");
    let logits = session.extend(&mut engine, &tokens[..16], Logits::All).unwrap().unwrap();
    assert_eq!(logits.len(), 16 * 8192);
}

#[test]
fn a_text_or_a_window_that_is_too_short_is_refused() {
    let engine = Engine::open(&pico(64)).unwrap();
    let length = |text: &str, window| TextLength::of(text.as_bytes(), engine.tokenizer(), window);
    let words = length("one two three", 64).unwrap_err().to_string();
    assert!(words.contains("has 3 tokens") && words.contains("window has 64"), "{words}");
    assert!(matches!(length("", 64), Err(DecodeError::TextTooShort { n_tokens: 0, .. })));
    assert!(matches!(length(&heldout(), 7), Err(DecodeError::WindowTooShort { window: 7, window_min: 8 })));
}

#[test]
fn a_text_that_shrinks_between_its_readings_is_told() {
    let mut engine = Engine::open(&pico(32)).unwrap();
    let text = &heldout()[..400];
    let length = TextLength::of(text.as_bytes(), engine.tokenizer(), 32).unwrap();
    let mut scoring = Perplexity::new(&mut engine, &text.as_bytes()[..150], length);
    let error = loop {
        match scoring.next() {
            Err(error) => break error,
            Ok(event) => assert!(event.is_some(), "fewer windows than were counted"),
        }
    };
    assert!(matches!(error, DecodeError::TextChanged { .. }), "{error}");
}
