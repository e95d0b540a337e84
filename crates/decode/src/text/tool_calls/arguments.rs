//! What a parameter's text is: the tool's schema says so.

use serde::de::IgnoredAny;
use serde_json::Value;

/// Schemas that are looked at for one parameter: references may go in circles.
const STEPS_MAX: usize = 256;

/// The functions of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Tools {
    functions: Vec<Function>,
}

#[derive(Clone, Debug)]
struct Function {
    name: String,
    /// The schema of its arguments.
    parameters: Value,
}

/// Types that a schema allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Types(u8);

impl Types {
    const STRING: Self = Self(1);
    const NUMBER: Self = Self(2);
    const BOOLEAN: Self = Self(4);
    const NULL: Self = Self(8);
    const ARRAY: Self = Self(16);
    const OBJECT: Self = Self(32);

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::STRING,
            "integer" | "number" => Self::NUMBER,
            "boolean" => Self::BOOLEAN,
            "null" => Self::NULL,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            _ => Self::default(),
        }
    }

    fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(_) => Self::NUMBER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    fn union(all: impl Iterator<Item = Self>) -> Self {
        Self(all.fold(0, |bits, types| bits | types.0))
    }
}

impl Tools {
    /// Takes OpenAI's form, a function inside a tool, and the flat one.
    pub(super) fn new(tools: &[Value]) -> Self {
        let function = |tool: &Value| {
            let function = tool.get("function").unwrap_or(tool);
            let parameters = function.get("parameters").or_else(|| function.get("input_schema"));
            let name = function.get("name")?.as_str()?.to_owned();
            Some(Function { name, parameters: parameters.cloned().unwrap_or_default() })
        };
        Self { functions: tools.iter().filter_map(function).collect() }
    }

    /// The JSON for `text`, the value of `key` in a call of `function`: what the schema allows, as it is written; otherwise,
    /// and where the schema says nothing, a string.
    pub(super) fn value(&self, function: &str, key: &str, text: &str) -> String {
        let types = self.types(function, key);
        let word = text.trim();
        if types.has(Types::NULL) && (word == "null" || word == "None") {
            return "null".to_owned();
        }
        if types == Types::default() || types.has(Types::STRING) {
            return quoted(text);
        }
        // The template writes an earlier call's values as Python does, and the model repeats what it read.
        if types.has(Types::BOOLEAN) && (word == "True" || word == "False") {
            return word.to_ascii_lowercase();
        }
        if json_type(word).is_some_and(|found| types.has(found)) { word.to_owned() } else { quoted(text) }
    }

    fn types(&self, function: &str, key: &str) -> Types {
        let function = self.functions.iter().find(|known| known.name == function);
        function.map_or(Types::default(), |function| parameter_types(&function.parameters, key))
    }
}

/// Whether the text of parameter `key` is a string whatever it says, by the schema of all parameters.
pub(super) fn is_read_as_text(parameters: &Value, key: &str) -> bool {
    let types = parameter_types(parameters, key);
    types == Types::default() || types.has(Types::STRING)
}

fn parameter_types(parameters: &Value, key: &str) -> Types {
    let schema = parameters.get("properties").and_then(|properties| properties.get(key));
    schema.map_or(Types::default(), |schema| types(schema, parameters, &mut { STEPS_MAX }))
}

/// The types that `schema` allows; none when it doesn't say.
fn types(schema: &Value, root: &Value, steps: &mut usize) -> Types {
    let Some(left) = steps.checked_sub(1) else { return Types::default() };
    *steps = left;
    match schema.get("type") {
        Some(Value::String(name)) => return Types::named(name),
        Some(Value::Array(names)) => {
            return Types::union(names.iter().filter_map(Value::as_str).map(Types::named));
        }
        _ => {}
    }
    if let Some(constant) = schema.get("const") {
        return Types::of(constant);
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return Types::union(values.iter().map(Types::of));
    }
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix('#'));
    if let Some(target) = target.and_then(|path| root.pointer(path)) {
        return types(target, root, steps);
    }
    let branches = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|key| schema.get(key)?.as_array());
    Types::union(branches.flatten().map(|branch| types(branch, root, steps)))
}

/// The type of a JSON text; `None` when it isn't JSON.
fn json_type(text: &str) -> Option<Types> {
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    Some(match text.bytes().next()? {
        b'{' => Types::OBJECT,
        b'[' => Types::ARRAY,
        b'"' => Types::STRING,
        b't' | b'f' => Types::BOOLEAN,
        b'n' => Types::NULL,
        _ => Types::NUMBER,
    })
}

/// `text` as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
