//! The reference and the `cpu` backend keep every rule of the trait, and one that doesn't is found out.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/conformance/mod.rs"]
mod conformance;
mod support;

use conformance::agreeing::{exact, rounded, with_the_reference};
use conformance::faulty::{Fault, Faulty};
use conformance::{
    Make, Subject, Tolerance, accepting, aside, batching, beginning, conformance, damage, guessing,
    restoring, saving, tapping,
};
use forerun_compute::{Backend, Cpu, KvType, Rounding, StackConfig, Taps, Weights};

/// Delta-nets and attention, of plain weights and of such that need few bits; and attention alone.
const BOTH: &str = "architectures/qwen3next-f32.gguf";
const TINY_B: &str = "tiny-b-q3_k_m.gguf";
const ATTENTION: &str = "architectures/qwen3moe-f32.gguf";

fn cpu_of_two(weights: Weights, config: StackConfig, taps: Taps) -> Box<dyn Backend> {
    Box::new(Cpu::cpu(weights, config, 2).unwrap().bringing(taps))
}

fn subjects<const N: usize>(of: [(Make, &'static str, KvType); N]) -> [Subject; N] {
    of.map(|(make, model, kv)| Subject { make, model, kv, tolerance: Tolerance::Bits })
}

fn reference_subjects() -> [Subject; 3] {
    subjects([(exact, BOTH, KvType::F32), (rounded, TINY_B, KvType::F16), (exact, ATTENTION, KvType::F16)])
}

fn cpu_subjects() -> [Subject; 3] {
    subjects([
        (cpu_of_two, BOTH, KvType::F16),
        (cpu_of_two, TINY_B, KvType::F16),
        (cpu_of_two, ATTENTION, KvType::F32),
    ])
}

conformance!(reference, crate::reference_subjects);
conformance!(cpu, crate::cpu_subjects);

#[test]
fn cpu_has_the_bits_of_the_reference_that_rounds_alike() {
    let more = subjects([(cpu_of_two, "tiny-a-f32.gguf", KvType::F32), (cpu_of_two, TINY_B, KvType::F32)]);
    for subject in cpu_subjects().into_iter().chain(more) {
        with_the_reference(&subject, Rounding::LikeQuantised, None);
    }
}

/// The smallest model on the reference with a fault.
macro_rules! faulty {
    ($($name:ident: $fault:ident, $file:ident::$rule:ident, $words:literal;)*) => {
        $(
            #[test]
            #[should_panic(expected = $words)]
            fn $name() {
                let make: Make = |weights, config, taps| {
                    Box::new(Faulty::new(exact(weights, config, taps), Fault::$fault))
                };
                $file::$rule(&subjects([(make, ATTENTION, KvType::F32)])[0]);
            }
        )*
    };
}

faulty! {
    accepting_unasked_is_found: AcceptsUnasked, accepting::an_abandoned_step_changes_nothing, "Past";
    forgetting_others_is_found:
        ForgetsOthers, beginning::past_zero_forgets_at_once_and_only_its_sequence, "as soon as it begins";
    other_rows_are_found: SeesOtherRows, batching::chunks_of_a_prompt_change_nothing, "steps of 2: off by";
    order_is_found: SeesOrder, batching::the_order_of_experts_changes_nothing, "Order";
    guesses_are_found: CountsGuesses, guessing::scores_change_nothing, "asked ahead: off by";
    a_lost_step_is_found: KeepsOnlyOneStep, aside::a_step_put_aside_is_what_it_is_without, "its step is put aside";
    going_nowhere_is_found: RestoresNothing, restoring::a_sequence_goes_back_to_its_checkpoint, "left == right";
    lost_rows_are_found: SavesTooLittle, saving::a_saved_sequence_goes_on_wherever_it_is_loaded, "tokens come in order";
    a_single_tap_is_found: TapsOneRow, tapping::taps_bring_out_every_row, "outputs of layers: off by";
    what_is_no_number_is_found: PassesOnWhatIsNoNumber, damage::what_is_not_finite_is_an_error, "Ok";
}
