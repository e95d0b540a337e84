//! The stack against the reference, and against its own limits.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use forerun_candle::CandleStack;
use forerun_compute::{
    Backend, DeviceName, KvType, Reference, Rounding, Scores, StackConfig, Step, StepOutput, Taps,
};
use forerun_model::{LayerId, LayerKind, QuantType, Routing, Stage};
use support::{
    CONFIG, Driver, HIDDEN, HYBRID, RECIPES, Recipe, devices, difference, part, rows, stream, text,
    usual_difference,
};

fn reference(recipe: &Recipe, config: StackConfig, rounding: Rounding) -> Reference {
    Reference::reference(recipe.weights(), config, rounding)
}

/// Sums in another order, and another `exp`: logits of these models are within 10.
const F32_BOUND: f32 = 2e-4;

#[test]
fn logits_are_those_of_the_reference() {
    for recipe in RECIPES {
        let (tokens, mut driver) = (text(1, 30), Driver::new(recipe));
        let mut twin = reference(&recipe, CONFIG, Rounding::None);
        let want = driver.run(&mut twin, 0, 0, &tokens, 10);
        assert!(want.iter().any(|logit| logit.abs() > 0.5), "logits that say something");
        for device in devices() {
            let found = driver.run(&mut recipe.stack(device), 0, 0, &tokens, 7);
            let off = difference(&found, &want);
            println!("{recipe:?} {device}: off by {off}");
            assert!(off < F32_BOUND, "{recipe:?} {device}: off by {off}");
        }
    }
}

#[test]
fn half_keys_and_values_are_those_of_the_reference() {
    let config = StackConfig { kv: KvType::F16, ..CONFIG };
    let recipe = Recipe { layers: &[LayerKind::Attention, LayerKind::Attention], ..HYBRID };
    let (tokens, mut driver) = (text(2, 40), Driver::new(recipe));
    let want = driver.run(&mut reference(&recipe, config, Rounding::None), 0, 0, &tokens, 40);
    for device in devices() {
        let found = driver.run(&mut recipe.stack_with(config, Taps::default(), device), 0, 0, &tokens, 13);
        let off = difference(&found, &want);
        println!("{device}: off by {off}");
        // A last bit of an f32 may tip a value to the next half float, which is 2^-11 of it away.
        assert!(off < 5e-3, "{device}: off by {off}");
    }
}

/// candle rounds activations to 8 bits for every type of blocks, and GPUs in groups of 32 for all: the reference that rounds
/// likewise is as near as two roundings of the same values are. In most rows, that is: in some, one of the two chooses another expert.
#[test]
fn stored_blocks_are_near_the_reference_that_rounds() {
    for quant in [QuantType::Q8_0, QuantType::Q4_K, QuantType::Q3_K, QuantType::F16, QuantType::BF16] {
        let recipe = Recipe { quant, ..HYBRID };
        let (tokens, mut driver) = (text(3, 20), Driver::new(recipe));
        let want = driver.run(&mut reference(&recipe, CONFIG, Rounding::LikeQuantised), 0, 0, &tokens, 20);
        let exact = driver.run(&mut reference(&recipe, CONFIG, Rounding::None), 0, 0, &tokens, 20);
        let rounding = usual_difference(&want, &exact);
        for device in devices() {
            let found = driver.run(&mut recipe.stack(device), 0, 0, &tokens, 20);
            let off = usual_difference(&found, &want);
            let most = difference(&found, &want);
            println!("{quant} {device}: off by {off}, rounding by {rounding}; at most {most}");
            let bound = if rounding > 0.0 { 2.0 * rounding } else { F32_BOUND };
            assert!(off <= bound, "{quant} {device}: off by {off}, of {rounding} that rounding makes");
        }
    }
}

#[test]
fn taps_and_guesses_are_those_of_the_reference() {
    let taps = Taps { layers: vec![LayerId(0), LayerId(2)], normed: true };
    let mut driver = Driver::new(HYBRID);
    let (tokens, part) = (text(4, 6), part(0, 0, 6));
    let mut wanted = rows(0, &tokens);
    wanted.iter_mut().step_by(2).for_each(|row| row.wants_logits = false);
    let step = Step::of(&part, &wanted);
    let mut all = |backend: &mut dyn Backend| {
        let mut scores = Scores::default();
        backend.begin(&step).unwrap();
        backend.scores(Stage::Begin, LayerId(1), &mut scores).unwrap();
        (driver.rest(backend).unwrap(), scores)
    };
    let (want, want_scores) = all(&mut reference(&HYBRID, CONFIG, Rounding::None).bringing(taps.clone()));
    assert_eq!((want.logits.len(), want.taps.len()), (3 * want.n_vocab, 6 * 2 * HIDDEN));
    for device in devices() {
        let (found, scores) = all(&mut HYBRID.stack_with(CONFIG, taps.clone(), device));
        assert_eq!((found.n_vocab, scores.layer, scores.n_experts), (want.n_vocab, LayerId(1), 6));
        let StepOutput { logits, taps, normed, .. } = found;
        let pairs = [(&logits, &want.logits), (&taps, &want.taps), (&normed, &want.normed)];
        for (found, want) in pairs.into_iter().chain([(&scores.probabilities, &want_scores.probabilities)]) {
            let off = difference(found, want);
            assert!(off < F32_BOUND, "{device}: off by {off}");
        }
    }
}

