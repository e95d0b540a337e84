//! Any bytes: opened as a drafter of one small model, and where they are one, with all its tensors.
//!
//! `cargo +nightly fuzz run drafter_open corpus/drafter_open seeds/drafter_open -- -max_len=65536 -max_total_time=30`

#![no_main]

use bytes::Bytes;
use forerun_model::drafter::{check_known, specs};
use forerun_model::{
    AttentionParts, AttentionShape, DrafterShape, LayerKind, ModelShape, MoeShape, RopeShape,
};
use forerun_storage::{Gguf, Resident, ResidentMode};
use libfuzzer_sys::fuzz_target;

/// The model that the seed is made for.
fn target() -> ModelShape {
    let parts = AttentionParts { gate: false, head_norms: true };
    ModelShape {
        hidden: 8,
        n_vocab: 16,
        context_max: 64,
        norm_eps: 1e-6,
        layers: vec![LayerKind::Attention; 4],
        n_mtp: 0,
        attention: AttentionShape { n_heads: 1, n_kv_heads: 1, head_dim: 8, parts },
        rope: RopeShape { n_rot: 8, freq_base: 1e4, sections: [4, 0, 0, 0] },
        delta_net: None,
        moe: MoeShape { n_experts: 2, top_k: 1, expert_ff: 8, shared_ff: None, renormalises: true },
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok(gguf) = Gguf::open_bytes("fuzz", Bytes::copy_from_slice(data)) else { return };
    let dims = |name: &str| gguf.tensor(name).map(|tensor| tensor.dims().to_vec());
    let Ok(shape) = DrafterShape::read(&gguf.metadata, &dims, &target()) else { return };
    let specs = specs(&shape);
    let _ = check_known(&specs, gguf.tensors().iter().map(|tensor| &*tensor.name));
    let _ = Resident::load_specs(&specs, &gguf, ResidentMode::Owned);
});
