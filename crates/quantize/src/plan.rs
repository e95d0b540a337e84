//! From a model's tensors, a recipe and an importance matrix to each tensor's type, and why. Pure.

mod experts;
mod mixture;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use forerun_compute::{dequant, quantise};
use forerun_model::{KeyValue, KeyValues, QuantType};
use forerun_storage::expert_name::ExpertTensor;
use forerun_storage::{Gguf, TensorInfo};

pub use experts::Unseen;
pub use mixture::Facts;

use crate::Imatrix;
use crate::error::PlanError;
use crate::lookup::{Known, Lookup, n_matrices};
use crate::recipe::Recipe;
use mixture::{Chooser, must_stay};
pub(crate) use mixture::{fallback, layer_of};

/// What the user allows that costs quality.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Sources that are quantised already.
    pub requantise: bool,
    /// Few bits for experts of which an importance matrix knows nothing.
    pub unseen: bool,
}

/// Why a tensor gets its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It must stay as it is; the words follow its name.
    Kept(&'static str),
    /// The mixture chose.
    Mixture,
    /// The recipe's rule of that place.
    Rule(usize),
}

/// What becomes of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its name.
    pub tensor: String,
    /// Its type in the source.
    pub from: QuantType,
    /// What it should be.
    pub wanted: QuantType,
    /// What it will be: another type when its rows aren't whole blocks of the wanted one.
    pub to: QuantType,
    /// Why.
    pub reason: Reason,
    /// Whether it holds routed experts.
    pub is_expert: bool,
    /// Values of a row.
    pub n_cols: usize,
    /// Values in all.
    pub n_values: u64,
}

impl Choice {
    /// Whether rows were too short for the wanted type.
    pub fn is_fallback(&self) -> bool {
        self.wanted != self.to
    }

    /// Bytes in a file, before and after.
    pub fn bytes(&self) -> [u64; 2] {
        [self.from, self.to]
            .map(|quant| self.n_values / quant.block_len() as u64 * quant.block_bytes() as u64)
    }
}

/// What becomes of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In the order of the source's tensors.
    pub choices: Vec<Choice>,
    /// Experts that the importance matrix knows nothing of, though it knows others of the tensor.
    pub unseen: Vec<Unseen>,
    /// Tensors that get other types and that the importance matrix has no entry for, but for the embedding and the head.
    pub absent: Vec<String>,
    /// Tensors that had lost something already and lose more.
    pub n_requantised: usize,
}

impl Facts {
    /// What the rules want to know, from a header.
    ///
    /// # Errors
    /// [`PlanError::Key`] names the key that is missing.
    pub fn of(gguf: &Gguf) -> Result<Self, PlanError> {
        let architecture = match gguf.metadata.get("general.architecture") {
            Some(KeyValue::Text(name)) => name.to_owned(),
            _ => return Err(PlanError::Key { key: "general.architecture".into() }),
        };
        let number = |name: &str| {
            let key = format!("{architecture}.{name}");
            let value = gguf.metadata.value(&key).and_then(forerun_storage::gguf::Value::integer);
            value.and_then(|value| u32::try_from(value).ok()).ok_or(PlanError::Key { key })
        };
        Ok(Self {
            n_layers: number("block_count")?,
            n_experts: number("expert_count").unwrap_or(0),
            top_k: number("expert_used_count").unwrap_or(0),
        })
    }
}

impl Plan {
    /// Chooses for all `tensors` of a model.
    ///
    /// # Errors
    /// [`PlanError`] names a rule or a tensor, and what is wrong with it.
    pub fn new(
        tensors: &[TensorInfo],
        facts: Facts,
        recipe: &Recipe,
        imatrix: Option<&Imatrix>,
        permissions: Permissions,
    ) -> Result<Self, PlanError> {
        let mut plan = Self { choices: choose(tensors, facts, recipe)?, ..Self::default() };
        experts::check_types(&plan.choices)?;
        plan.check_codes(permissions)?;
        if let Some(imatrix) = imatrix {
            let lookup = Lookup { imatrix, n_experts: facts.n_experts as usize };
            plan.look_up(tensors, lookup, permissions)?;
        }
        Ok(plan)
    }

    /// The types, by the tensors' names.
    pub fn types(&self) -> HashMap<&str, QuantType> {
        self.choices.iter().map(|choice| (choice.tensor.as_str(), choice.to)).collect()
    }

    /// Tensors whose rows were too short for the type that they should have.
    pub fn fallbacks(&self) -> impl Iterator<Item = &Choice> {
        self.choices.iter().filter(|choice| choice.is_fallback())
    }

