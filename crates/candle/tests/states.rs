//! What a sequence remembers doesn't depend on how its tokens came in: in which steps, beside whom, with which experts first,
//! with what was rejected, abandoned, saved or put aside on the way.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use forerun_candle::CandleStack;
use forerun_compute::{Backend, Checkpoint, KvType, Part, SequenceIdx, StackConfig, Step, Taps};
use forerun_model::{LayerId, Routing};
use proptest::prelude::*;
use support::{CONFIG, Driver, HYBRID, N_VOCAB, Order, RECIPES, check_same, devices, part, rows, text};

#[test]
fn steps_company_and_order_change_no_bit() {
    for recipe in RECIPES {
        let mut driver = Driver::new(recipe);
        let tokens = text(1, 33);
        for device in devices() {
            driver.order = Order::Ascending;
            let want = driver.run(&mut recipe.stack(device), 0, 0, &tokens, 33);
            driver.order = Order::Descending;
            let mut stack = recipe.stack(device);
            let other = driver.run(&mut stack, 1, 0, &text(2, 20), 20);
            assert_eq!(other.len(), 20 * N_VOCAB);
            for chunk in [1, 7, 32] {
                let found = driver.run(&mut stack, 2, 0, &tokens, chunk);
                check_same(device, &found, &want, &format!("{recipe:?} in steps of {chunk}"));
            }
            // Two sequences in one step, the other one's rows first.
            let parts = [part(1, 20, 4), part(0, 0, 33)];
            let all = [rows(20, &text(3, 4)), rows(0, &tokens)].concat();
            let output = driver.step(&mut stack, &Step { parts: &parts, rows: &all }).unwrap();
            check_same(device, &output.logits[4 * N_VOCAB..], &want, "beside another sequence");
            stack.accept(1, 33).unwrap();
            stack.accept(0, 4).unwrap();
            let parts = [part(0, 33, 2), part(1, 24, 2)];
            let all = [rows(33, &[4, 5]), rows(24, &[6, 7])].concat();
            let both = driver.step(&mut stack, &Step { parts: &parts, rows: &all }).unwrap().logits;
            let mut alone = recipe.stack(device);
            driver.run(&mut alone, 0, 0, &tokens, 33);
            check_same(device, &both[..2 * N_VOCAB], &driver.run(&mut alone, 0, 33, &[4, 5], 2), "going on");
        }
    }
}

#[test]
fn rejected_rows_leave_nothing() {
    let mut driver = Driver::new(HYBRID);
    let (tokens, end) = (text(4, 20), text(5, 6));
    for device in devices() {
        let mut plain = HYBRID.stack(device);
        driver.run(&mut plain, 0, 0, &tokens, 20);
        let want = driver.run(&mut plain, 0, 20, &end, 6);
        for accepted in [0, 1, 3, 8] {
            let mut stack = HYBRID.stack(device);
            driver.run(&mut stack, 0, 0, &tokens[..12], 12);
            let guess = Part { may_reject: true, ..part(0, 12, 8) };
            let mut guessed = tokens[12..12 + accepted].to_vec();
            guessed.extend(text(6, 8 - accepted));
            // Beside rows that are kept, whose log must not be mixed up with it.
            let (parts, others) = ([part(1, 0, 3), guess], rows(0, &text(7, 3)));
            let all = [others, rows(12, &guessed)].concat();
            driver.step(&mut stack, &Step { parts: &parts, rows: &all }).unwrap();
            stack.accept(1, accepted).unwrap();
            stack.accept(0, 3).unwrap();
            let rest = &tokens[12 + accepted..];
            if !rest.is_empty() {
                driver.run(&mut stack, 0, 12 + accepted, rest, 20);
            }
            let found = driver.run(&mut stack, 0, 20, &end, 6);
            check_same(device, &found, &want, &format!("{accepted} of 8 accepted"));
        }
    }
}

