//! Whether a schema has a value at all, or every value would have to hold another one like it.

use serde_json::Value;

/// Schemas that are looked at; beyond, there is taken to be a value.
const STEPS_MAX: usize = 20_000;

/// Looks for a finite value.
pub(super) struct Finite<'a> {
    root: &'a Value,
    /// References that are being followed: a value that ends doesn't need itself.
    open: Vec<&'a str>,
    steps: usize,
}

impl<'a> Finite<'a> {
    /// For the parts of a schema that was checked.
    pub(super) fn new(root: &'a Value) -> Self {
        Self { root, open: Vec::new(), steps: 0 }
    }

    /// Whether `schema` has a value that ends, as far as references decide it.
    pub(super) fn ends(&mut self, schema: &'a Value) -> bool {
        self.steps += 1;
        let Some(keywords) = schema.as_object().filter(|_| self.steps < STEPS_MAX) else { return true };
        let list = |name: &str| keywords.get(name).and_then(Value::as_array);
        let refers = keywords.get("$ref").and_then(Value::as_str).is_none_or(|path| self.refers(path));
        refers
            && list("allOf").is_none_or(|all| all.iter().all(|part| self.ends(part)))
            && ["anyOf", "oneOf"]
                .iter()
                .all(|name| list(name).is_none_or(|any| any.iter().any(|part| self.ends(part))))
            && self.holds(schema)
    }

    fn refers(&mut self, path: &'a str) -> bool {
        let Some(target) = path.strip_prefix('#').and_then(|path| self.root.pointer(path)) else {
            return true;
        };
        if self.open.contains(&path) {
            return false;
        }
        self.open.push(path);
        let ends = self.ends(target);
        self.open.pop();
        ends
    }

    /// Whether what an object or an array must hold ends.
    fn holds(&mut self, schema: &'a Value) -> bool {
        match schema["type"].as_str() {
            Some("object") => {
                let mut required =
                    schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
                required.all(|name| schema["properties"].get(name).is_none_or(|part| self.ends(part)))
            }
            Some("array") => {
                let n_min = schema["minItems"].as_u64().unwrap_or(0);
                let first = schema["prefixItems"].as_array().map_or(&[][..], Vec::as_slice);
                let must = |i: usize| (i as u64) < n_min;
                let rest = schema["items"].is_object() && must(first.len());
                first.iter().enumerate().all(|(i, part)| !must(i) || self.ends(part))
                    && (!rest || self.ends(&schema["items"]))
            }
            _ => true,
        }
    }
}
