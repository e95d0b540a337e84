//! Budgets that hold, budgets that are refused, and sizes as people write them.

use forerun_model::{
    AttentionParts, AttentionShape, DeltaNetShape, HeadOrder, LayerKind, MoeShape, RopeShape,
};
use proptest::prelude::*;

use super::*;

fn shape() -> ModelShape {
    ModelShape {
        hidden: 256,
        n_vocab: 8192,
        context_max: 2048,
        norm_eps: 1e-6,
        layers: [[LayerKind::DeltaNet; 3].as_slice(), &[LayerKind::Attention]].concat().repeat(2),
        n_mtp: 0,
        attention: AttentionShape {
            n_heads: 4,
            n_kv_heads: 2,
            head_dim: 64,
            parts: AttentionParts { gate: true, head_norms: true },
        },
        rope: RopeShape { n_rot: 16, freq_base: 1e4, sections: [3, 3, 2, 0] },
        delta_net: Some(DeltaNetShape {
            n_key_heads: 2,
            n_value_heads: 4,
            key_dim: 64,
            value_dim: 64,
            conv_kernel: 4,
            order: HeadOrder::Tiled,
        }),
        moe: MoeShape { n_experts: 32, top_k: 4, expert_ff: 256, shared_ff: Some(256), renormalises: true },
    }
}

fn input(shape: &ModelShape, budget: Option<u64>, slots: SlotWish) -> PlanInput<'_> {
    PlanInput {
        shape,
        experts: &[],
        slot_bytes: 131_072,
        dense_bytes: 5 << 20,
        text_bytes: 3 << 20,
        token_bytes_max: 16,
        io_bytes: 1 << 20,
        n_threads: 2,
        context: 512,
        backend: BackendChoice::Cpu,
        copies_bytes: 0,
        budget_bytes: budget,
        slots,
        lendable: None,
        logit_rows: 1,
        sums_bytes: 0,
        expert_layers: shape.n_layers(),
        draft: DraftInput::default(),
        n_checkpoints: 0,
        n_sequences: 1,
        prefix_bytes: 0,
        grammars: GrammarInput::default(),
        server_bytes: 0,
    }
}

#[test]
fn without_a_budget_everything_is_resident() {
    let plan = MemoryPlan::new(&input(&shape(), None, SlotWish::Fill)).unwrap();
    assert_eq!((plan.n_slots, plan.rows_max), (256, 512));
}

#[test]
fn what_a_model_lacks_takes_no_memory() {
    let plan = |shape: &ModelShape| MemoryPlan::new(&input(shape, None, SlotWish::Fill)).unwrap();
    let whole = plan(&shape());
    let mut lacking = shape();
    lacking.moe.shared_ff = None;
    let unshared = plan(&lacking);
    assert_eq!(whole.scratch - unshared.scratch, (512 * lacking.hidden * 4) as u64);

    lacking.layers = vec![LayerKind::Attention; 8];
    lacking.attention.parts.gate = false;
    lacking.delta_net = None;
    let attention = plan(&lacking);
    assert_eq!((attention.state, attention.kv), (0, 4 * whole.kv));
    assert!(attention.scratch < unshared.scratch && attention.total() < plan(&shape_of_attention()).total());
}

/// As many layers of gated attention, beside delta-nets that no layer has.
fn shape_of_attention() -> ModelShape {
    ModelShape { layers: vec![LayerKind::Attention; 8], ..shape() }
}

#[test]
fn every_conversation_may_follow_a_grammar() {
    let shape = shape();
    let grammars = |n_sequences| {
        let grammars = GrammarInput { shared_bytes: 1000, live_bytes: 10 };
        let input = PlanInput { n_sequences, grammars, ..input(&shape, None, SlotWish::Fill) };
        MemoryPlan::new(&input).unwrap().grammars
    };
    assert_eq!((grammars(1), grammars(3)), (1010, 1030));
}

#[test]
fn absurd_sizes_are_refused_and_never_wrap() {
    let mut shape = shape();
    shape.attention.n_kv_heads = 1024;
    shape.attention.head_dim = 1024;
    shape.layers = vec![LayerKind::Attention; 1024];
    let mut input = input(&shape, Some(1 << 40), SlotWish::Fill);
    input.context = 1 << 31;
    assert!(matches!(MemoryPlan::new(&input), Err(DecodeError::Budget { .. })));
}

#[test]
fn slots_per_layer_are_an_average() {
    let shape = shape();
    let slots = |n| MemoryPlan::new(&input(&shape, None, SlotWish::PerLayer(n))).unwrap().n_slots;
    assert_eq!((slots(0), slots(3), slots(32), slots(usize::MAX)), (2, 24, 256, 256));
}

#[test]
fn rows_of_logits_are_counted_up_to_the_rows_of_a_step() {
    let shape = shape();
    let plan = |logit_rows, context| {
        MemoryPlan::new(&PlanInput { logit_rows, context, ..input(&shape, None, SlotWish::Fill) }).unwrap()
    };
    let more = plan(16, 512).scratch - plan(1, 512).scratch;
    assert_eq!(more, 15 * 4 * shape.n_vocab as u64);
    assert_eq!((plan(0, 512).logit_rows, plan(16, 512).logit_rows, plan(16, 12).logit_rows), (1, 16, 12));
}