#[test]
fn a_step_that_is_given_up_changes_nothing() {
    let mut driver = Driver::new(HYBRID);
    let (tokens, end) = (text(8, 12), text(9, 5));
    for device in devices() {
        let mut stack = HYBRID.stack(device);
        driver.run(&mut stack, 0, 0, &tokens, 12);
        let step_part = part(0, 12, 5);
        let given_up = rows(12, &text(10, 5));
        for n_layers in 0..=3 {
            stack.begin(&Step::of(&step_part, &given_up)).unwrap();
            (0..n_layers).for_each(|layer| driver.layer(&mut stack, LayerId(layer)).unwrap());
        }
        let mut routing = Routing::default();
        stack.begin(&Step::of(&step_part, &given_up)).unwrap();
        stack.mix_route(LayerId(0), &mut routing).unwrap();
        // Finished, and not accepted.
        driver.step(&mut stack, &Step::of(&step_part, &given_up)).unwrap();
        let found = driver.run(&mut stack, 0, 12, &end, 5);
        let mut plain = HYBRID.stack(device);
        driver.run(&mut plain, 0, 0, &tokens, 12);
        check_same(device, &found, &driver.run(&mut plain, 0, 12, &end, 5), "after steps that were given up");
        // From the start, without having accepted.
        driver.step(&mut stack, &Step::of(&part(0, 0, 5), &given_up)).unwrap();
        let error = stack.begin(&Step::of(&part(0, 17, 1), &rows(17, &[1]))).unwrap_err().to_string();
        assert!(error.contains("holds 0"), "{error}");
    }
}

#[test]
fn a_sequence_goes_back_to_a_checkpoint() {
    let mut driver = Driver::new(HYBRID);
    let (tokens, end) = (text(11, 10), text(12, 7));
    for device in devices() {
        let mut stack = HYBRID.stack(device);
        driver.run(&mut stack, 0, 0, &tokens, 10);
        let mut checkpoint = Checkpoint::default();
        stack.save(SequenceIdx(0), &mut checkpoint).unwrap();
        assert_eq!(4 * checkpoint.values.len() as u64, Checkpoint::bytes(&HYBRID.shape()));
        let want = driver.run(&mut stack, 0, 10, &end, 7);
        stack.begin(&Step::of(&part(0, 17, 1), &rows(17, &[1]))).unwrap();
        stack.restore(SequenceIdx(0), &checkpoint).unwrap();
        check_same(device, &driver.run(&mut stack, 0, 10, &end, 7), &want, "again");
        let mut later = Checkpoint::default();
        stack.save(SequenceIdx(0), &mut later).unwrap();
        stack.restore(SequenceIdx(0), &checkpoint).unwrap();
        assert!(stack.restore(SequenceIdx(0), &later).is_err(), "it holds fewer tokens");
        check_same(device, &driver.run(&mut stack, 0, 10, &end, 7), &want, "after what was refused");
    }
}

fn saved(stack: &CandleStack, sequence: usize, n: usize) -> (Checkpoint, Vec<u8>) {
    let (mut checkpoint, mut bytes) = (Checkpoint::default(), Vec::new());
    stack.save(SequenceIdx(sequence), &mut checkpoint).unwrap();
    stack.save_rows(SequenceIdx(sequence), 0..n, &mut bytes).unwrap();
    (checkpoint, bytes)
}

#[test]
fn what_is_saved_goes_on_elsewhere() {
    let mut driver = Driver::new(HYBRID);
    let (tokens, end) = (text(13, 70), text(14, 4));
    for kv in [KvType::F32, KvType::F16] {
        let config = StackConfig { kv, ..CONFIG };
        for device in devices() {
            let stack = || HYBRID.stack_with(config, Taps::default(), device);
            let mut first = stack();
            driver.run(&mut first, 0, 0, &tokens, 35);
            let (checkpoint, bytes) = saved(&first, 0, 70);
            assert_eq!(bytes.len() as u64, config.bytes(&HYBRID.shape()).kv / (3 * 80) * 70);
            let mut some = Vec::new();
            first.save_rows(SequenceIdx(0), 3..66, &mut some).unwrap();
            let token = bytes.len() / 70;
            assert_eq!(some, bytes[3 * token..66 * token], "token by token");
            let want = driver.run(&mut first, 0, 70, &end, 4);

            let mut other = stack();
            driver.run(&mut other, 2, 0, &text(15, 9), 9);
            let mut rows_and_more = bytes.clone();
            rows_and_more.extend([1, 2, 3]);
            let mut rest = &rows_and_more[..];
            other.load(SequenceIdx(2), &checkpoint, &mut rest).unwrap();
            assert_eq!(rest, [1, 2, 3], "no byte more");
            let (there, moved) = saved(&other, 2, 70);
            assert_eq!((there.len, there.values, moved), (70, checkpoint.values.clone(), bytes.clone()));
            check_same(device, &driver.run(&mut other, 2, 70, &end, 4), &want, "in another stack");

            // Cut short, it holds nothing.
            assert!(other.load(SequenceIdx(2), &checkpoint, &mut &bytes[1..]).is_err());
            let again = driver.run(&mut other, 2, 0, &tokens, 35);
            check_same(device, &again, &driver.run(&mut stack(), 1, 0, &tokens, 35), "from the start");
        }
    }
}

