//! What is drawn, how often, and what it may depend on.

use super::*;

fn sampler(config: SamplerConfig, n_vocab: usize) -> Sampler {
    Sampler::new(config, n_vocab, []).unwrap()
}

/// Nothing but the temperature.
fn plain() -> SamplerConfig {
    SamplerConfig { top_k: 0, top_p: 1.0, ..SamplerConfig::default() }
}

fn at(position: u64) -> Draw {
    Draw { choice: 0, position }
}

/// How often each token is drawn at positions 0..n.
fn counts(config: &SamplerConfig, logits: &[f32], n: u64) -> Vec<u32> {
    let mut sampler = sampler(config.clone(), logits.len());
    let mut counts = vec![0; logits.len()];
    for position in 0..n {
        counts[sampler.sample(logits, &History::default(), at(position)).unwrap().idx()] += 1;
    }
    counts
}

#[test]
fn tokens_are_drawn_as_often_as_they_are_probable() {
    let n = 40_000;
    for (seed, temperature) in [(1, 1.0), (2, 0.5), (3, 2.0)] {
        let probabilities = [0.4f64, 0.3, 0.2, 0.08, 0.02];
        let logits = [0.4f32, 0.3, 0.2, 0.08, 0.02].map(f32::ln);
        let weights = probabilities.map(|p| p.powf(1.0 / f64::from(temperature)));
        let sum: f64 = weights.iter().sum();
        let seen = counts(&SamplerConfig { seed, temperature, ..plain() }, &logits, n);
        let terms = seen.iter().zip(weights).map(|(&c, w)| {
            let expect = w / sum * n as f64;
            (f64::from(c) - expect).powi(2) / expect
        });
        let chi: f64 = terms.sum();
        // Four degrees of freedom: above 18.5 once in a thousand.
        assert!(chi < 18.5, "seed {seed}: {chi} for {seen:?}");
    }
}

/// Candidates that are passed over couldn't have won.
#[test]
fn the_token_is_the_one_with_the_largest_score_of_all() {
    for (seed, temperature) in [(1, 0.2), (2, 1.0), (3, 5.0)] {
        let logits: Vec<f32> = (0..3000_u16).map(|i| f32::from(i % 1500 * 37 % 509) / 40.0).collect();
        let config = SamplerConfig { seed, temperature, ..plain() };
        let mut sampler = sampler(config, logits.len());
        for position in 0..200 {
            let noise = Noise::new(seed, at(position));
            let scores = (0..).zip(&logits).map(|(token, &logit)| {
                let token = TokenId(token);
                (f64::from(logit) * (1.0 / f64::from(temperature)) + noise.gumbel(token), token)
            });
            let want = scores.reduce(better).unwrap().1;
            assert_eq!(sampler.sample(&logits, &History::default(), at(position)), Ok(want), "seed {seed}");
        }
    }
}

#[test]
fn greedy_takes_the_largest_and_of_equal_ones_the_first() {
    let mut greedy = sampler(SamplerConfig::greedy(), 4);
    let mut one = sampler(SamplerConfig { top_k: 1, ..plain() }, 4);
    for (logits, expect) in
        [([0.0, 2.0, 1.0, 2.0], 1), ([-5.0, -7.0, -5.0, -9.0], 0), ([-0.0, 0.0, -0.0, 0.0], 0)]
    {
        for position in 0..50 {
            let history = History::default();
            assert_eq!(greedy.sample(&logits, &history, at(position)).unwrap(), TokenId(expect));
            assert_eq!(one.sample(&logits, &history, at(position)).unwrap(), TokenId(expect));
        }
    }
}

#[test]
fn a_place_gives_the_same_token_whatever_came_before() {
    let logits: Vec<f32> = (0..50u8).map(|i| f32::from(i % 7)).collect();
    let mut ordered = sampler(SamplerConfig { seed: 9, ..plain() }, 50);
    let mut backwards = ordered.clone();
    let history = History::default();
    let forth: Vec<_> = (0..200).map(|p| ordered.sample(&logits, &history, at(p)).unwrap()).collect();
    let back: Vec<_> = (0..200).rev().map(|p| backwards.sample(&logits, &history, at(p)).unwrap()).collect();
    assert!(forth.iter().eq(back.iter().rev()));
    let mut other_seed = sampler(SamplerConfig { seed: 10, ..plain() }, 50);
    let other: Vec<_> = (0..200).map(|p| other_seed.sample(&logits, &history, at(p)).unwrap()).collect();
    assert_ne!(forth, other);
    let choice = |choice| move |position| Draw { choice, position };
    let second: Vec<_> =
        (0..200).map(choice(1)).map(|draw| ordered.sample(&logits, &history, draw).unwrap()).collect();
    assert_ne!(forth, second);
}

