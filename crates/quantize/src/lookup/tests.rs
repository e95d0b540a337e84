//! Names and forms of entries.

use forerun_model::QuantType;
use forerun_storage::gguf::Dims;

use super::*;

fn tensor(name: &str, sizes: &[u64]) -> TensorInfo {
    let dims = Dims::new(sizes).unwrap();
    TensorInfo { name: name.into(), quant: QuantType::F32, dims, file: 0, offset_bytes: 0, len_bytes: 0 }
}

/// Two columns; the first column's mean square is `first` plus the matrix.
fn entry(first: f32, n_matrices: usize) -> Importance {
    let sums = (0..n_matrices).flat_map(|m| [2.0 * (first + m as f32), 2.0]).collect();
    Importance::new("entry", 2, sums, vec![2.0; n_matrices]).unwrap()
}

fn imatrix(entries: &[(&str, f32, usize)]) -> Imatrix {
    let mut imatrix = Imatrix::default();
    entries.iter().for_each(|(name, first, n)| imatrix.insert((*name).into(), entry(*first, *n)));
    imatrix
}

/// The first column's mean square of expert 1, of three.
#[track_caller]
fn check(entries: &[(&str, f32, usize)], name: &str, sizes: &[u64], matrix: usize, expect: Option<f32>) {
    let imatrix = imatrix(entries);
    let lookup = Lookup { imatrix: &imatrix, n_experts: 3 };
    let found = match lookup.know(&tensor(name, sizes), matrix).unwrap() {
        Known::Seen(means) => Some(means[0]),
        Known::Absent => None,
        Known::Unseen => panic!("all entries have data"),
    };
    assert_eq!(found, expect, "{name}");
}

/// Reported as ggml-org/llama.cpp 6552.
#[test]
fn experts_are_found_under_any_of_their_names() {
    let stacked = [("blk.0.ffn_gate_exps.weight", 10.0, 3), ("blk.0.ffn_down_exps.weight", 20.0, 3)];
    let apart = [("blk.0.ffn_gate.1.weight", 30.0, 1), ("blk.0.ffn_down.1.weight", 40.0, 1)];
    let fused = [("blk.0.ffn_gate_up_exps.weight", 50.0, 3)];
    for (entries, [gate, down]) in [
        (&stacked[..], [Some(11.0), Some(21.0)]),
        (&apart, [Some(30.0), Some(40.0)]),
        (&fused, [Some(51.0), None]),
    ] {
        check(entries, "blk.0.ffn_gate_exps.weight", &[2, 8, 3], 1, gate);
        check(entries, "blk.0.ffn_up_exps.weight", &[2, 8, 3], 1, gate);
        check(entries, "blk.0.ffn_gate_up_exps.weight", &[2, 16, 3], 1, gate);
        check(entries, "blk.0.ffn_gate.1.weight", &[2, 8], 0, gate);
        check(entries, "blk.0.ffn_up.1.weight", &[2, 8], 0, gate);
        check(entries, "blk.0.ffn_down_exps.weight", &[2, 8, 3], 1, down);
        check(entries, "blk.0.ffn_down.1.weight", &[2, 8], 0, down);
        check(entries, "blk.1.ffn_down.1.weight", &[2, 8], 0, None);
        check(entries, "blk.0.ffn_gate_shexp.weight", &[2, 8], 0, None);
    }
    // Its own name comes first.
    let both = [("blk.0.ffn_up_exps.weight", 1.0, 3), ("blk.0.ffn_gate_exps.weight", 5.0, 3)];
    check(&both, "blk.0.ffn_up_exps.weight", &[2, 8, 3], 2, Some(3.0));
}

/// The older form has one count for all experts of a layer.
#[test]
fn experts_of_one_count_are_parted() {
    let mut imatrix = Imatrix::default();
    let name = "blk.0.ffn_up_exps.weight";
    let wide = Importance::new(name, 6, vec![2.0, 2.0, 4.0, 8.0, f32::NAN, 1.0], vec![2.0]).unwrap();
    imatrix.insert(name.into(), wide);
    let lookup = Lookup { imatrix: &imatrix, n_experts: 3 };
    assert_eq!(lookup.know(&tensor(name, &[2, 8, 3]), 1).unwrap(), Known::Seen(vec![2.0, 4.0]));
    assert_eq!(lookup.know(&tensor(name, &[2, 8, 3]), 2).unwrap(), Known::Unseen);
    assert_eq!(
        lookup.know(&tensor("blk.0.ffn_gate.0.weight", &[2, 8]), 0).unwrap(),
        Known::Seen(vec![1.0, 1.0])
    );
}

#[test]
fn sizes_of_another_model_are_refused_with_both() {
    let imatrix = imatrix(&[("blk.0.ffn_up_exps.weight", 1.0, 3), ("blk.0.attn_q.weight", 1.0, 1)]);
    let lookup = Lookup { imatrix: &imatrix, n_experts: 4 };
    for (name, sizes) in [
        ("blk.0.ffn_up_exps.weight", &[2, 8, 4][..]),
        ("blk.0.ffn_up_exps.weight", &[4, 8, 3]),
        ("blk.0.ffn_gate.1.weight", &[2, 8]),
        ("blk.0.attn_q.weight", &[6, 8]),
    ] {
        let error = lookup.know(&tensor(name, sizes), 0).unwrap_err();
        assert!(matches!(error, PlanError::ImportanceShape { .. }), "{error}");
        assert!(error.to_string().contains(&format!("; {name} has ")), "{error}");
    }
}
