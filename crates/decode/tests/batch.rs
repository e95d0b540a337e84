//! Answers that are made together are what they are alone, whoever comes, goes or fails meanwhile.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use forerun_decode::config::{CheckpointConfig, DraftChoice, SequenceConfig};
use forerun_decode::{
    BackendChoice, Batch, BatchEvent, Engine, EngineConfig, Event, FinishReason, Generation,
    GenerationConfig, Report, SamplerConfig, Session, SlotWish, Ticket,
};
use forerun_model::TokenId;
use proptest::prelude::*;
use support::{config, fixture};

fn tiny() -> EngineConfig {
    config(&fixture("tiny-b-q3_k_m.gguf"), BackendChoice::Cpu)
}

fn of(n: usize, base: EngineConfig) -> EngineConfig {
    let sequences = SequenceConfig { n: NonZeroUsize::new(n).unwrap(), is_asked: true };
    EngineConfig { sequences, ..base }
}

fn prompt(i: u32, len: u32) -> Vec<TokenId> {
    (0..len).map(|k| TokenId((i * 131 + k * (17 + 2 * i)) % 512)).collect()
}

fn how(i: u32) -> GenerationConfig {
    let temperature = [0.0, 0.7, 1.3][i as usize % 3];
    let sampler = SamplerConfig { temperature, seed: i.into(), ..SamplerConfig::default() };
    let max_tokens = Some(6 + 5 * i as usize % 21);
    GenerationConfig { sampler, max_tokens, logprobs: Some(2), ..GenerationConfig::default() }
}

/// The answer to each prompt by itself.
fn alone(prompts: &[Vec<TokenId>]) -> Vec<Report> {
    let mut engine = Engine::open(&tiny()).unwrap();
    let answer = |(prompt, i): (&Vec<TokenId>, u32)| {
        let mut session = Session::new();
        let mut answer = Generation::new(&mut engine, &mut session, prompt.clone(), &how(i)).unwrap();
        while answer.next().unwrap().is_some() {}
        answer.finish()
    };
    prompts.iter().zip(0..).map(answer).collect()
}

/// What a batch has said so far.
#[derive(Default)]
struct Heard {
    texts: BTreeMap<Ticket, String>,
    over: BTreeMap<Ticket, Report>,
    /// The tickets of tokens, in their order.
    order: Vec<Ticket>,
}

impl Heard {
    fn take(&mut self, batch: &mut Batch) {
        while let Some((ticket, event)) = batch.next_event() {
            match event {
                BatchEvent::Event(Event::Text(piece)) => {
                    self.texts.entry(ticket).or_default().push_str(&piece.text);
                    self.order.push(ticket);
                }
                BatchEvent::Event(Event::Prompt { .. }) => {}
                BatchEvent::Over(report) => assert!(self.over.insert(ticket, *report).is_none()),
                BatchEvent::Failed(error) => panic!("{error}"),
            }
        }
    }
}

