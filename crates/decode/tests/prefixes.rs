//! Conversations that lose their seat are kept in memory and go on bit for bit.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::num::NonZeroUsize;

use forerun_decode::config::{CheckpointConfig, DraftChoice, SequenceConfig};
use forerun_decode::{
    BackendChoice, Batch, BatchEvent, Engine, EngineConfig, Generation, GenerationConfig, PrefixConfig,
    PrefixDisk, Session, Ticket,
};
use forerun_model::TokenId;
use proptest::prelude::*;
use support::conversations::{Said, alone, how, say, turn};
use support::{config, extra, fixture};

fn checkpoints(n_max: usize) -> CheckpointConfig {
    CheckpointConfig { n_max, every: None, is_asked: true }
}

fn tiny(n_checkpoints: usize, prefix_mib: u64) -> EngineConfig {
    let base = config(&fixture("tiny-b-q3_k_m.gguf"), BackendChoice::Cpu);
    EngineConfig { checkpoints: checkpoints(n_checkpoints), prefix_bytes: prefix_mib << 20, ..base }
}

fn batch(config: &EngineConfig) -> Batch {
    Batch::new(Engine::open(config).unwrap())
}

/// The prompt of the next turn, with the answer as the session holds it, or without it.
fn next(prompt: &[TokenId], said: &Said, seed: u32) -> Vec<TokenId> {
    [prompt, &said.tokens, &turn(seed, 7)].concat()
}

/// Two conversations in one seat, each of two turns; the second turns must be what an engine without memory says.
fn check(model: &str, backend: BackendChoice, n_checkpoints: usize, draft: DraftChoice) {
    let (context, always_drafts) = (Some(200), !matches!(draft, DraftChoice::None | DraftChoice::Ngram));
    let base = EngineConfig { context, draft, draft_length: Some(3), ..config(&fixture(model), backend) };
    let config =
        EngineConfig { checkpoints: checkpoints(n_checkpoints), prefix_bytes: 64 << 20, ..base.clone() };
    let mut batch = batch(&config);
    let (first, other) = (turn(1, 70), turn(2, 75));
    let said = say(&mut batch, &first, &how(1, 12));
    let others = say(&mut batch, &other, &how(2, 12));
    let second = next(&first, &said, 5);
    let again = say(&mut batch, &second, &how(3, 12));
    let held = first.len() + said.tokens.len() - 1;
    assert_eq!((said.n_reused, others.n_reused), (0, 0), "{model}");
    assert!(again.n_reused >= held, "{model}: {} of {held} tokens", again.n_reused);
    assert!(again.n_drafted > 0 || !always_drafts, "{model}: a drafter goes on behind what was restored");
    // Otherwise after the prompt: from where its states were kept.
    let otherwise = [&other[..], &turn(6, 9)].concat();
    let branch = say(&mut batch, &otherwise, &how(4, 12));
    let kept = if n_checkpoints > 0 || model.contains("qwen3moe") { other.len() } else { 0 };
    assert!(branch.n_reused == kept || branch.n_reused == kept + 1, "{model}: {}", branch.n_reused);
    let want = [(&first, 1), (&other, 2), (&second, 3), (&otherwise, 4)];
    for ((prompt, seed), found) in want.into_iter().zip([said, others, again, branch]) {
        let want = alone(&EngineConfig { draft: DraftChoice::None, ..base.clone() }, prompt, &how(seed, 12));
        assert_eq!(found.pieces, want, "{model}, {n_checkpoints} checkpoints, answer {seed}");
    }
}

#[test]
fn a_conversation_that_lost_its_seat_goes_on_bit_for_bit() {
    for (model, backend) in [
        ("tiny-a-f32.gguf", BackendChoice::EXACT),
        ("tiny-b-q3_k_m.gguf", BackendChoice::Cpu),
        ("pico-q4_k_m.gguf", BackendChoice::Cpu),
        ("architectures/qwen3moe-f32.gguf", BackendChoice::EXACT),
    ] {
        check(model, backend, 0, DraftChoice::None);
        check(model, backend, 2, DraftChoice::Ngram);
    }
}

#[test]
fn drafters_that_need_states_go_on_behind_what_was_restored() {
    for n_checkpoints in [0, 2] {
        check("tiny-a-f32.gguf", BackendChoice::Cpu, n_checkpoints, DraftChoice::Mtp);
        if let Some(file) = extra("models/pico/pico-dspark-bf16.gguf") {
            check("pico-q4_k_m.gguf", BackendChoice::Cpu, n_checkpoints, DraftChoice::File(file));
        }
    }
}