/// A prediction block takes a token and a state; the twin is the reference's.
#[test]
fn a_prediction_block_begins_with_states() {
    let states: Vec<f32> = stream("states", 5 * HIDDEN).collect();
    let (part, rows, mut driver) = (part(0, 0, 5), rows(0, &text(8, 5)), Driver::new(HYBRID));
    let step = Step::of(&part, &rows);
    let mut twin = Reference::reference(HYBRID.prediction(), CONFIG, Rounding::None);
    twin.enter(&step, &states).unwrap();
    let want = driver.rest_of(&mut twin, 1).unwrap().logits;
    for device in devices() {
        let mut stack = CandleStack::new(&HYBRID.prediction(), CONFIG, Taps::default(), device).unwrap();
        stack.enter(&step, &states).unwrap();
        let off = difference(&driver.rest_of(&mut stack, 1).unwrap().logits, &want);
        assert!(off < F32_BOUND, "{device}: off by {off}");
        stack.accept(0, 5).unwrap();
    }
}

/// What a plan is told.
#[test]
fn bytes_are_those_of_what_is_allocated() {
    let (shape, weights) = (HYBRID.shape(), HYBRID.weights());
    let plain = CONFIG.bytes(&shape);
    let taps = Taps::default();
    let bytes = CandleStack::bytes(&shape, &weights.experts, &CONFIG, &taps, DeviceName::Cpu);
    assert_eq!(bytes.kv, plain.kv);
    assert!(bytes.state > plain.state && bytes.scratch > plain.scratch / 2);
    // F32 tensors take their own bytes, but for the embedding, which stays where it is.
    let n_values: u64 = forerun_model::names::resident(&shape)
        .iter()
        .filter(|spec| !spec.optional || spec.names[0] == "output.weight" || is_separate(&spec.names[0]))
        .filter(|spec| spec.names[0] != "token_embd.weight")
        .map(|spec| spec.dims.iter().product::<u64>())
        .sum();
    assert_eq!(CandleStack::weight_bytes(&weights), 4 * n_values);
}

/// Attention's matrices one by one, without biases.
fn is_separate(name: &str) -> bool {
    ["attn_q.weight", "attn_k.weight", "attn_v.weight"].iter().any(|end| name.ends_with(end))
}

/// The same wrong steps, in the same words.
#[test]
fn what_the_reference_refuses_is_refused_alike() {
    let refusals = |backend: &mut dyn Backend, driver: &mut Driver| {
        let mut found = Vec::new();
        driver.run(backend, 0, 0, &text(5, 5), 5);
        let wrong = [
            (vec![part(0, 5, 0)], 0),
            (vec![part(0, 5, 41)], 41),
            (vec![part(0, 5, 3)], 4),
            (vec![part(7, 0, 1)], 1),
            (vec![part(0, 4, 1)], 1),
            (vec![part(0, 5, 1), part(0, 5, 1)], 2),
            (vec![forerun_compute::Part { may_reject: true, ..part(0, 5, 17) }], 17),
        ];
        for (parts, n_rows) in &wrong {
            let step = Step { parts, rows: &rows(0, &text(6, *n_rows)) };
            found.push(backend.begin(&step).unwrap_err().to_string());
        }
        let mut held = 5;
        while held < 80 {
            let n = 25.min(80 - held);
            driver.run(backend, 0, held, &text(7, n), n);
            held += n;
        }
        found.push(backend.begin(&Step::of(&part(0, 80, 1), &rows(80, &[1]))).unwrap_err().to_string());
        let unknown = rows(0, &[u32::try_from(support::N_VOCAB).unwrap()]);
        found.push(backend.begin(&Step::of(&part(1, 0, 1), &unknown)).unwrap_err().to_string());
        found.push(backend.accept(0, 1).unwrap_err().to_string());
        let one = part(1, 0, 2);
        driver.step(backend, &Step::of(&one, &rows(0, &[1, 2]))).unwrap();
        found.push(backend.accept(1, 1).unwrap_err().to_string());
        found.push(backend.accept(0, 1).unwrap_err().to_string());
        found.push(backend.accept(0, 3).unwrap_err().to_string());
        let mut checkpoint = forerun_compute::Checkpoint::default();
        let (here, there) = (forerun_compute::SequenceIdx(0), forerun_compute::SequenceIdx(3));
        found.push(backend.save(there, &mut checkpoint).unwrap_err().to_string());
        found.push(backend.restore(there, &checkpoint).unwrap_err().to_string());
        found.push(backend.restore(here, &checkpoint).unwrap_err().to_string());
        found.push(backend.save_rows(here, 0..81, &mut Vec::new()).unwrap_err().to_string());
        found.push(backend.load(here, &checkpoint, &mut &[][..]).unwrap_err().to_string());
        backend.save(here, &mut checkpoint).unwrap();
        found.push(backend.load(there, &checkpoint, &mut &[][..]).unwrap_err().to_string());
        found.push(backend.load(here, &checkpoint, &mut &[][..]).unwrap_err().to_string());
        found
    };
    let mut driver = Driver::new(HYBRID);
    let want = refusals(&mut reference(&HYBRID, CONFIG, Rounding::None), &mut driver);
    assert!(want.len() > 15);
    for device in devices() {
        assert_eq!(refusals(&mut HYBRID.stack(device), &mut driver), want, "{device}");
    }
}

