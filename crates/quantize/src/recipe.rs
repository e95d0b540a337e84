//! Which tensor should get which type: a mixture that chooses for all, and rules that overrule it.
//!
//! `docs/quantising.md` describes the file format.

mod file;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use forerun_compute::quantise::is_encodable;
use forerun_model::QuantType;
use globset::{GlobBuilder, GlobSet};

use crate::error::RecipeError;

/// Chooses a type for every tensor that no rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixture {
    /// llama.cpp's Q4_K_M.
    Q4KM,
    /// llama.cpp's Q3_K_M.
    Q3KM,
    /// One type for all that may be quantised, the head too. Of Q8_0 it is llama.cpp's file of that name.
    All(QuantType),
}

impl Mixture {
    const NAMED: [(&'static str, Self); 3] =
        [("q4_k_m", Self::Q4KM), ("q3_k_m", Self::Q3KM), ("q8_0", Self::All(QuantType::Q8_0))];

    /// The number that files of this mixture have in `general.file_type`; source: `llama_ftype` of llama.cpp. Mixed files
    /// of one type are named after the small mixture of it.
    pub fn file_type(self) -> u32 {
        match self {
            Self::Q4KM => 15,
            Self::Q3KM => 12,
            Self::All(quant) => match quant {
                QuantType::F32 => 0,
                QuantType::F16 => 1,
                QuantType::Q4_0 => 2,
                QuantType::Q4_1 => 3,
                QuantType::Q8_0 => 7,
                QuantType::Q5_0 => 8,
                QuantType::Q5_1 => 9,
                QuantType::Q2_K => 10,
                QuantType::Q3_K => 11,
                QuantType::Q4_K => 14,
                QuantType::Q5_K => 16,
                QuantType::Q6_K => 18,
                QuantType::IQ4_NL => 25,
                QuantType::IQ4_XS => 30,
                QuantType::BF16 => 32,
                // "Guessed": readers look at the tensors.
                _ => 1024,
            },
        }
    }
}

/// One type for the tensors of some names, in some layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Names, as a pattern: `*` any text, `?` a character, `[0-9]` one of some, `{a,b}` one of two.
    pub tensors: String,
    /// Layers to which it is limited; `None` for all tensors of such names.
    pub layers: Option<Layers>,
    /// The type.
    pub quant: QuantType,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the rule {:?} -> {}", self.tensors, self.quant)?;
        match &self.layers {
            Some(layers) => write!(f, " (layers {layers})"),
            None => Ok(()),
        }
    }
}

/// Some layers, as ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layers(Vec<RangeInclusive<u32>>);

impl Layers {
    /// Reads numbers and ranges such as `0-3,7`; `None` when it isn't that.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| text.trim().parse::<u32>().ok();
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Some(number(first)?..=number(last)?).filter(|range| !range.is_empty())
        };
        text.split(',').map(range).collect::<Option<_>>().map(Self)
    }

    /// Whether `layer` is one of them.
    pub fn contains(&self, layer: u32) -> bool {
        self.0.iter().any(|range| range.contains(&layer))
    }
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(f, "{comma}{first}")?,
                (first, last) => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

/// A mixture and rules; of several rules that match a tensor the last one counts.
#[derive(Clone, Debug)]
pub struct Recipe {
    name: String,
    base: Mixture,
    rules: Vec<Rule>,
    /// How many of the rules, the first ones, are those of `les`: they name every way in which experts are kept, so some of
    /// them match nothing.
    n_les: usize,
    /// One pattern per rule.
    patterns: GlobSet,
}

impl Recipe {
    /// The names that [`Recipe::named`] knows.
    pub const NAMES: [&str; 4] = ["q4_k_m", "les", "q3_k_m", "q8_0"];

    /// A recipe of rules over a mixture. `name` is what messages and the file's header call it.
    ///
    /// # Errors
    /// [`RecipeError`] names a rule whose pattern can't be understood, or whose type can't be written.
    pub fn new(name: &str, base: Mixture, rules: Vec<Rule>) -> Result<Self, RecipeError> {
        Self::compile(name, base, (0, rules))
    }