    /// Refuses types that can't be read or written, and sources that have lost something, unless that is allowed.
    fn check_codes(&mut self, permissions: Permissions) -> Result<(), PlanError> {
        let mut lossy = Vec::new();
        for choice in self.choices.iter().filter(|choice| choice.from != choice.to) {
            let tensor = || choice.tensor.clone();
            if !quantise::is_encodable(choice.to) {
                return Err(PlanError::Unencodable { tensor: tensor(), quant: choice.to });
            }
            if !dequant::is_supported(choice.from) {
                let (quant, to) = (choice.from, choice.to);
                return Err(PlanError::Undecodable { tensor: tensor(), quant, to });
            }
            if !matches!(choice.from, QuantType::F32 | QuantType::F16 | QuantType::BF16 | QuantType::Q8_0) {
                lossy.push(choice);
            }
        }
        match lossy.first() {
            Some(first) if !permissions.requantise => {
                let (tensor, quant) = (first.tensor.clone(), first.from);
                Err(PlanError::Requantise { tensor, quant, n_more: lossy.len() - 1 })
            }
            _ => {
                self.n_requantised = lossy.len();
                Ok(())
            }
        }
    }

    /// Asks the importance matrix about every tensor that gets another type.
    fn look_up(
        &mut self,
        tensors: &[TensorInfo],
        lookup: Lookup<'_>,
        permissions: Permissions,
    ) -> Result<(), PlanError> {
        let mut counts = experts::Counts::default();
        for (tensor, choice) in tensors.iter().zip(&self.choices) {
            if choice.from == choice.to || !is_lossy(choice.to) {
                continue;
            }
            let mut n_absent = 0;
            for matrix in 0..n_matrices(tensor) {
                let known = lookup.know(tensor, matrix)?;
                n_absent += usize::from(known == Known::Absent);
                counts.add(choice, matches!(known, Known::Seen(_)));
            }
            let is_usual = [forerun_model::names::TOKEN_EMBD, forerun_model::names::OUTPUT];
            if n_absent > 0 && !is_usual.contains(&tensor.name.as_str()) {
                self.absent.push(tensor.name.clone());
            }
        }
        self.unseen = counts.unseen();
        match self.unseen.iter().find(|unseen| unseen.is_too_many()) {
            Some(unseen) if !permissions.unseen => Err(unseen.refused()),
            _ => Ok(()),
        }
    }
}

/// Whether blocks of a type are encoded with a view to what matters.
fn is_lossy(quant: QuantType) -> bool {
    !matches!(quant, QuantType::F32 | QuantType::F16 | QuantType::BF16)
}

fn choose(tensors: &[TensorInfo], facts: Facts, recipe: &Recipe) -> Result<Vec<Choice>, PlanError> {
    let names = tensors.iter().map(|tensor| tensor.name.as_str());
    let mut chooser = Chooser::new(recipe.base(), facts, names);
    // The order in which mixtures count.
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_unstable_by_key(|&i| (layer_of(&tensors[i].name), &tensors[i].name));
    let mut choices: Vec<Option<Choice>> = vec![None; tensors.len()];
    let mut uses = vec![Use::default(); recipe.rules().len()];
    for place in order {
        let tensor = &tensors[place];
        let matching = recipe.matching(&tensor.name, layer_of(&tensor.name));
        let stays = must_stay(tensor);
        for &rule in &matching {
            uses[rule].note(place, stays);
        }
        let (wanted, reason) = match (stays, matching.last()) {
            (Some(why), _) => (tensor.quant, Reason::Kept(why)),
            // What a rule overrules counts all the same, so that it changes no other tensor.
            (None, rule) => match (chooser.next(&tensor.name), rule) {
                (_, Some(&rule)) => (recipe.rules()[rule].quant, Reason::Rule(rule)),
                (quant, None) => (quant, Reason::Mixture),
            },
        };
        choices[place] = Some(choice(tensor, wanted, reason));
    }
    check_uses(recipe, &uses, tensors)?;
    Ok(choices.into_iter().flatten().collect())
}

fn choice(tensor: &TensorInfo, wanted: QuantType, reason: Reason) -> Choice {
    let n_cols = usize::try_from(tensor.dims()[0]).unwrap_or(usize::MAX);
    let to = if matches!(reason, Reason::Kept(_)) { wanted } else { fallback(wanted, n_cols) };
    Choice {
        tensor: tensor.name.clone(),
        from: tensor.quant,
        wanted,
        to,
        reason,
        is_expert: ExpertTensor::parse(&tensor.name).is_some(),
        n_cols,
        n_values: tensor.dims().iter().product(),
    }
}

/// What a rule was good for.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    /// It matched a tensor that may be quantised.
    works: bool,
    /// The first tensor that it matched and that must stay.
    kept: Option<(usize, &'static str)>,
}

impl Use {
    fn note(&mut self, place: usize, stays: Option<&'static str>) {
        match stays {
            None => self.works = true,
            Some(why) => self.kept = self.kept.or(Some((place, why))),
        }
    }
}

/// Refuses rules that say nothing about the model.
fn check_uses(recipe: &Recipe, uses: &[Use], tensors: &[TensorInfo]) -> Result<(), PlanError> {
    for (place, (rule, used)) in recipe.rules().iter().zip(uses).enumerate() {
        if !recipe.is_binding(place) {
            continue;
        }
        let rule = rule.to_string();
        match (used.works, used.kept) {
            (true, _) => {}
            (false, Some((place, reason))) => {
                return Err(PlanError::OnlyKept { rule, tensor: tensors[place].name.clone(), reason });
            }
            (false, None) => return Err(PlanError::NoMatch { rule }),
        }
    }
    Ok(())
}