/// The test above would see a state that isn't the conversation's.
#[test]
fn another_conversations_answer_is_another() {
    let config = tiny(0, 0);
    let (a, b) = (turn(1, 70), turn(2, 70));
    assert_ne!(alone(&config, &a, &how(1, 12)), alone(&config, &b, &how(1, 12)));
}

#[test]
fn without_memory_nothing_is_kept() {
    let mut batch = batch(&tiny(1, 0));
    let first = turn(1, 80);
    let said = say(&mut batch, &first, &how(1, 5));
    say(&mut batch, &turn(2, 80), &how(1, 5));
    assert_eq!(say(&mut batch, &next(&first, &said, 3), &how(1, 5)).n_reused, 0);
    assert_eq!(batch.prefix_stats(), forerun_decode::PrefixStats::default());
}

/// What was used longest ago makes room, and the bytes stay within the plan's.
#[test]
fn the_oldest_makes_room() {
    let mut batch = batch(&tiny(1, 12));
    let n = 12;
    let prompts: Vec<_> = (0..n).map(|i| turn(i, 150)).collect();
    let mut said = Vec::new();
    for prompt in &prompts {
        said.push(say(&mut batch, prompt, &how(1, 4)));
        assert!(batch.prefix_stats().bytes <= 12 << 20);
    }
    let stats = batch.prefix_stats();
    assert!(stats.entries > 1 && stats.entries < prompts.len() - 1, "{stats:?}");
    let reused =
        |batch: &mut Batch, i: usize| say(batch, &next(&prompts[i], &said[i], 99), &how(1, 2)).n_reused;
    let last = prompts.len() - 2;
    assert!(reused(&mut batch, last) > 150);
    assert_eq!(reused(&mut batch, 0), 0, "the first was forgotten");
}

/// A conversation of many turns takes the room of one, and can still be gone back in.
#[test]
fn a_longer_conversation_takes_the_place_of_its_beginning() {
    let mut batch = batch(&tiny(2, 32));
    let mut prompt = turn(1, 80);
    let mut turns = Vec::new();
    for i in 0..4 {
        let said = say(&mut batch, &prompt, &how(1, 6));
        turns.push(prompt.clone());
        prompt = next(&prompt, &said, 20 + i);
        say(&mut batch, &turn(2, 70 + i), &how(1, 3));
    }
    let own = |batch: &Batch| batch.prefix_stats().entries;
    let before = own(&batch);
    let said = say(&mut batch, &prompt, &how(1, 6));
    assert!(said.n_reused > turns[3].len());
    say(&mut batch, &turn(3, 70), &how(1, 3));
    assert!(own(&batch) <= before + 1, "no second entry of the same conversation");
    // The end of the turn before the last.
    let back = [&turns[3][..], &turn(9, 9)].concat();
    let branch = say(&mut batch, &back, &how(5, 6));
    assert_eq!(branch.n_reused, turns[3].len());
    assert_eq!(branch.pieces, alone(&tiny(0, 0), &back, &how(5, 6)));
}

/// Short talk isn't worth the copy.
#[test]
fn a_few_tokens_are_not_kept() {
    let mut batch = batch(&tiny(1, 16));
    say(&mut batch, &turn(1, 30), &how(1, 5));
    say(&mut batch, &turn(2, 30), &how(1, 5));
    assert_eq!(batch.prefix_stats().entries, 0);
}

#[test]
fn the_plan_counts_what_is_kept() {
    let [with, without] =
        [tiny(1, 16), tiny(1, 0)].map(|config| Engine::open(&config).unwrap().plan().clone());
    assert_eq!((with.prefixes, without.prefixes), (16 << 20, 0));
    assert_eq!(with.total(), without.total() + (16 << 20));
    assert!(with.to_string().contains("prefixes") && !without.to_string().contains("prefixes"));
    let telemetry = forerun_decode::telemetry::Memory::of(&with, None);
    assert_eq!(telemetry.prefixes, 16 << 20);
}

/// A prompt that is refused after its conversation was restored leaves a batch that works.
#[test]
fn a_refused_prompt_disturbs_nobody() {
    let config = EngineConfig { context: Some(160), ..tiny(1, 16) };
    let mut batch = batch(&config);
    let first = turn(1, 100);
    let said = say(&mut batch, &first, &how(1, 5));
    say(&mut batch, &turn(2, 80), &how(1, 5));
    let long = [&next(&first, &said, 3)[..], &turn(4, 100)].concat();
    assert!(batch.admit(long, &GenerationConfig::default()).is_err());
    let second = next(&first, &said, 3);
    let again = say(&mut batch, &second, &how(2, 5));
    assert!(again.n_reused >= first.len());
    assert_eq!(again.pieces, alone(&config, &second, &how(2, 5)));
}