    /// The rules of `les`, and `rules` behind them.
    fn over_les(name: &str, rules: Vec<Rule>) -> Result<Self, RecipeError> {
        let les =
            EXPERTS.map(|tensors| Rule { tensors: tensors.into(), layers: None, quant: QuantType::Q3_K });
        Self::compile(name, Mixture::Q4KM, (les.len(), [les.to_vec(), rules].concat()))
    }

    fn compile(name: &str, base: Mixture, (n_les, rules): (usize, Vec<Rule>)) -> Result<Self, RecipeError> {
        if let Mixture::All(quant) = base {
            check_encodable("`default`", quant)?;
        }
        let mut patterns = GlobSet::builder();
        for (i, rule) in rules.iter().enumerate() {
            let place = format!("rule {}", (i + 1).saturating_sub(n_les));
            check_encodable(&format!("`type` of {place}"), rule.quant)?;
            let pattern = GlobBuilder::new(&rule.tensors).backslash_escape(true).build();
            patterns.add(pattern.map_err(|source| RecipeError::Glob { place, source })?);
        }
        let place = "all rules together".to_owned();
        let patterns = patterns.build().map_err(|source| RecipeError::Glob { place, source })?;
        Ok(Self { name: name.to_owned(), base, rules, n_les, patterns })
    }

    /// A recipe that comes with the program; `None` when there is none of that name.
    ///
    /// `les` gives the routed experts Q3_K, however a file keeps them, and all else what Q4_K_M gives it.
    #[expect(clippy::missing_panics_doc, reason = "own patterns are tested")]
    pub fn named(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        let recipe = match name.as_str() {
            "les" => Self::over_les(&name, Vec::new()),
            _ => Self::new(&name, Mixture::NAMED.iter().find(|named| named.0 == name)?.1, Vec::new()),
        };
        Some(recipe.expect("own patterns can be understood"))
    }

    /// A type for each tensor that `types` names, and what `base` chooses for the others.
    ///
    /// # Errors
    /// [`RecipeError::Type`] for a type that can't be written.
    pub fn exact(
        name: &str,
        base: Mixture,
        types: &BTreeMap<String, QuantType>,
    ) -> Result<Self, RecipeError> {
        let rule = |(tensor, quant): (&String, &QuantType)| Rule {
            tensors: globset::escape(tensor),
            layers: None,
            quant: *quant,
        };
        Self::new(name, base, types.iter().map(rule).collect())
    }

    /// The recipe of that name, or in the file of that name.
    ///
    /// # Errors
    /// [`RecipeError`] says what is wrong with the file.
    pub fn open(name: &Path) -> Result<Self, RecipeError> {
        if let Some(recipe) = name.to_str().and_then(Self::named) {
            return Ok(recipe);
        }
        let read =
            |source| RecipeError::Read { path: name.to_owned(), possible: Self::NAMES.join(", "), source };
        Self::parse(&name.display().to_string(), &fs::read_to_string(name).map_err(read)?)
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What chooses where no rule does.
    pub fn base(&self) -> Mixture {
        self.base
    }

    /// Its rules.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether the rule of that place must match something, as all do that a user wrote.
    pub fn is_binding(&self, rule: usize) -> bool {
        rule >= self.n_les
    }

    /// The rules that match a tensor of that name and layer, by their places; the last one counts.
    pub fn matching(&self, tensor: &str, layer: Option<u32>) -> Vec<usize> {
        let mut places = self.patterns.matches(tensor);
        places.retain(|&i| match &self.rules[i].layers {
            None => true,
            Some(layers) => layer.is_some_and(|layer| layers.contains(layer)),
        });
        places
    }
}

/// The types that can be written, for messages.
pub fn encodable_types() -> String {
    let names: Vec<_> = QuantType::all().filter(|quant| is_encodable(*quant)).map(QuantType::name).collect();
    names.join(" ")
}

fn check_encodable(place: &str, quant: QuantType) -> Result<(), RecipeError> {
    if is_encodable(quant) {
        return Ok(());
    }
    let (place, found) = (place.to_owned(), quant.name().to_owned());
    Err(RecipeError::Type { place, found, possible: encodable_types() })
}

/// Routed experts, stacked, fused or one tensor each; not the shared expert, `ffn_gate_shexp`.
const EXPERTS: [&str; 2] =
    ["blk.*.ffn_{gate,up,down,gate_up}_exps.weight", "blk.*.ffn_{gate,up,down}.[0-9]*.weight"];
