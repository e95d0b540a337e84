//! Chooses types by measurement, so that a file of a given size loses as little as possible.
//!
//! For each tensor (a layer's experts of one matrix are one), rows are encoded in every type that it may have, and the error
//! is weighted by the importance matrix and by how often each expert is used: that is the noise which a type adds to
//! the tensor's output, as a share of the output. What such noise does to the model's answer is estimated from where it
//! enters (`weigh`); bytes then go where they save most (`allocate`).

mod allocate;
mod groups;
mod measure;
#[cfg(test)]
mod tests;
mod weigh;

use std::collections::BTreeMap;

use forerun_model::QuantType;
use forerun_storage::{Gguf, TensorInfo};

use crate::Imatrix;
use crate::error::{AutoError, QuantizeError};
use crate::lookup::Lookup;
use crate::plan::{Facts, Permissions, Plan};
use crate::recipe::{Mixture, Recipe};
use allocate::Offer;
use groups::{Group, groups};
use measure::Loss;

/// Times that a choice is made again when the file turns out larger than thought: its header names the choice.
const TRIES_MAX: usize = 8;

/// Measures a model's tensors, one group after the other.
pub struct Auto<'a> {
    gguf: &'a Gguf,
    lookup: Lookup<'a>,
    n_threads: usize,
    /// Experts of a token.
    top_k: u32,
    groups: Vec<Group>,
    losses: Vec<Loss>,
}

impl<'a> Auto<'a> {
    /// Finds what there is to measure.
    ///
    /// # Errors
    /// [`QuantizeError`] when the model can't be quantised at all.
    pub fn new(
        gguf: &'a Gguf,
        facts: Facts,
        imatrix: &'a Imatrix,
        permissions: Permissions,
        n_threads: usize,
    ) -> Result<Self, QuantizeError> {
        let largest = Recipe::exact("auto", BASE, &BTreeMap::new())?;
        let plan = Plan::new(gguf.tensors(), facts, &largest, None, permissions)?;
        let groups = groups(gguf.tensors(), &plan.choices)?;
        let lookup = Lookup { imatrix, n_experts: facts.n_experts as usize };
        Ok(Self {
            gguf,
            lookup,
            n_threads,
            top_k: facts.top_k,
            losses: Vec::with_capacity(groups.len()),
            groups,
        })
    }

    /// Groups of tensors to measure.
    pub fn n_groups(&self) -> usize {
        self.groups.len()
    }

    /// Groups that were measured.
    pub fn n_measured(&self) -> usize {
        self.losses.len()
    }

    /// Measures the next group; `false` when there is none.
    ///
    /// # Errors
    /// [`AutoError`] names what can't be measured.
    #[expect(clippy::missing_panics_doc, reason = "groups are made of the model's own tensors")]
    pub fn step(&mut self) -> Result<bool, AutoError> {
        let Some(group) = self.groups.get(self.losses.len()) else { return Ok(false) };
        let tensor = |name: &String| self.gguf.tensor(name).expect("groups are made of the model's tensors");
        let tensors: Vec<&TensorInfo> = group.tensors.iter().map(tensor).collect();
        let types: Vec<QuantType> = group.types.iter().map(|(quant, _)| *quant).collect();
        self.losses.push(measure::measure(self.gguf, &tensors, &types, self.lookup, self.n_threads)?);
        Ok(self.losses.len() < self.groups.len())
    }

    /// Measures what is left, and what all of it means.
    ///
    /// # Errors
    /// As [`Auto::step`].
    pub fn finish(mut self) -> Result<Measured, AutoError> {
        while self.step()? {}
        let weights = weigh::weights(&self.groups, &self.losses, self.top_k);
        let offers = self.groups.iter().zip(&self.losses).zip(weights);
        let offers = offers.map(|((group, loss), weight)| {
            let offer =
                |(&(_, bytes), noise): (&(QuantType, u64), &f64)| Offer { bytes, loss: weight * noise };
            group.types.iter().zip(&loss.noise).map(offer).collect()
        });
        Ok(Measured { offers: offers.collect(), groups: self.groups })
    }
}