/// A conversation of several turns.
struct Talk {
    /// What its user says, turn after turn.
    turns: Vec<Vec<TokenId>>,
    /// The prompt under way or next.
    prompt: Vec<TokenId>,
    ticket: Option<Ticket>,
    n_done: usize,
}

impl Talk {
    fn how(&self, i: usize) -> GenerationConfig {
        GenerationConfig { logprobs: None, ..how((10 * i + self.n_done) as u64, 3 + (i + self.n_done) % 5) }
    }
}

/// More conversations than seats, whoever comes next: every answer must be what `alone` says.
fn talk(
    batch: &mut Batch,
    talks: &mut [Talk],
    mut order: u32,
    alone: &mut dyn FnMut(&Talk, usize) -> Vec<TokenId>,
) {
    while talks.iter().any(|talk| talk.n_done < talk.turns.len()) {
        // Another one begins each time.
        order = order.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let n = talks.len();
        let first = (order >> 16) as usize % n;
        for i in (first..first + n).map(|i| i % n) {
            let talk = &mut talks[i];
            if talk.ticket.is_none() && talk.n_done < talk.turns.len() && batch.n_free() > 0 {
                let how = talk.how(i);
                talk.ticket = batch.admit(talk.prompt.clone(), &how).unwrap().map(|admitted| admitted.ticket);
            }
        }
        for _ in 0..order % 50 {
            batch.advance();
        }
        while let Some((ticket, event)) = batch.next_event() {
            let i = talks.iter().position(|talk| talk.ticket == Some(ticket)).unwrap();
            match event {
                BatchEvent::Event(_) => {}
                BatchEvent::Over(report) => {
                    assert_eq!(report.tokens, alone(&talks[i], i), "turn {} of {i}", talks[i].n_done);
                    let talk = &mut talks[i];
                    (talk.ticket, talk.n_done) = (None, talk.n_done + 1);
                    // Some answers are left out of what follows, as a template leaves out thoughts.
                    if !(i + talk.n_done).is_multiple_of(3) {
                        talk.prompt.extend(&report.tokens);
                    }
                    if let Some(turn) = talk.turns.get(talk.n_done) {
                        talk.prompt.extend(turn);
                    }
                }
                BatchEvent::Failed(error) => panic!("{error}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn many_conversations_in_few_seats(
        n_talks in 2usize..6,
        n_turns in 1usize..4,
        n_seats in 1usize..4,
        prefix_mib in prop::sample::select(vec![0u64, 3, 5, 24]),
        n_checkpoints in 0usize..3,
        drafts: bool,
        on_disk: bool,
        order: u32,
    ) {
        let draft = if drafts { DraftChoice::Ngram } else { DraftChoice::None };
        let base = EngineConfig { draft, draft_length: Some(3), context: Some(400), ..tiny(n_checkpoints, 0) };
        let sequences = SequenceConfig { n: NonZeroUsize::new(n_seats).unwrap(), is_asked: true };
        let config = EngineConfig { sequences, prefix_bytes: prefix_mib << 20, ..base.clone() };
        let folder = tempfile::tempdir().unwrap();
        let disk = PrefixDisk {
            folder: folder.path().to_owned(), bytes_max: 6 << 20, write_bytes_max: 40 << 20,
        };
        let disk = Some(disk).filter(|_| on_disk && prefix_mib > 0);
        let mut batch = Batch::with_prefixes(Engine::open(&config).unwrap(), PrefixConfig { disk }).unwrap();
        let mut talks: Vec<Talk> = (0..n_talks).map(|i| {
            let seed = u32::try_from(i).unwrap();
            let common = turn(77, 20 + 30 * (seed % 2));
            let turns: Vec<_> = (0..n_turns).map(|k| turn(seed * 5 + u32::try_from(k).unwrap(), 48)).collect();
            Talk { prompt: [&common[..], &turns[0]].concat(), turns, ticket: None, n_done: 0 }
        }).collect();
        let mut engine = Engine::open(&base).unwrap();
        talk(&mut batch, &mut talks, order, &mut |talk, i| {
            let mut session = Session::new();
            let mut answer =
                Generation::new(&mut engine, &mut session, talk.prompt.clone(), &talk.how(i)).unwrap();
            while answer.next().unwrap().is_some() {}
            answer.finish().tokens
        });
        prop_assert!(batch.prefix_stats().bytes <= prefix_mib << 20);
        prop_assert_eq!(batch.n_free(), n_seats);
    }
}