#[test]
fn a_step_is_taken_up_where_it_was_put_aside() {
    let mut driver = Driver::new(HYBRID);
    let (long, short) = (text(16, 30), text(17, 6));
    for device in devices() {
        let mut stack = HYBRID.stack(device);
        let want = driver.run(&mut stack, 0, 0, &long, 30);
        let want_short = driver.run(&mut stack, 1, 0, &short, 6);
        let mut stack = HYBRID.stack(device);
        let long_part = part(0, 0, 30);
        stack.begin(&Step::of(&long_part, &rows(0, &long))).unwrap();
        driver.layer(&mut stack, LayerId(0)).unwrap();
        stack.exchange();
        let refused = stack.begin(&Step::of(&part(0, 0, 1), &rows(0, &[1]))).unwrap_err().to_string();
        assert!(refused.contains("put aside"), "{refused}");
        let refused = stack.begin(&Step::of(&part(1, 0, 9), &rows(0, &text(1, 9)))).unwrap_err();
        assert!(refused.to_string().contains("1 to 8"), "{refused}");
        let found = driver.run(&mut stack, 1, 0, &short[..4], 4);
        check_same(device, &found, &want_short[..4 * N_VOCAB], "the short step");
        stack.exchange();
        driver.layer(&mut stack, LayerId(1)).unwrap();
        stack.exchange();
        let found = driver.run(&mut stack, 1, 4, &short[4..], 2);
        check_same(device, &found, &want_short[4 * N_VOCAB..], "another short step");
        stack.exchange();
        driver.layer(&mut stack, LayerId(2)).unwrap();
        let mut output = forerun_compute::StepOutput::default();
        stack.finish(&mut output).unwrap();
        check_same(device, &output.logits, &want, "the long step");
    }
}

#[derive(Clone, Debug)]
enum Move {
    /// So many tokens in a step, of which so many are accepted.
    Read(usize, usize),
    /// A step is begun and some of its layers run.
    GiveUp(usize),
    Save,
    Restore,
    /// To the other sequence.
    Over,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        6 => (1_usize..9, 0_usize..9).prop_map(|(n, k)| Move::Read(n, k.min(n))),
        1 => (0_usize..3).prop_map(Move::GiveUp),
        1 => Just(Move::Save),
        1 => Just(Move::Restore),
        1 => Just(Move::Over),
    ];
    prop::collection::vec(one, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happened on the way, the next logits are those of the tokens alone.
    #[test]
    fn only_tokens_count(moves in moves(), seed in 0_u32..1000) {
        let mut driver = Driver::new(HYBRID);
        let device = forerun_compute::DeviceName::Cpu;
        let mut stack = HYBRID.stack(device);
        let (mut here, mut held, mut kept) = (0, Vec::<u32>::new(), None::<(Checkpoint, Vec<u32>)>);
        for (i, one) in (0..).zip(&moves) {
            match *one {
                Move::Read(n, accepted) if held.len() + n <= 60 => {
                    let new = text(seed * 100 + i, n);
                    let step = Part { may_reject: true, ..part(here, held.len(), n) };
                    driver.step(&mut stack, &Step::of(&step, &rows(held.len(), &new))).unwrap();
                    stack.accept(0, accepted).unwrap();
                    held.extend(&new[..accepted]);
                }
                Move::Read(..) => {}
                Move::GiveUp(n_layers) => {
                    if !held.is_empty() {
                        let step = part(here, held.len(), 2);
                        stack.begin(&Step::of(&step, &rows(held.len(), &[1, 2]))).unwrap();
                        (0..n_layers).for_each(|l| driver.layer(&mut stack, LayerId(l.try_into().unwrap())).unwrap());
                    }
                }
                Move::Save => {
                    let mut checkpoint = Checkpoint::default();
                    stack.save(SequenceIdx(here), &mut checkpoint).unwrap();
                    kept = Some((checkpoint, held.clone()));
                }
                Move::Restore => {
                    if let Some((checkpoint, tokens)) = &kept {
                        stack.restore(SequenceIdx(here), checkpoint).unwrap();
                        held.clone_from(tokens);
                    }
                }
                Move::Over => {
                    let (checkpoint, bytes) = saved(&stack, here, held.len());
                    here = 1 - here;
                    stack.load(SequenceIdx(here), &checkpoint, &mut &bytes[..]).unwrap();
                }
            }
        }
        let end = text(seed, 3);
        let found = driver.run(&mut stack, here, held.len(), &end, 3);
        let all = [held.clone(), end].concat();
        let want = driver.run(&mut HYBRID.stack(device), 0, 0, &all[..], 40);
        check_same(device, &found, &want[held.len() * N_VOCAB..], "the tokens alone");
    }
}
