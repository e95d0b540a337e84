//! Whoever drafts, and however much is accepted, answers and sessions are what they are without.

mod support;

use std::num::NonZeroUsize;

use forerun_decode::config::{CheckpointConfig, DraftChoice};
use forerun_decode::{
    BackendChoice, Engine, EngineConfig, Event, Generation, GenerationConfig, Logits, Parts, SamplerConfig,
    Session,
};
use forerun_model::TokenId;
use support::answers::{SLOTS, TEMPERATURES, answer, bits, pico, prompts, sampling};
use support::drafters::{Script, Scripted};
use support::{config, fixture, logits_of_all};

#[test]
fn drafts_of_any_kind_change_no_token_and_no_state() {
    let mut plain = Engine::open(&pico()).unwrap();
    let (prompts, n_vocab) = (prompts(&plain, 10), plain.shape().n_vocab);
    let scripts = [Script::Right, Script::Wrong, Script::Mixed(1), Script::Mixed(2)];
    for (i, prompt) in prompts.iter().enumerate() {
        let how = sampling(TEMPERATURES[i % 3], i as u64);
        let (want, held, state) = answer(&mut plain, prompt, &how);
        let text = [prompt, &want.tokens[..], &[TokenId(0); 8]].concat();
        let script = scripts[i % 4];
        let length = [Some(7), Some(1), Some(3), None][i / 3];
        let config = EngineConfig { slots: SLOTS[i % 3], draft_length: length, ..pico() };
        let parts = Parts { drafter: Some(Scripted::new(&text, script, n_vocab)), ..Parts::default() };
        let mut engine = Engine::open_with(&config, parts).unwrap();
        let found = answer(&mut engine, prompt, &how);
        assert_eq!(found.0.tokens, want.tokens, "prompt {i}, {script:?}");
        assert_eq!(found.1, held, "prompt {i}, {script:?}");
        assert_eq!(found.2, state, "prompt {i}, {script:?}");
        let t = &found.0.telemetry;
        let is_short = want.tokens.len() < 4;
        assert!(is_short || length.is_none() || t.draft_tokens > 0, "{script:?}");
        match script {
            // The answer may end before its last draft does.
            Script::Right => assert!(t.accepted_tokens + 7 >= t.draft_tokens),
            Script::Wrong => assert_eq!(t.accepted_tokens, 0),
            Script::Mixed(_) => assert!(t.accepted_tokens <= t.draft_tokens),
        }
    }
}

/// What ends an answer ends it at the same token, in the middle of a draft too, and the session holds the same.
#[test]
fn an_answer_ends_where_it_ends_without_drafts() {
    let mut plain = Engine::open(&pico()).unwrap();
    let n_vocab = plain.shape().n_vocab;
    let prompt = prompts(&plain, 3).remove(1);
    let free = GenerationConfig { max_tokens: Some(40), ..GenerationConfig::default() };
    let whole = answer(&mut plain, &prompt, &free);
    let text = [&prompt[..], &whole.0.tokens[..]].concat();
    let said = plain.tokenizer().decode(&whole.0.tokens[9..12]);
    let stopped = GenerationConfig { stops: vec![said.trim().to_owned()], ..free.clone() };
    for how in [stopped, GenerationConfig { max_tokens: Some(11), ..free.clone() }] {
        let want = answer(&mut plain, &prompt, &how);
        assert!(want.0.tokens.len() < 40);
        for script in [Script::Right, Script::Mixed(3)] {
            let parts = Parts { drafter: Some(Scripted::new(&text, script, n_vocab)), ..Parts::default() };
            let config = EngineConfig { draft_length: Some(7), ..pico() };
            let mut engine = Engine::open_with(&config, parts).unwrap();
            let found = answer(&mut engine, &prompt, &how);
            assert_eq!(
                (found.0.tokens, found.0.finish_reason),
                (want.0.tokens.clone(), want.0.finish_reason)
            );
            assert_eq!((found.1, found.2), (want.1.clone(), want.2.clone()));
        }
    }
}