fn together(config: &EngineConfig, prompts: &[Vec<TokenId>], stagger: usize) -> Vec<Report> {
    let mut batch = Batch::new(Engine::open(config).unwrap());
    let (mut heard, mut tickets, mut n_layers) = (Heard::default(), Vec::new(), 0);
    loop {
        while tickets.len() < prompts.len() && n_layers >= stagger * tickets.len() {
            let i = tickets.len();
            let Some(admitted) = batch.admit(prompts[i].clone(), &how(u32::try_from(i).unwrap())).unwrap()
            else {
                break;
            };
            tickets.push(admitted.ticket);
        }
        let worked = batch.advance();
        n_layers += 1;
        heard.take(&mut batch);
        if !worked && tickets.len() == prompts.len() {
            break;
        }
    }
    assert_eq!(batch.n_free(), batch.n_seats());
    tickets.iter().map(|ticket| heard.over.remove(ticket).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn answers_made_together_are_those_made_alone(
        lens in prop::collection::vec(1u32..90, 1..7),
        n_seats in 1usize..5,
        stagger in 0usize..40,
        slots in 0usize..3,
        drafts: bool,
    ) {
        let prompts: Vec<_> = (0..).zip(&lens).map(|(i, &len)| prompt(i, len)).collect();
        let slots = [SlotWish::PerLayer(0), SlotWish::PerLayer(4), SlotWish::Fill][slots];
        let draft = if drafts { DraftChoice::Ngram } else { DraftChoice::None };
        let config = of(n_seats, EngineConfig { slots, draft, draft_length: Some(3), ..tiny() });
        let found = together(&config, &prompts, stagger);
        for (found, want) in found.iter().zip(alone(&prompts)) {
            prop_assert_eq!(&found.tokens, &want.tokens);
            prop_assert_eq!(found.finish_reason, want.finish_reason);
        }
    }
}

/// A long prompt is read while another answer goes on: both as alone, and neither waits for the other's end.
#[test]
fn an_answer_goes_on_while_a_prompt_is_read() {
    let prompts = [prompt(0, 3), prompt(1, 1500)];
    let context = Some(2048);
    let mut batch = Batch::new(Engine::open(&of(2, EngineConfig { context, ..tiny() })).unwrap());
    let mut heard = Heard::default();
    let endless = GenerationConfig { max_tokens: Some(400), ..GenerationConfig::default() };
    let first = batch.admit(prompts[0].clone(), &endless).unwrap().unwrap().ticket;
    while heard.order.len() < 3 {
        batch.advance();
        heard.take(&mut batch);
    }
    let second = batch.admit(prompts[1].clone(), &endless).unwrap().unwrap().ticket;
    while batch.advance() {
        heard.take(&mut batch);
    }
    heard.take(&mut batch);
    let began = heard.order.iter().position(|ticket| *ticket == second).unwrap();
    assert!(began > 4, "the first answer went on while the second prompt was read: {began}");
    assert!(heard.order[began..].contains(&first) || heard.over[&first].tokens.len() < 400);
    let mut engine = Engine::open(&EngineConfig { context, ..tiny() }).unwrap();
    for (prompt, ticket) in prompts.iter().zip([first, second]) {
        let mut session = Session::new();
        let mut answer = Generation::new(&mut engine, &mut session, prompt.clone(), &endless).unwrap();
        while answer.next().unwrap().is_some() {}
        assert_eq!(answer.finish().tokens, heard.over[&ticket].tokens);
    }
}

/// Whoever leaves, at whatever layer, frees a seat and disturbs nobody.
#[test]
fn those_who_leave_disturb_nobody() {
    let prompts: Vec<_> = (0..3).map(|i| prompt(i, 40 + i)).collect();
    let want = alone(&prompts);
    let mut batch = Batch::new(Engine::open(&of(3, tiny())).unwrap());
    for leaves_at in (0..60).step_by(7) {
        let mut heard = Heard::default();
        let admit = |batch: &mut Batch, i: usize| {
            let config = how(u32::try_from(i).unwrap());
            batch.admit(prompts[i].clone(), &config).unwrap().unwrap().ticket
        };
        let tickets: Vec<_> = (0..3).map(|i| admit(&mut batch, i)).collect();
        assert!(batch.admit(prompts[0].clone(), &how(0)).unwrap().is_none(), "all seats are taken");
        let mut n_layers = 0;
        loop {
            if n_layers == leaves_at {
                batch.cancel(tickets[1]);
            }
            n_layers += 1;
            let worked = batch.advance();
            heard.take(&mut batch);
            if !worked {
                break;
            }
        }
        assert_eq!(batch.n_free(), 3, "left at layer {leaves_at}");
        for i in [0, 2] {
            assert_eq!(heard.over[&tickets[i]].tokens, want[i].tokens, "left at layer {leaves_at}");
        }
        let left = &heard.over[&tickets[1]];
        assert!(want[1].tokens.starts_with(&left.tokens));
        assert!(left.finish_reason == FinishReason::Interrupted || left.tokens == want[1].tokens);
    }
}

/// An answer that is alone is gone at the next layer.
#[test]
fn who_is_alone_leaves_at_once() {
    let mut batch = Batch::new(Engine::open(&of(2, tiny())).unwrap());
    for n_layers in [0, 1, 5, 30] {
        let ticket = batch.admit(prompt(1, 50), &GenerationConfig::default()).unwrap().unwrap().ticket;
        for _ in 0..n_layers {
            assert!(batch.advance());
        }
        batch.cancel(ticket);
        assert_eq!(batch.n_free(), 2, "after {n_layers} layers");
        assert!(!batch.advance(), "nothing is left to do");
    }
}

/// The next turn of a conversation finds its seat again, and reads only what is new.
#[test]
fn a_conversation_finds_its_seat() {
    let checkpoints = CheckpointConfig { n_max: 1, every: None, is_asked: true };
    let mut batch = Batch::new(Engine::open(&of(2, EngineConfig { checkpoints, ..tiny() })).unwrap());
    let run = |batch: &mut Batch, prompt: &[TokenId]| {
        let config = GenerationConfig { max_tokens: Some(8), ..GenerationConfig::default() };
        let admitted = batch.admit(prompt.to_vec(), &config).unwrap().unwrap();
        let mut heard = Heard::default();
        while batch.advance() {
            heard.take(batch);
        }
        heard.take(batch);
        (admitted.n_reused, heard.over.remove(&admitted.ticket).unwrap().tokens)
    };
    let (first, other) = (prompt(0, 60), prompt(1, 50));
    let (n, said) = run(&mut batch, &first);
    assert_eq!(n, 0);
    assert_eq!(run(&mut batch, &other).0, 0);
    // All but the last token that was said are held.
    let next = [&first[..], &said, &prompt(3, 5)].concat();
    assert!(run(&mut batch, &next).0 >= first.len() + said.len() - 1);
    // Cut back to the end of the prompt where the answer goes on otherwise.
    assert_eq!(run(&mut batch, &[&other[..], &prompt(4, 5)].concat()).0, other.len());
}

/// Seats that nobody asked for give way where a budget would lose many slots to them.
#[test]
fn seats_that_nobody_asked_for_give_way() {
    let wish = |is_asked| SequenceConfig { n: NonZeroUsize::new(4).unwrap(), is_asked };
    let open = |budget, sequences| {
        let (budget_bytes, context) = (Some(budget), Some(2048));
        let base = config(&fixture("pico-q4_k_m.gguf"), BackendChoice::Cpu);
        Engine::open(&EngineConfig { budget_bytes, context, sequences, ..base })
    };
    let roomy = open(200 << 20, wish(false)).unwrap();
    assert_eq!(roomy.n_sequences(), 4);
    let tight = open(34 << 20, wish(false)).unwrap();
    assert!(tight.n_sequences() < 4);
    assert!(tight.decisions().iter().any(|decision| decision.what == "conversations"));
    match open(34 << 20, wish(true)) {
        Ok(engine) => assert_eq!(engine.n_sequences(), 4),
        Err(error) => assert!(error.to_string().contains("budget"), "{error}"),
    }
}

/// Whoever leaves, alone or not, while somebody's prompt is put aside, leaves a seat that the next one can have at once.
#[test]
fn a_seat_left_while_a_prompt_waits_is_free() {
    let context = Some(2048);
    let endless = GenerationConfig { max_tokens: Some(300), ..GenerationConfig::default() };
    for n_speakers in [1, 2] {
        for n_layers in [1, 3] {
            let base = EngineConfig { context, ..tiny() };
            let mut batch = Batch::new(Engine::open(&of(n_speakers + 1, base)).unwrap());
            let mut heard = Heard::default();
            let admit = |batch: &mut Batch, i: u32, len: u32| {
                batch.admit(prompt(i, len), &endless).unwrap().unwrap().ticket
            };
            let speakers: Vec<_> =
                (0..n_speakers).map(|i| admit(&mut batch, u32::try_from(i).unwrap(), 3)).collect();
            while heard.order.len() < 3 * n_speakers {
                batch.advance();
                heard.take(&mut batch);
            }
            let reader = admit(&mut batch, 5, 1500);
            // The prompt's step begins; then one of those who speak runs with it aside.
            let n_said = heard.order.len();
            while heard.order.len() < n_said + n_speakers {
                batch.advance();
                heard.take(&mut batch);
            }
            (0..n_layers).for_each(|_| assert!(batch.advance()));
            batch.cancel(speakers[0]);
            while batch.n_free() == 0 {
                batch.advance();
                heard.take(&mut batch);
            }
            let next = admit(&mut batch, 7, 40);
            while !heard.over.contains_key(&next) {
                assert!(batch.advance());
                heard.take(&mut batch);
            }
            assert_ne!(heard.over[&next].finish_reason, FinishReason::Interrupted);
            batch.cancel(reader);
        }
    }
}
