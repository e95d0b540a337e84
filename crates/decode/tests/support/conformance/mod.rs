//! What every [`Backend`] must do, whatever computes: the rules of the trait's documents, written once and run over each
//! implementation by [`conformance!`].
//!
//! A rule is a function over a [`Subject`]; it panics with what was broken. A device whose sums may come in another order
//! with other rows is compared [within a bound](Tolerance::Within), all others bit by bit.

#![allow(dead_code, reason = "every test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

pub(crate) mod accepting;
pub(crate) mod agreeing;
pub(crate) mod aside;
pub(crate) mod batching;
pub(crate) mod beginning;
mod bench;
pub(crate) mod damage;
pub(crate) mod faulty;
pub(crate) mod guessing;
pub(crate) mod restoring;
pub(crate) mod saving;
pub(crate) mod tapping;

pub(crate) use bench::{Bench, Order, part};
use forerun_compute::{Backend, KvType, SequenceIdx, StackConfig, Taps, Weights};
use forerun_model::TokenId;

pub(crate) use crate::support::tolerance::Tolerance;

/// Makes a backend of a model's weights.
pub(crate) type Make = fn(Weights, StackConfig, Taps) -> Box<dyn Backend>;

/// A backend to be looked at, over one model.
#[derive(Clone, Copy)]
pub(crate) struct Subject {
    pub(crate) make: Make,
    /// A fixture.
    pub(crate) model: &'static str,
    pub(crate) kv: KvType,
    pub(crate) tolerance: Tolerance,
}

pub(crate) const FIRST: SequenceIdx = SequenceIdx(0);
pub(crate) const SECOND: SequenceIdx = SequenceIdx(1);
pub(crate) const THIRD: SequenceIdx = SequenceIdx(2);

/// A context that is smaller than a step may be, and few rows for the rest, so that every bound can be met.
pub(crate) const CONFIG: StackConfig =
    StackConfig { n_sequences: 3, context: 72, rows_max: 80, log_rows: 16, aside_rows: 8, kv: KvType::F32 };

/// Some tokens, which every fixture's vocabulary has.
pub(crate) fn text(seed: u32, len: u32) -> Vec<TokenId> {
    (0..len).map(|i| TokenId((seed * 71 + i * (13 + 2 * seed)) % 251)).collect()
}

impl Subject {
    /// A backend, and what drives it.
    pub(crate) fn bench(&self) -> Bench {
        self.bench_of(CONFIG, Taps::default())
    }

    /// The same with its own bounds and taps.
    pub(crate) fn bench_of(&self, config: StackConfig, taps: Taps) -> Bench {
        Bench::new(self, StackConfig { kv: self.kv, ..config }, taps, |_, _| ())
    }
}

/// A module of tests, one for each rule, over the subjects that a function makes: `conformance!(cpu, crate::cpu)`.
macro_rules! conformance {
    ($name:ident, $subjects:path) => {
        $crate::conformance::conformance! { @ $name, $subjects:
            beginning::steps_that_make_no_sense_are_refused,
            beginning::a_context_can_be_filled_and_no_more,
            beginning::past_zero_forgets_at_once_and_only_its_sequence,
            accepting::what_can_not_be_accepted_is_refused,
            accepting::rejected_rows_leave_no_trace,
            accepting::an_abandoned_step_changes_nothing,
            batching::chunks_of_a_prompt_change_nothing,
            batching::parts_of_a_step_are_what_they_are_alone,
            batching::the_order_of_experts_changes_nothing,
            batching::only_rows_that_want_logits_get_them,
            aside::a_step_put_aside_is_what_it_is_without,
            aside::coming_back_forgets_what_was_not_accepted,
            aside::without_room_nothing_is_put_aside,
            guessing::scores_change_nothing,
            tapping::taps_bring_out_every_row,
            restoring::a_sequence_goes_back_to_its_checkpoint,
            restoring::going_back_abandons_its_own_step_and_no_other,
            restoring::checkpoints_that_do_not_fit_are_refused,
            saving::a_saved_sequence_goes_on_wherever_it_is_loaded,
            saving::saving_changes_nothing_between_two_layers,
            saving::what_does_not_fit_is_refused,
            saving::loading_disturbs_no_step_of_others,
            damage::what_is_not_finite_is_an_error,
            damage::a_slot_that_is_too_small_is_refused,
        }
    };
    (@ $name:ident, $subjects:path: $($file:ident::$rule:ident,)*) => {
        mod $name {
            $(
                #[test]
                fn $rule() {
                    for subject in $subjects() {
                        $crate::conformance::$file::$rule(&subject);
                    }
                }
            )*
        }
    };
}
pub(crate) use conformance;