/// An answer that its caller leaves at any point leaves a session that holds what was shown.
#[test]
fn a_session_holds_what_was_shown() {
    let mut plain = Engine::open(&pico()).unwrap();
    let n_vocab = plain.shape().n_vocab;
    let prompt = prompts(&plain, 2).remove(0);
    let how = sampling(0.0, 0);
    let whole = answer(&mut plain, &prompt, &how).0.tokens;
    let text = [&prompt[..], &whole[..]].concat();
    let parts = Parts { drafter: Some(Scripted::new(&text, Script::Mixed(5), n_vocab)), ..Parts::default() };
    let config = EngineConfig { draft_length: Some(7), ..pico() };
    let mut engine = Engine::open_with(&config, parts).unwrap();
    for n in [0, 1, 2, 5, 6, 7, 8, 9, 13] {
        let mut session = Session::new();
        let mut generation = Generation::new(&mut engine, &mut session, prompt.clone(), &how).unwrap();
        let mut n_shown = 0;
        while n_shown < n {
            if let Some(Event::Text(_)) = generation.next().unwrap() {
                n_shown += 1;
            }
        }
        drop(generation);
        // The last token shown is fed by the step that follows it.
        assert_eq!(
            session.tokens(),
            &text[..(prompt.len() + n).saturating_sub(1).min(session.tokens().len())]
        );
        assert!(n == 0 || session.tokens().len() == prompt.len() + n - 1, "{n}");
        let rest = session.tokens().len()..session.tokens().len() + 1;
        let logits =
            session.extend(&mut engine, &text[rest.clone()], Logits::Last).unwrap().unwrap().to_vec();
        let mut clean = Session::new();
        let want = clean.extend(&mut plain, &text[..rest.end], Logits::Last).unwrap().unwrap();
        assert_eq!(logits, want, "{n}");
    }
}

/// Loops and quotations are what looking back is for; the rule may decide how much of it.
#[test]
fn looking_back_changes_nothing_and_finds_repetitions() {
    let mut plain = Engine::open(&pico()).unwrap();
    let phrase =
        plain.tokenizer().encode_plain("one two three four five six seven eight nine ten. ").unwrap();
    let mut prompts = prompts(&plain, 5);
    prompts.push(phrase.repeat(4));
    for (i, prompt) in prompts.iter().enumerate() {
        for length in [Some(7), None] {
            let how = sampling(if i == 5 { 0.0 } else { TEMPERATURES[i % 3] }, 7);
            let want = answer(&mut plain, prompt, &how);
            let draft = DraftChoice::Ngram;
            let config = EngineConfig { draft, draft_length: length, slots: SLOTS[i % 3], ..pico() };
            let mut engine = Engine::open(&config).unwrap();
            let found = answer(&mut engine, prompt, &how);
            assert_eq!((found.0.tokens, found.1, found.2), (want.0.tokens, want.1, want.2), "prompt {i}");
            let t = &found.0.telemetry;
            assert!(i < 5 || length.is_none() || t.accepted_tokens > 0, "{}", t.draft_tokens);
        }
    }
}

/// Every position is rejected, for 500 tokens: a recurrent state that had kept a trace would have gone astray.
#[test]
fn five_hundred_tokens_of_rejected_drafts() {
    let base = config(&fixture("tiny-b-q3_k_m.gguf"), BackendChoice::Cpu);
    let mut plain = Engine::open(&base).unwrap();
    let how = GenerationConfig { max_tokens: Some(500), ..GenerationConfig::default() };
    for length in [1, 2, 3, 7] {
        let mut n_tokens = 0;
        for first in 0.. {
            let prompt: Vec<_> = (0..9).map(|i| TokenId((first * 13 + i * 31) % 512)).collect();
            let want = answer(&mut plain, &prompt, &how);
            let text = [&prompt[..], &want.0.tokens[..], &[TokenId(0); 8]].concat();
            let drafter = Scripted::new(&text, Script::Wrong, plain.shape().n_vocab);
            let parts = Parts { drafter: Some(drafter), ..Parts::default() };
            let config = EngineConfig { draft_length: Some(length), ..base.clone() };
            let found = answer(&mut Engine::open_with(&config, parts).unwrap(), &prompt, &how);
            assert_eq!(found.0.tokens, want.0.tokens, "{length}");
            assert_eq!((found.1, found.2), (want.1.clone(), want.2.clone()), "{length}");
            assert_eq!(found.0.telemetry.accepted_tokens, 0);
            n_tokens += want.0.tokens.len();
            if n_tokens >= 500 {
                break;
            }
        }
    }
}

