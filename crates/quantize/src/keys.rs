//! What a quantised file's header says of how it was made: llama.cpp's own keys, and ours.

use std::collections::BTreeMap;

use forerun_model::QuantType;
use forerun_storage::gguf::{Array, Value};
use sha2::{Digest, Sha256};

use crate::Imatrix;
use crate::plan::{Choice, Plan};
use crate::recipe::{Mixture, Recipe};

/// Raised when the same values are encoded to other bytes than before, so that no file is made of both.
const ENCODERS: u32 = 2;
/// Longest text that llama.cpp's quantiser writes for a key.
const TEXT_BYTES_MAX: usize = 127;

/// Beginnings of keys that say how a file was quantised: a copy has its own, or none.
pub const REPLACED_KEYS: [&str; 2] = ["quantize.imatrix.", "forerun.quantize."];

/// An importance matrix, and the name of its file.
#[derive(Clone, Copy, Debug)]
pub struct NamedImatrix<'a> {
    /// The file's name.
    pub file: &'a str,
    /// What it holds.
    pub imatrix: &'a Imatrix,
}

/// The keys for a file of `plan`.
pub fn keys(plan: &Plan, recipe: &Recipe, imatrix: Option<NamedImatrix<'_>>) -> Vec<(String, Value)> {
    let mut keys = Vec::new();
    let mut add = |key: &str, value: Value| keys.push((key.to_owned(), value));
    let cut = |text: &str| Value::Text(text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned());
    add("general.quantization_version", Value::U32(2));
    add("general.file_type", Value::U32(file_type(plan, recipe)));
    if let Some(NamedImatrix { file, imatrix }) = imatrix {
        add("quantize.imatrix.file", cut(file));
        if let Some(dataset) = imatrix.about.datasets.first() {
            add("quantize.imatrix.dataset", cut(dataset));
        }
        let n_entries = u32::try_from(imatrix.len()).unwrap_or(u32::MAX);
        add("quantize.imatrix.entries_count", Value::U32(n_entries));
        if imatrix.about.chunk_count > 0 {
            add("quantize.imatrix.chunks_count", Value::U32(imatrix.about.chunk_count));
        }
        add("forerun.quantize.imatrix", Value::Text(format!("sha256:{}", hash(imatrix))));
    }
    add("forerun.quantize.encoders", Value::U32(ENCODERS));
    add("forerun.quantize.recipe", Value::Text(recipe.to_toml()));
    let fallbacks: Vec<String> = plan.fallbacks().map(fallback_text).collect();
    if !fallbacks.is_empty() {
        add("forerun.quantize.fallbacks", Value::Array(Array::Text(fallbacks)));
    }
    keys
}

/// What stands in `general.file_type`: the mixture's number, but where rules overrule one type for all, that of the type
/// with the most bytes.
fn file_type(plan: &Plan, recipe: &Recipe) -> u32 {
    let base = recipe.base();
    if !matches!(base, Mixture::All(_)) || recipe.rules().is_empty() {
        return base.file_type();
    }
    let mut bytes: BTreeMap<u32, (u64, QuantType)> = BTreeMap::new();
    for choice in &plan.choices {
        bytes.entry(choice.to.id()).or_insert((0, choice.to)).0 += choice.bytes()[1];
    }
    let most = bytes.into_values().max_by_key(|(bytes, _)| *bytes);
    most.map_or(base, |(_, quant)| Mixture::All(quant)).file_type()
}

/// A fallback in words.
pub fn fallback_text(choice: &Choice) -> String {
    let Choice { tensor, wanted, to, n_cols, .. } = choice;
    let block_len = QuantType::block_len(*wanted);
    format!("{tensor}: {to} for {wanted}, whose blocks of {block_len} don't divide rows of {n_cols}")
}

/// Of all names, sums, counts and moments.
fn hash(imatrix: &Imatrix) -> String {
    let mut hash = Sha256::new();
    for (name, importance) in imatrix.iter() {
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name.as_bytes());
        hash.update((importance.n_matrices() as u64).to_le_bytes());
        hash.update((importance.n_cols() as u64).to_le_bytes());
        for matrix in 0..importance.n_matrices() {
            hash.update(importance.count(matrix).to_le_bytes());
            importance.sums(matrix).iter().for_each(|sum| hash.update(sum.to_le_bytes()));
        }
        importance.moments().iter().for_each(|sum| hash.update(sum.to_le_bytes()));
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