#[test]
fn a_mask_elsewhere_does_not_change_the_noise_of_a_token() {
    let logits = vec![1.0; 20];
    let mut sampler = sampler(plain(), 20);
    for position in 0..100 {
        let drawn = sampler.sample(&logits, &History::default(), at(position)).unwrap();
        let mut masked = logits.clone();
        masked[(drawn.idx() + 1) % 20] = f32::NEG_INFINITY;
        assert_eq!(sampler.sample(&masked, &History::default(), at(position)).unwrap(), drawn);
    }
}

#[test]
fn banned_tokens_are_never_drawn() {
    let mut sampler = Sampler::new(plain(), 3, [TokenId(2), TokenId(0)]).unwrap();
    for position in 0..100 {
        let drawn = sampler.sample(&[9.0, 0.0, 9.0], &History::default(), at(position)).unwrap();
        assert_eq!(drawn, TokenId(1));
    }
    let mut none = Sampler::new(plain(), 1, [TokenId(0)]).unwrap();
    assert_eq!(none.sample(&[1.0], &History::default(), at(0)), Err(SamplerError::NothingLeft));
}

#[test]
fn penalties_push_down_what_was_said() {
    let logits = [2.0, 1.9, -1.0];
    let drawn = |config: SamplerConfig, history: &History| {
        let config = SamplerConfig { temperature: 0.0, ..config };
        sampler(config, 3).sample(&logits, history, at(0)).unwrap().0
    };
    let mut history = History::new(&[TokenId(0)]);
    assert_eq!(drawn(plain(), &history), 0);
    assert_eq!(drawn(SamplerConfig { repetition_penalty: 1.1, ..plain() }, &history), 1);
    let presence = SamplerConfig { presence_penalty: 0.2, ..plain() };
    let frequency = SamplerConfig { frequency_penalty: 0.06, ..plain() };
    assert_eq!((drawn(presence.clone(), &history), drawn(frequency.clone(), &history)), (0, 0));
    history.push(TokenId(0));
    assert_eq!((drawn(presence.clone(), &history), drawn(frequency.clone(), &history)), (1, 0));
    history.push(TokenId(0));
    assert_eq!(drawn(frequency.clone(), &history), 1);
    assert_eq!((history.pop(), history.pop(), history.pop()), (Some(TokenId(0)), Some(TokenId(0)), None));
    assert_eq!((drawn(presence, &history), drawn(frequency, &history)), (0, 0));
    let negative = SamplerConfig { repetition_penalty: 2.0, ..plain() };
    assert_eq!(drawn(negative, &History::new(&[TokenId(0), TokenId(1)])), 0);
}

#[test]
fn a_parameter_outside_its_range_is_named() {
    let wrong = |config: SamplerConfig| match Sampler::new(config, 1, []) {
        Err(SamplerError::Parameter { name, .. }) => name,
        other => panic!("{other:?}"),
    };
    for bad in [-1.0, f32::NAN, f32::INFINITY, 1000.0] {
        assert_eq!(wrong(SamplerConfig { temperature: bad, ..plain() }), "temperature");
        assert_eq!(wrong(SamplerConfig { top_p: bad, ..plain() }), "top_p");
        assert_eq!(wrong(SamplerConfig { min_p: bad, ..plain() }), "min_p");
        assert_eq!(wrong(SamplerConfig { repetition_penalty: bad, ..plain() }), "repetition_penalty");
    }
    for bad in [f32::NAN, f32::NEG_INFINITY, 1000.0] {
        assert_eq!(wrong(SamplerConfig { presence_penalty: bad, ..plain() }), "presence_penalty");
        assert_eq!(wrong(SamplerConfig { frequency_penalty: bad, ..plain() }), "frequency_penalty");
    }
    let error = Sampler::new(SamplerConfig { temperature: -1.0, ..plain() }, 1, []).unwrap_err();
    assert_eq!(error.to_string(), "`temperature` is -1; it must be 0 to 100");
}

