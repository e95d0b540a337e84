//! Drafts where there is hardly room for them, where sessions take turns, and where the disk fails.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use forerun_decode::config::{CheckpointConfig, DraftChoice};
use forerun_decode::{
    BackendChoice, Engine, EngineConfig, FinishReason, Generation, GenerationConfig, Logits, MemoryPlan,
    Session, SlotWish,
};
use forerun_model::TokenId;
use support::{config, fixture};

fn tiny(draft: DraftChoice) -> EngineConfig {
    let base = config(&fixture("tiny-a-f32.gguf"), BackendChoice::Cpu);
    EngineConfig { draft, draft_length: Some(7), slots: SlotWish::PerLayer(3), ..base }
}

fn prompt(seed: u32, n: u32) -> Vec<TokenId> {
    (0..n).map(|i| TokenId((seed + i * 37) % 500)).collect()
}

/// The tokens of an answer and why it ended.
fn answer(
    engine: &mut Engine,
    session: &mut Session,
    prompt: &[TokenId],
    max_tokens: usize,
) -> (Vec<TokenId>, FinishReason) {
    let how = GenerationConfig { max_tokens: Some(max_tokens), ..GenerationConfig::default() };
    let mut generation = Generation::new(engine, session, prompt.to_vec(), &how).unwrap();
    while generation.next().unwrap().is_some() {}
    let report = generation.finish();
    (report.tokens, report.finish_reason)
}

#[test]
fn a_context_or_an_answer_ends_inside_a_draft_as_it_does_without() {
    for (context, max_tokens) in [(30, 100), (25, 100), (200, 1), (200, 2), (200, 5), (21, 100)] {
        let run = |draft| {
            let config = EngineConfig { context: Some(context), ..tiny(draft) };
            let mut engine = Engine::open(&config).unwrap();
            answer(&mut engine, &mut Session::new(), &prompt(3, 20), max_tokens)
        };
        let want = run(DraftChoice::None);
        for draft in [DraftChoice::Mtp, DraftChoice::Ngram] {
            assert_eq!(
                run(draft.clone()),
                want,
                "{draft:?}, {context} tokens of context, {max_tokens} at most"
            );
        }
    }
}

/// Two conversations take turns on one engine, and go on after being cut back.
#[test]
fn a_drafter_follows_its_sequence_through_cuts_and_changes() {
    for draft in [DraftChoice::Mtp, DraftChoice::Ngram] {
        let mut plain = Engine::open(&tiny(DraftChoice::None)).unwrap();
        let checkpoints = CheckpointConfig { n_max: 2, every: None, is_asked: true };
        let mut engine = Engine::open(&EngineConfig { checkpoints, ..tiny(draft.clone()) }).unwrap();
        let run = |engine: &mut Engine| {
            let (mut a, mut b) = (Session::new(), Session::new());
            let mut said = Vec::new();
            said.push(answer(engine, &mut a, &prompt(1, 12), 10));
            said.push(answer(engine, &mut b, &prompt(200, 30), 10));
            let on = [&prompt(1, 12)[..], &said[0].0, &prompt(77, 3)].concat();
            said.push(answer(engine, &mut a, &on, 12));
            // Goes on otherwise, from a checkpoint where there is one.
            let other = [&on[..14], &prompt(9, 4)].concat();
            said.push(answer(engine, &mut a, &other, 12));
            a.cut_back(engine, 9).unwrap();
            let logits = a.extend(engine, &prompt(5, 6), Logits::Last).unwrap().unwrap().to_vec();
            (said, logits.iter().map(|v| v.to_bits()).collect::<Vec<_>>())
        };
        assert_eq!(run(&mut engine), run(&mut plain), "{draft:?}");
    }
}

/// What was not asked for gives way to a budget, and what was is refused with the plan.
#[test]
fn a_budget_without_room_for_drafts_has_none() {
    let smallest = |draft| match Engine::open(&EngineConfig { budget_bytes: Some(1), ..tiny(draft) }) {
        Err(forerun_decode::DecodeError::Budget { smallest_bytes, plan, .. }) => (smallest_bytes, *plan),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("a byte is no budget"),
    };
    let (none, _) = smallest(DraftChoice::None);
    let (mtp, plan): (u64, MemoryPlan) = smallest(DraftChoice::Mtp);
    assert!(mtp > none && plan.drafter > 0 && plan.draft_rows == 8, "{plan}");
    assert_eq!(smallest(DraftChoice::Auto).0, none);
    let between = EngineConfig { budget_bytes: Some(none), ..tiny(DraftChoice::Auto) };
    let engine = Engine::open(&between).unwrap();
    assert_eq!(engine.plan().drafter, 0);
    let told = engine.decisions();
    assert!(told.iter().any(|d| d.what == "draft" && d.reason.contains("budget")), "{told:?}");
    let enough = EngineConfig { budget_bytes: Some(mtp), ..tiny(DraftChoice::Mtp) };
    assert!(Engine::open(&enough).unwrap().plan().total() <= mtp);
    let asked = EngineConfig { budget_bytes: Some(mtp - 1), ..tiny(DraftChoice::Mtp) };
    assert!(Engine::open(&asked).is_err());
}