/// What every type would cost every tensor.
#[derive(Clone, Debug)]
pub struct Measured {
    groups: Vec<Group>,
    offers: Vec<Vec<Offer>>,
}

/// What a choice comes to.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The choice, as rules for each tensor.
    pub recipe: Recipe,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Estimated loss, in units that mean something only beside another choice for the same model.
    pub loss: f64,
}

/// What no rule of a choice names stays as it is, so no tensor gets a type by this.
const BASE: Mixture = Mixture::All(QuantType::Q8_0);

impl Measured {
    /// The types with which the file has at most `target_bytes` and loses least; `file_bytes` says how many a recipe's
    /// file has.
    ///
    /// # Errors
    /// [`AutoError::Target`] when even the smallest file is larger, and those of `file_bytes`.
    pub fn choose<E: From<AutoError> + From<QuantizeError>>(
        &self,
        target_bytes: u64,
        file_bytes: impl Fn(&Recipe) -> Result<u64, E>,
    ) -> Result<Chosen, E> {
        let smallest = self.recipe(&self.smallest())?;
        let smallest_bytes = file_bytes(&smallest)?;
        let overhead = smallest_bytes - self.bytes(&self.smallest());
        let too_small = AutoError::Target { target_bytes, smallest_bytes };
        let Some(mut budget_bytes) = target_bytes.checked_sub(overhead) else { return Err(too_small.into()) };
        for _ in 0..TRIES_MAX {
            let Some(places) = self.allocate(budget_bytes) else { break };
            let recipe = self.recipe(&places)?;
            let found = file_bytes(&recipe)?;
            if found <= target_bytes {
                let loss = self.loss(&places);
                return Ok(Chosen { recipe, file_bytes: found, loss });
            }
            budget_bytes = budget_bytes.saturating_sub(found - target_bytes);
        }
        Err(too_small.into())
    }

    /// Estimated loss of what `recipe` gives each tensor; `None` when that isn't one of the types that were measured.
    pub fn loss_of(&self, types: impl Fn(&str) -> Option<QuantType>) -> Option<f64> {
        let place = |group: &Group| {
            let quant = types(&group.tensors[0])?;
            group.types.iter().position(|(known, _)| *known == quant)
        };
        let places = self.groups.iter().map(place).collect::<Option<Vec<_>>>()?;
        Some(self.loss(&places))
    }

    /// Types with fast kernels where they are small enough, else all.
    fn allocate(&self, budget_bytes: u64) -> Option<Vec<usize>> {
        let skips: Vec<usize> = self.groups.iter().map(|group| usize::from(group.starts_slow())).collect();
        let fast: Vec<_> =
            self.offers.iter().zip(&skips).map(|(offers, &skip)| offers[skip..].to_vec()).collect();
        match allocate::allocate(&fast, budget_bytes) {
            Some(places) => Some(places.iter().zip(&skips).map(|(place, skip)| place + skip).collect()),
            None => allocate::allocate(&self.offers, budget_bytes),
        }
    }

    fn smallest(&self) -> Vec<usize> {
        let least = |offers: &Vec<Offer>| (0..offers.len()).min_by_key(|&i| offers[i].bytes).unwrap_or(0);
        self.offers.iter().map(least).collect()
    }

    fn bytes(&self, places: &[usize]) -> u64 {
        self.offers.iter().zip(places).map(|(offers, &place)| offers[place].bytes).sum()
    }

    fn loss(&self, places: &[usize]) -> f64 {
        self.offers.iter().zip(places).map(|(offers, &place)| offers[place].loss).sum()
    }

    fn recipe(&self, places: &[usize]) -> Result<Recipe, QuantizeError> {
        let types = self.groups.iter().zip(places).flat_map(|(group, &place)| {
            let quant = group.types[place].0;
            group.tensors.iter().map(move |name| (name.clone(), quant))
        });
        Ok(Recipe::exact("auto", BASE, &types.collect())?)
    }
}