#[test]
fn the_smallest_budget_that_is_named_works() {
    let shape = shape();
    for slots in [SlotWish::Fill, SlotWish::PerLayer(0), SlotWish::PerLayer(5)] {
        let Err(DecodeError::Budget { smallest_bytes, .. }) = MemoryPlan::new(&input(&shape, Some(1), slots))
        else {
            panic!("one byte is no budget");
        };
        let plan = MemoryPlan::new(&input(&shape, Some(smallest_bytes), slots)).unwrap();
        assert!(plan.total() <= smallest_bytes);
        assert!(MemoryPlan::new(&input(&shape, Some(smallest_bytes - 1), slots)).is_err());
        // And so does what is printed, which is rounded.
        let printed = parse_bytes(&bytes_text(smallest_bytes)).unwrap();
        assert!(MemoryPlan::new(&input(&shape, Some(printed), slots)).is_ok(), "{printed}");
    }
}

/// A model of 256 experts of which `n` can be lent.
fn lendable(shape: &ModelShape, n: usize, budget: Option<u64>) -> PlanInput<'_> {
    let lendable = Lendable { n_experts: n, bytes: n as u64 * 120_000 };
    PlanInput { lendable: Some(lendable), ..input(shape, budget, SlotWish::Fill) }
}

#[test]
fn experts_are_mapped_only_if_the_budget_holds_them_all() {
    let shape = shape();
    let all = MemoryPlan::new(&lendable(&shape, 256, None)).unwrap();
    assert_eq!((all.mapped, all.slots), (256 * 120_000, 2 << 20));
    assert!(all.n_slots > 200, "slots for when the mapping is given up");
    let some = MemoryPlan::new(&lendable(&shape, 200, None)).unwrap();
    assert_eq!((some.mapped, some.slots), (200 * 120_000, 8 << 20));
    assert!(some.n_slots as u64 * some.slot_bytes <= some.mapped + some.slots);

    let least = (0..100).map(|mib| mib << 20).find(|&budget| {
        MemoryPlan::new(&lendable(&shape, 256, Some(budget))).is_ok_and(|plan| plan.mapped > 0)
    });
    let least = least.unwrap();
    let plan = MemoryPlan::new(&lendable(&shape, 256, Some(least))).unwrap();
    assert!(plan.total() <= least && plan.total() > least - (1 << 20));
    let less = MemoryPlan::new(&lendable(&shape, 256, Some(least - (1 << 20)))).unwrap();
    let slots = MemoryPlan::new(&input(&shape, Some(least - (1 << 20)), SlotWish::Fill)).unwrap();
    assert_eq!(less, slots, "a budget that doesn't hold them all is for slots");
}

#[test]
fn a_budget_lowered_below_what_is_mapped_is_for_slots() {
    let shape = shape();
    let plan = MemoryPlan::new(&lendable(&shape, 256, None)).unwrap();
    let same = plan.lowered(plan.total()).unwrap();
    assert_eq!((same.mapped, same.n_slots), (plan.mapped, plan.n_slots));
    let lower = plan.lowered(plan.total() - 1).unwrap();
    assert_eq!(lower.mapped, 0);
    assert!(lower.n_slots <= plan.n_slots && lower.total() < plan.total());
}

proptest! {
    #[test]
    fn a_plan_never_exceeds_its_budget_and_wastes_less_than_a_slot(budget in 0_u64..100 << 20) {
        let shape = shape();
        if let Ok(plan) = MemoryPlan::new(&input(&shape, Some(budget), SlotWish::Fill)) {
            prop_assert!(plan.total() <= budget);
            let full = plan.n_slots == plan.n_experts;
            prop_assert!(full || plan.total() + plan.slot_bytes + SLOT_ENTRY_BYTES > budget, "{}", plan);
            prop_assert!(plan.n_slots >= N_SLOTS_MIN);
        }
    }

    #[test]
    fn a_printed_size_reads_back_no_smaller(bytes in 1_u64..1 << 50) {
        let read = parse_bytes(&bytes_text(bytes)).unwrap();
        prop_assert!(read >= bytes && read - bytes <= bytes / 100 + 1, "{} {}", bytes, read);
    }
}

#[test]
fn sizes_are_read_as_people_write_them() {
    for (text, bytes) in [
        ("3GiB", 3 << 30),
        ("1.5g", 3 << 29),
        ("800MB", 800_000_000),
        ("20 MiB", 20 << 20),
        ("4096", 4096),
        ("0.5k", 512),
    ] {
        assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
    }
    for text in ["", "GiB", "-1GiB", "1e9", "lots", "0", "1.5.5G", "99999999999999999999T", "∞", "1,5G"] {
        assert!(parse_bytes(text).is_err(), "{text}");
    }
}

#[test]
fn a_lower_budget_gives_up_slots_and_nothing_else() {
    let shape = shape();
    let plan = MemoryPlan::new(&input(&shape, Some(64 << 20), SlotWish::Fill)).unwrap();
    let lower = plan.lowered(48 << 20).unwrap();
    assert!(lower.n_slots < plan.n_slots && lower.total() <= 48 << 20);
    assert!(lower.total() + lower.slot_bytes > 48 << 20, "no slot more would have fitted");
    assert_eq!((lower.kv, lower.scratch, lower.rows_max), (plan.kv, plan.scratch, plan.rows_max));
    assert_eq!(lower.lowered(64 << 20).unwrap(), lower, "a budget doesn't rise again");
    let Err(DecodeError::Budget { smallest_bytes, .. }) = plan.lowered(1 << 20) else {
        panic!("a mebibyte can't be enough")
    };
    assert_eq!(plan.lowered(smallest_bytes).unwrap().n_slots, N_SLOTS_MIN);
}