#[test]
fn broken_logits_are_errors() {
    let mut sampler = sampler(plain(), 2);
    let mut sample = |logits: &[f32]| sampler.sample(logits, &History::default(), at(0));
    assert!(matches!(sample(&[0.0, f32::NAN]), Err(SamplerError::NotFinite { token: 1, .. })));
    assert!(matches!(sample(&[f32::INFINITY, 0.0]), Err(SamplerError::NotFinite { token: 0, .. })));
    assert_eq!(sample(&[0.0]), Err(SamplerError::LogitsLength { found: 1, expected: 2 }));
    assert_eq!(sample(&[f32::NEG_INFINITY; 2]), Err(SamplerError::NothingLeft));
}

#[test]
fn buffers_are_reused() {
    let logits = vec![1.0; 5000];
    let mut sampler = sampler(SamplerConfig { top_k: 40, ..plain() }, 5000);
    let mut draw = |position| {
        sampler.sample(&logits, &History::default(), at(position)).unwrap();
        (sampler.candidates.as_ptr(), sampler.candidates.capacity())
    };
    let first = draw(0);
    assert!((1..100).all(|position| draw(position) == first));
}

#[test]
fn logprobs_are_the_models_own_and_sum_to_at_most_one() {
    let logits = [1.0, 3.0, f32::NEG_INFINITY, 2.0, 3.0];
    let mut top = Vec::new();
    top_logprobs(&logits, 10, &mut top).unwrap();
    let order: Vec<u32> = top.iter().map(|entry| entry.token.0).collect();
    assert_eq!(order, [1, 4, 3, 0, 2]);
    let sum: f64 = top.iter().map(|entry| entry.logprob.exp()).sum();
    assert!((sum - 1.0).abs() < 1e-12);
    top_logprobs(&logits, 2, &mut top).unwrap();
    assert_eq!(top.len(), 2);
    assert_eq!(top[0].logprob, logprob(&logits, TokenId(1)).unwrap());
    top_logprobs(&logits, 0, &mut top).unwrap();
    assert!(top.is_empty());
    assert!(logprob(&logits, TokenId(5)).is_err());
    assert_eq!(logprob(&[7.0], TokenId(0)).unwrap(), 0.0);
}

/// What was asked for is counted, sorted and at most 0, whatever a sampler would do with the same logits.
#[test]
fn logprobs_do_not_depend_on_how_a_token_is_drawn() {
    let logits: Vec<f32> = (0..40u16).map(|i| f32::from(i * 7 % 40) / 4.0 - 3.0).collect();
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    let penalties = SamplerConfig { repetition_penalty: 2.0, presence_penalty: 1.0, ..plain() };
    let ways = [
        SamplerConfig { top_k: 1, ..plain() },
        SamplerConfig { top_p: 0.1, ..plain() },
        SamplerConfig { min_p: 0.9, ..plain() },
        SamplerConfig { temperature: 0.5, ..plain() },
        SamplerConfig { temperature: 2.0, ..plain() },
        SamplerConfig::greedy(),
        penalties,
    ];
    for config in ways {
        let mut sampler = sampler(config, logits.len());
        let drawn = sampler.sample(&logits, &History::new(&[TokenId(1)]), at(5)).unwrap();
        let own = logprob(&logits, drawn).unwrap();
        assert!((own - (f64::from(logits[drawn.idx()]).exp() / sum).ln()).abs() < 1e-12);
        let mut top = Vec::new();
        for n in [0, 1, 10, 40, 100] {
            top_logprobs(&logits, n, &mut top).unwrap();
            assert_eq!(top.len(), n.min(logits.len()));
            assert!(top.iter().all(|entry| entry.logprob <= 0.0));
            assert!(top.is_sorted_by(|a, b| a.logprob >= b.logprob));
            assert!(top.iter().map(|entry| entry.logprob.exp()).sum::<f64>() <= 1.0 + 1e-12);
            assert!(top.iter().all(|entry| entry.token != drawn || entry.logprob == own));
        }
    }
    let greedy_on = |temperature| SamplerConfig { temperature, ..plain() };
    assert!(Sampler::new(greedy_on(-1.0), 1, []).is_err(), "below 0 there is no temperature");
}
