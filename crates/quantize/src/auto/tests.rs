//! A real small model, measured and fitted to sizes.

use std::path::Path;

use super::groups::Part;
use super::*;
use crate::Importance;

/// The model, and an importance matrix that knows the experts, each used as often as its number says.
fn model() -> (Gguf, Facts, Imatrix) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/pico-q4_k_m.gguf");
    let gguf = Gguf::open(Path::new(path)).unwrap();
    let facts = Facts::of(&gguf).unwrap();
    let mut imatrix = Imatrix::default();
    for tensor in gguf.tensors().iter().filter(|tensor| tensor.dims().len() > 1) {
        let n_cols = usize::try_from(tensor.dims()[0]).unwrap();
        let n = crate::lookup::n_matrices(tensor);
        let sums = (0..n * n_cols).map(|i| 1.0 + (i % 7) as f32).collect();
        let counts = (0..n).map(|i| (i + 1) as f32).collect();
        let name = tensor.name.clone();
        imatrix.insert(name.clone(), Importance::new(&name, n_cols, sums, counts).unwrap());
    }
    (gguf, facts, imatrix)
}

const PERMISSIONS: Permissions = Permissions { requantise: true, unseen: false };

fn measured(n_threads: usize) -> Measured {
    let (gguf, facts, imatrix) = model();
    Auto::new(&gguf, facts, &imatrix, PERMISSIONS, n_threads).unwrap().finish().unwrap()
}

/// Sizes of tensors, and some bytes a rule for the header.
fn file_bytes(measured: &Measured) -> impl Fn(&Recipe) -> Result<u64, QuantizeError> + '_ {
    |recipe| {
        let types: BTreeMap<_, _> = recipe.rules().iter().map(|rule| (&rule.tensors, rule.quant)).collect();
        let bytes = |group: &Group| {
            let quant = types[&globset::escape(&group.tensors[0])];
            group.types.iter().find(|(known, _)| *known == quant).unwrap().1
        };
        Ok(measured.groups.iter().map(bytes).sum::<u64>() + 70 * recipe.rules().len() as u64)
    }
}

#[test]
fn larger_types_lose_less_and_threads_change_nothing() {
    let one = measured(1);
    assert_eq!(one.offers, measured(3).offers);
    assert_eq!(one.groups.iter().filter(|group| group.part == Part::Routed).count(), 24);
    for (group, offers) in one.groups.iter().zip(&one.offers) {
        let name = &group.tensors[0];
        assert!(offers.iter().all(|offer| offer.loss >= 0.0), "{name}: {offers:?}");
        // What the source has is kept as it is.
        assert_eq!(offers.last().map(|offer| offer.loss), Some(0.0), "{name}");
        for pair in offers.windows(2) {
            assert!(pair[0].bytes < pair[1].bytes && pair[0].loss > pair[1].loss, "{name}: {pair:?}");
        }
    }
    let loss = |name: &str| {
        let place = one.groups.iter().position(|group| group.tensors[0] == name).unwrap();
        one.offers[place][0].loss
    };
    assert!(loss("blk.1.ssm_out.weight") > 3.0 * loss("blk.1.ssm_alpha.weight"));
}

#[test]
fn sizes_are_met_and_more_bytes_lose_less() {
    let measured = measured(2);
    let file_bytes = file_bytes(&measured);
    let largest: u64 = measured.groups.iter().map(|group| group.types.last().unwrap().1).sum();
    let mut before = f64::INFINITY;
    for percent in [60, 70, 80, 90, 110] {
        let target = largest * percent / 100;
        let chosen = measured.choose(target, &file_bytes).unwrap();
        assert!(chosen.file_bytes <= target, "{} of {target}", chosen.file_bytes);
        assert!(chosen.loss < before, "{percent} %: {} after {before}", chosen.loss);
        before = chosen.loss;
    }
}

/// Files that no reader takes: one tensor an expert, of unlike sizes.
#[test]
fn experts_of_unlike_sizes_are_named() {
    let (gguf, _, _) = model();
    let one = |expert: u16, n_rows: u64| TensorInfo {
        name: forerun_model::names::block_expert(forerun_model::LayerId(0), "ffn_up", expert.into()),
        quant: QuantType::F16,
        dims: forerun_storage::gguf::Dims::new(&[256, n_rows]).unwrap(),
        ..gguf.tensors()[0].clone()
    };
    let facts = Facts { n_layers: 1, n_experts: 2, top_k: 1 };
    let choices = |tensors: &[TensorInfo]| {
        let recipe = Recipe::named("q8_0").unwrap();
        Plan::new(tensors, facts, &recipe, None, PERMISSIONS).unwrap().choices
    };
    for (n_rows, is_right) in [(8, true), (7, false)] {
        let tensors = [one(0, 8), one(1, n_rows)];
        let found = groups(&tensors, &choices(&tensors));
        match found {
            Ok(found) => assert!(is_right && found.len() == 1, "{found:?}"),
            Err(error) => {
                assert!(!is_right && error.to_string().contains("ffn_up.1.weight has another"), "{error}")
            }
        }
    }
}

/// Noise of an expert's gate is what is left of it after columns have made up for each other.
#[test]
fn noise_is_that_of_errors_which_are_carried() {
    let (gguf, facts, mut imatrix) = model();
    let loss = |imatrix: &Imatrix, name: &str| {
        let found = Auto::new(&gguf, facts, imatrix, PERMISSIONS, 2).unwrap().finish().unwrap();
        let place = found.groups.iter().position(|group| group.tensors[0] == name).unwrap();
        found.offers[place][1].loss
    };
    let (gate, down) = ("blk.1.ffn_gate_exps.weight", "blk.1.ffn_down_exps.weight");
    let before = [gate, down].map(|name| loss(&imatrix, name));
    let router = "blk.1.ffn_gate_inp.weight";
    let n_cols = imatrix.get(router).unwrap().n_cols();
    let moments = forerun_compute::moments::blocks(n_cols).flat_map(|(cols, _)| {
        (0..cols.len()).flat_map(|i| (0..=i).map(move |j| if i == j { 1.0 } else { 0.8 }))
    });
    let known = imatrix.get(router).unwrap().clone().with_moments(router, moments.collect()).unwrap();
    imatrix.insert(router.to_owned(), known);
    let after = [gate, down].map(|name| loss(&imatrix, name));
    assert!(after[0] < 0.6 * before[0], "{after:?} after {before:?}");
    assert!((after[1] / before[1] - 1.0).abs() < 1e-9, "{after:?} after {before:?}");
}

#[test]
fn a_size_that_is_too_small_is_refused_with_the_smallest() {
    let measured = measured(2);
    let error = measured.choose(1_000_000, file_bytes(&measured)).unwrap_err().to_string();
    assert!(error.contains("can't have 1000000 bytes or fewer: with the smallest types it has 1"), "{error}");
}