#[test]
fn broken_weights_are_no_numbers() {
    let (config, part, mut driver) = (CONFIG, part(0, 0, 1), Driver::new(HYBRID));
    // A router in blocks rounds its input, and a product with rounded values says nothing of them.
    let in_blocks = Recipe { quant: QuantType::Q8_0, ..HYBRID }.tensor("a router in blocks", &[256, 6]);
    for router in [None, Some(in_blocks)] {
        let mut weights = HYBRID.weights();
        weights.layers[1].post_norm.fill(f32::NAN);
        weights.layers[1].router = router.unwrap_or_else(|| weights.layers[1].router.clone());
        let mut stack = CandleStack::new(&weights, config, Taps::default(), DeviceName::Cpu).unwrap();
        let error = driver.step(&mut stack, &Step::of(&part, &rows(0, &[3]))).unwrap_err().to_string();
        assert!(error.contains("the router's input is not finite"), "{error}");
    }
    let mut weights = HYBRID.weights();
    weights.output_norm.fill(f32::INFINITY);
    let mut stack = CandleStack::new(&weights, config, Taps::default(), DeviceName::Cpu).unwrap();
    let error = driver.step(&mut stack, &Step::of(&part, &rows(0, &[3]))).unwrap_err().to_string();
    assert!(error.contains("a logit is not finite"), "{error}");
}

#[test]
fn a_slot_that_is_too_small_is_refused() {
    let mut stack = HYBRID.stack(DeviceName::Cpu);
    let part = part(0, 0, 1);
    stack.begin(&Step::of(&part, &rows(0, &[3]))).unwrap();
    let mut routing = Routing::default();
    stack.mix_route(LayerId(0), &mut routing).unwrap();
    let arena = forerun_arena::Arena::new(1, 4096).unwrap();
    let weights = arena.try_write(forerun_arena::SlotIdx(0)).unwrap().seal();
    let expert = routing.experts().next().unwrap();
    let job = forerun_compute::ExpertJob {
        layer: LayerId(0),
        weights,
        parts: stack_layout().offsets(),
        uses: routing.uses(expert),
    };
    let error = stack.run_expert(job).unwrap_err().to_string();
    assert!(error.contains("needs 786432 bytes") && error.contains("4096"), "{error}");
}

fn stack_layout() -> forerun_model::ExpertLayout {
    HYBRID.weights().experts[0]
}

/// A build without a device says so, and what would be right.
#[test]
fn devices_that_are_not_there_are_refused_by_name() {
    for (device, feature, is_built) in [
        (DeviceName::Cuda(63), "cuda", candle_core::utils::cuda_is_available()),
        (DeviceName::Metal(63), "metal", candle_core::utils::metal_is_available()),
    ] {
        let error = forerun_candle::open(device).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(&device.to_string()), "{error}");
        assert!(is_built || error.contains(&format!("--features {feature}")), "{error}");
        let made = CandleStack::new(&HYBRID.weights(), CONFIG, Taps::default(), device);
        assert_eq!(made.err().unwrap().to_string(), error);
    }
    assert!(forerun_candle::open(DeviceName::Cpu).unwrap().is_cpu());
}

#[test]
fn a_stack_may_move_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<CandleStack>();
}
