//! What a plan comes to: a table for people, and the same for programs.

use std::collections::BTreeMap;

use forerun_decode::bytes_text;
use forerun_quantize::keys::fallback_text;
use forerun_quantize::{Choice, Plan, Recipe};
use serde::Serialize;

/// Names of a list that are shown before the rest is only counted.
const SHOWN_MAX: usize = 8;

/// What a plan comes to.
#[derive(Serialize)]
pub(super) struct Report {
    recipe: String,
    /// Types of the target, the one with the most bytes first.
    types: Vec<TypeTotal>,
    experts: Total,
    rest: Total,
    total: Total,
    fallbacks: Vec<String>,
    unseen: Vec<Unseen>,
    /// Tensors without an entry in the importance matrix.
    absent: Vec<String>,
    requantised: usize,
}

#[derive(Serialize)]
struct TypeTotal {
    #[serde(rename = "type")]
    quant: &'static str,
    #[serde(flatten)]
    total: Total,
}

/// Some of the tensors; bytes are of their data.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Total {
    n_tensors: usize,
    bytes_before: u64,
    bytes_after: u64,
    bits_per_weight: f64,
    #[serde(skip)]
    n_values: u64,
}

#[derive(Serialize)]
struct Unseen {
    tensor: String,
    unseen: usize,
    experts: usize,
}

impl Total {
    fn add(&mut self, choice: &Choice) {
        let [before, after] = choice.bytes();
        self.n_tensors += 1;
        self.bytes_before += before;
        self.bytes_after += after;
        self.n_values += choice.n_values;
        #[expect(clippy::cast_precision_loss, reason = "an average for people")]
        let bits = self.bytes_after as f64 * 8.0 / self.n_values as f64;
        self.bits_per_weight = bits;
    }

    fn line(&self, name: &str) -> String {
        let Self { n_tensors, bits_per_weight, .. } = self;
        let (before, after) = (bytes_text(self.bytes_before), bytes_text(self.bytes_after));
        format!("{name:<10} {n_tensors:>7} {before:>12} {after:>12} {bits_per_weight:>9.3}")
    }
}

impl Report {
    pub(super) fn new(plan: &Plan, recipe: &Recipe) -> Self {
        let mut types: BTreeMap<&'static str, Total> = BTreeMap::new();
        let [mut experts, mut rest, mut total] = [Total::default(); 3];
        for choice in &plan.choices {
            types.entry(choice.to.name()).or_default().add(choice);
            if choice.is_expert { &mut experts } else { &mut rest }.add(choice);
            total.add(choice);
        }
        let mut types: Vec<_> = types.into_iter().map(|(quant, total)| TypeTotal { quant, total }).collect();
        types.sort_by_key(|row| std::cmp::Reverse(row.total.bytes_after));
        let unseen = plan.unseen.iter().map(|unseen| Unseen {
            tensor: unseen.tensor.clone(),
            unseen: unseen.n_unseen,
            experts: unseen.n_matrices,
        });
        Self {
            recipe: recipe.name().to_owned(),
            types,
            experts,
            rest,
            total,
            fallbacks: plan.fallbacks().map(fallback_text).collect(),
            unseen: unseen.collect(),
            absent: plan.absent.clone(),
            requantised: plan.n_requantised,
        }
    }

    /// The table.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!("recipe {}", self.recipe),
            format!("{:<10} {:>7} {:>12} {:>12} {:>9}", "type", "tensors", "before", "after", "bits/w"),
        ];
        lines.extend(self.types.iter().map(|row| row.total.line(row.quant)));
        let sums = [("experts", &self.experts), ("the rest", &self.rest), ("all", &self.total)];
        lines.extend(sums.iter().map(|(name, total)| total.line(name)));
        lines
    }

    /// What the user should know before it is made.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let shown = |list: Vec<String>| {
            let n_more = list.len().saturating_sub(SHOWN_MAX);
            let words = list.into_iter().take(SHOWN_MAX).collect::<Vec<_>>().join("; ");
            if n_more == 0 { words } else { format!("{words}; and {n_more} more") }
        };
        if !self.fallbacks.is_empty() {
            let n = self.fallbacks.len();
            warnings.push(format!("{n} tensors get another type: {}", shown(self.fallbacks.clone())));
        }
        if self.requantised > 0 {
            warnings.push(format!("{} tensors were quantised before: their errors add up", self.requantised));
        }
        if !self.absent.is_empty() {
            let n = self.absent.len();
            let names = shown(self.absent.clone());
            warnings.push(format!("the importance matrix has no entry for {n} tensors: {names}"));
        }
        if !self.unseen.is_empty() {
            let n: usize = self.unseen.iter().map(|unseen| unseen.unseen).sum();
            let of = |u: &Unseen| format!("{} of {} of {}", u.unseen, u.experts, u.tensor);
            let names = shown(self.unseen.iter().map(of).collect());
            warnings.push(format!(
                "the importance matrix has no data for {n} experts' matrices, so all of their columns count alike: {names}"
            ));
        }
        warnings
    }
}
