//! Recipes as files: read strictly, and written so that they read as the same recipe.

use std::fmt::Write;

use forerun_model::QuantType;
use serde::Deserialize;

use super::{Layers, Mixture, Recipe, Rule, encodable_types};
use crate::error::RecipeError;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    base: Option<String>,
    default: Option<String>,
    #[serde(default)]
    rule: Vec<FileRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileRule {
    tensors: String,
    layers: Option<String>,
    #[serde(rename = "type")]
    quant: String,
}

impl Recipe {
    /// Reads a recipe file's text.
    ///
    /// # Errors
    /// [`RecipeError`] names the key, the rule or the type that is wrong, and what there is instead.
    pub fn parse(name: &str, text: &str) -> Result<Self, RecipeError> {
        let file: File = toml::from_str(text)?;
        let base = match (file.base, file.default) {
            (Some(base), None) if base.eq_ignore_ascii_case("les") => {
                return Self::over_les(name, rules(file.rule)?);
            }
            (Some(base), None) => mixture(base)?,
            (None, Some(default)) => Mixture::All(quant("`default`", default)?),
            _ => return Err(RecipeError::Start { possible: Self::NAMES.join(", ") }),
        };
        Self::new(name, base, rules(file.rule)?)
    }

    /// The recipe as a file's text.
    pub fn to_toml(&self) -> String {
        let mut text = match self.base {
            _ if self.n_les > 0 => "base = \"les\"\n".to_owned(),
            Mixture::All(quant) if quant != QuantType::Q8_0 => format!("default = \"{quant}\"\n"),
            base => {
                let named = Mixture::NAMED.iter().find(|named| named.1 == base);
                format!("base = \"{}\"\n", named.map_or("q4_k_m", |named| named.0))
            }
        };
        for rule in &self.rules[self.n_les..] {
            // A TOML string of its own kind has no escapes; one with quotes in it needs them.
            let tensors = toml::Value::String(rule.tensors.clone());
            let _ = write!(text, "\n[[rule]]\ntensors = {tensors}\n");
            if let Some(layers) = &rule.layers {
                let _ = writeln!(text, "layers = \"{layers}\"");
            }
            let _ = writeln!(text, "type = \"{}\"", rule.quant);
        }
        text
    }
}

fn mixture(found: String) -> Result<Mixture, RecipeError> {
    let named = Mixture::NAMED.iter().find(|named| named.0.eq_ignore_ascii_case(&found));
    named.map(|named| named.1).ok_or_else(|| RecipeError::Base { found, possible: Recipe::NAMES.join(", ") })
}

fn rules(file: Vec<FileRule>) -> Result<Vec<Rule>, RecipeError> {
    let rule = |(i, rule): (usize, FileRule)| {
        let place = format!("rule {}", i + 1);
        let quant = quant(&format!("`type` of {place}"), rule.quant)?;
        let layers = match rule.layers {
            None => None,
            Some(found) => match Layers::parse(&found) {
                Some(layers) => Some(layers),
                None => return Err(RecipeError::Layers { place, found }),
            },
        };
        Ok(Rule { tensors: rule.tensors, layers, quant })
    };
    file.into_iter().enumerate().map(rule).collect()
}

/// A type by its name, in whatever case.
fn quant(place: &str, found: String) -> Result<QuantType, RecipeError> {
    let known = QuantType::all().find(|quant| quant.name().eq_ignore_ascii_case(&found));
    known.ok_or_else(|| RecipeError::Type { place: place.to_owned(), found, possible: encodable_types() })
}