/// A random model has flat logits; so cold, a likely token is likely.
const COLD: f32 = 0.25;

/// Softmax at that temperature.
fn probabilities(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::MIN, f32::max);
    let weights: Vec<f64> = logits.iter().map(|v| (f64::from(v - largest) / f64::from(COLD)).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

/// A chi-square statistic as a normal variable (Wilson and Hilferty); cells that expect fewer than 5 are one.
fn deviation(counts: &[f64], expected: &[f64]) -> f64 {
    let (mut chi, mut n_cells, mut rest) = (0.0, 0.0, (0.0_f64, 0.0_f64));
    for (count, expected) in counts.iter().zip(expected) {
        if *expected >= 5.0 {
            chi += (count - expected).powi(2) / expected;
            n_cells += 1.0;
        } else {
            rest = (rest.0 + count, rest.1 + expected);
        }
    }
    chi += (rest.0 - rest.1).powi(2) / rest.1.max(1.0);
    let part = 2.0 / (9.0 * n_cells);
    ((chi / n_cells).cbrt() - (1.0 - part)) / part.sqrt()
}

/// Above temperature 0 a drafted answer has the model's own distribution: its second token over many seeds, which was drafted
/// and accepted or not, against what the model's probabilities say of it, over every first token.
#[test]
fn drafted_tokens_are_distributed_as_the_models_own() {
    let base = config(&fixture("tiny-b-q3_k_m.gguf"), BackendChoice::Cpu);
    let checkpoints = CheckpointConfig { n_max: 1, every: NonZeroUsize::new(5), is_asked: true };
    let mut plain = Engine::open(&EngineConfig { checkpoints, ..base.clone() }).unwrap();
    let prompt: Vec<_> = (0..5).map(|i| TokenId(i * 77 % 512)).collect();
    let mut session = Session::new();
    let first = probabilities(session.extend(&mut plain, &prompt, Logits::Last).unwrap().unwrap());
    let mut second = vec![0.0; first.len()];
    for (token, p) in (0..).map(TokenId).zip(&first) {
        let logits = session.extend(&mut plain, &[token], Logits::Last).unwrap().unwrap();
        for (sum, q) in second.iter_mut().zip(probabilities(logits)) {
            *sum += p * q;
        }
        session.cut_back(&mut plain, prompt.len()).unwrap();
    }
    let likeliest = (0..).map(TokenId).zip(&second).max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
    let text = [&prompt[..], &[likeliest; 3]].concat();
    let drafter = Scripted::new(&text, Script::Right, first.len());
    let parts = Parts { drafter: Some(drafter), ..Parts::default() };
    let config = EngineConfig { draft_length: Some(1), ..base };
    let mut engine = Engine::open_with(&config, parts).unwrap();
    let n = 3000;
    let (mut counts, mut accepted) = (vec![0.0; first.len()], 0);
    for seed in 0..n {
        let sampler = SamplerConfig {
            temperature: COLD,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed,
            ..SamplerConfig::default()
        };
        let how = GenerationConfig { sampler, max_tokens: Some(3), ..GenerationConfig::default() };
        let (mut session, mut said) = (Session::new(), Vec::new());
        let mut generation = Generation::new(&mut engine, &mut session, prompt.clone(), &how).unwrap();
        while generation.next().unwrap().is_some() {}
        let report = generation.finish();
        said.extend(report.tokens);
        accepted += report.telemetry.accepted_tokens;
        if let Some(token) = said.get(1) {
            counts[token.idx()] += 1.0;
        }
    }
    assert!(accepted > 10, "{accepted} drafts were accepted");
    let ends = plain.tokenizer().vocabulary().end_ids();
    // Answers that ended early have no second token.
    let total: f64 = counts.iter().sum();
    for end in ends {
        second[end.idx()] = 0.0;
    }
    let mass: f64 = second.iter().sum();
    let expected: Vec<f64> = second.iter().map(|p| p / mass * total).collect();
    let z = deviation(&counts, &expected);
    assert!(z.abs() < 4.0, "z = {z:.2}; {accepted} accepted");
    // The test sees what it is there for: one wrong draft in five taken on trust.
    let mut trusting: Vec<f64> = counts.iter().map(|count| 0.8 * count).collect();
    trusting[likeliest.idx()] += 0.2 * total;
    assert!(deviation(&trusting, &expected) > 4.0);
}

/// A session can be cut back to any position, with checkpoints or without, and goes on with the same bits.
#[test]
fn a_session_cut_back_goes_on_as_if_it_had_never_been_longer() {
    let base = config(&fixture("tiny-b-q3_k_m.gguf"), BackendChoice::Cpu);
    let tokens: Vec<_> = (0..60).map(|i| TokenId(i * 37 % 512)).collect();
    let mut plain = Engine::open(&base).unwrap();
    let want: Vec<Vec<u32>> = logits_of_all(&mut plain, &tokens).iter().map(|row| bits(row)).collect();
    for (n_max, every) in [(0, None), (1, None), (3, NonZeroUsize::new(8)), (8, NonZeroUsize::new(5))] {
        let checkpoints = CheckpointConfig { n_max, every, is_asked: true };
        let config = EngineConfig { checkpoints, draft: DraftChoice::Ngram, ..base.clone() };
        let mut engine = Engine::open(&config).unwrap();
        let mut session = Session::new();
        for part in tokens[..50].chunks(7) {
            session.extend(&mut engine, part, Logits::None).unwrap();
        }
        for (cut, further) in [(50, 55), (43, 44), (17, 60), (60, 60), (59, 60), (8, 20), (0, 9), (1, 2)] {
            session.cut_back(&mut engine, cut).unwrap();
            assert_eq!(session.tokens(), &tokens[..cut.min(session.tokens().len())]);
            for at in session.tokens().len()..further {
                let logits = session.extend(&mut engine, &tokens[at..=at], Logits::Last).unwrap().unwrap();
                assert_eq!(bits(logits), want[at], "{n_max} checkpoints, cut to {cut}, token {at}");
            }
        }
    }
}

/// A prompt that goes on otherwise is read from the last checkpoint on, and its answer is that of a new session.
#[test]
fn a_prompt_that_begins_alike_is_not_read_anew() {
    let base = config(&fixture("tiny-b-q3_k_m.gguf"), BackendChoice::Cpu);
    let prompt: Vec<_> = (0..40).map(|i| TokenId(i * 41 % 512)).collect();
    let how =
        GenerationConfig { max_tokens: Some(9), checkpoint_at: Some(33), ..GenerationConfig::default() };
    let checkpoints = CheckpointConfig { n_max: 1, every: None, is_asked: true };
    let mut engine = Engine::open(&EngineConfig { checkpoints, ..base.clone() }).unwrap();
    let mut session = Session::new();
    let run = |engine: &mut Engine, session: &mut Session, prompt: &[TokenId]| {
        let mut generation = Generation::new(engine, session, prompt.to_vec(), &how).unwrap();
        while generation.next().unwrap().is_some() {}
        generation.finish()
    };
    run(&mut engine, &mut session, &prompt);
    let other = [&prompt[..35], &[TokenId(3), TokenId(4)]].concat();
    let found = run(&mut engine, &mut session, &other);
    assert_eq!(found.telemetry.prompt_reused_tokens, 33);
    let want = run(&mut Engine::open(&base).unwrap(), &mut Session::new(), &other);
    assert_eq!(found.tokens, want.tokens);
}
