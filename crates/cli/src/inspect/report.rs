//! A model file's contents, gathered.

use std::collections::BTreeMap;
use std::io::{self, Write};

use forerun_decode::bytes_text;
use forerun_model::{KeyValue, KeyValues, LayerKind, ModelShape};
use forerun_storage::{Catalog, Gguf, TensorInfo};
use serde::Serialize;
use serde_json::{Value as Json, json};

/// Arrays up to this length are in the JSON; of longer ones only their length is.
const ARRAY_SHOWN_MAX: usize = 64;

/// Everything that `inspect` says.
#[derive(Serialize)]
pub(super) struct Report {
    files: Vec<File>,
    metadata: serde_json::Map<String, Json>,
    #[serde(skip)]
    metadata_text: Vec<(String, String)>,
    tensors: Vec<Tensor>,
    types: Vec<TypeTotal>,
    total_bytes: u64,
    /// The model as it would run; `null` when it can't.
    model: Option<Model>,
    /// Why it can't run.
    problem: Option<String>,
}

#[derive(Serialize)]
struct File {
    path: String,
    bytes: u64,
}

#[derive(Serialize)]
struct Tensor {
    name: String,
    #[serde(rename = "type")]
    quant: &'static str,
    dims: Vec<u64>,
    file: u16,
    offset_bytes: u64,
    bytes: u64,
}

/// All tensors of one type.
#[derive(Serialize)]
struct TypeTotal {
    #[serde(rename = "type")]
    quant: &'static str,
    n_tensors: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct Model {
    hidden: usize,
    vocabulary: usize,
    context: usize,
    experts_per_layer: usize,
    experts_per_token: usize,
    prediction_blocks: usize,
    expert_bytes: u64,
    resident_bytes: u64,
    slot_bytes: usize,
    layers: Vec<Layer>,
}

#[derive(Serialize)]
struct Layer {
    layer: u16,
    mixer: &'static str,
    resident_bytes: u64,
    expert_bytes: u64,
    /// Bytes of one expert's weights.
    expert_record_bytes: usize,
    /// Types of gate, up and down.
    expert_types: [&'static str; 3],
}

impl Report {
    pub(super) fn new(gguf: &Gguf, model: Result<&(ModelShape, Catalog), &str>) -> Self {
        let files = gguf.files().files().iter();
        let tensors = gguf.tensors();
        Self {
            files: files
                .map(|file| File { path: file.path.display().to_string(), bytes: file.len_bytes })
                .collect(),
            metadata: metadata(gguf),
            metadata_text: gguf.metadata.entries().iter().map(|(k, v)| (k.clone(), v.to_string())).collect(),
            tensors: tensors.iter().map(Tensor::new).collect(),
            types: types(tensors),
            total_bytes: tensors.iter().map(|tensor| tensor.len_bytes).sum(),
            model: model.ok().map(|(shape, catalog)| Model::new(gguf, shape, catalog)),
            problem: model.err().map(str::to_owned),
        }
    }

    /// Writes the report for people.
    pub(super) fn write(&self, out: &mut impl Write, with_tensors: bool) -> io::Result<()> {
        for file in &self.files {
            writeln!(out, "{}  {}", file.path, bytes_text(file.bytes))?;
        }
        writeln!(out, "\nmetadata")?;
        let width = self.metadata_text.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
        for (key, value) in &self.metadata_text {
            writeln!(out, "  {key:<width$}  {value}")?;
        }
        writeln!(out, "\n{} tensors, {}", self.tensors.len(), bytes_text(self.total_bytes))?;
        for total in &self.types {
            let (quant, n, bytes) = (total.quant, total.n_tensors, bytes_text(total.bytes));
            writeln!(out, "  {quant:<8}{n:>6}{bytes:>14}")?;
        }
        if with_tensors {
            self.write_tensors(out)?;
        }
        match (&self.model, &self.problem) {
            (Some(model), _) => model.write(out),
            (None, Some(problem)) => writeln!(out, "\nthis model can't run here: {problem}"),
            (None, None) => Ok(()),
        }
    }

    fn write_tensors(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out)?;
        let width = self.tensors.iter().map(|tensor| tensor.name.len()).max().unwrap_or(0);
        for t in &self.tensors {
            let dims: Vec<_> = t.dims.iter().map(u64::to_string).collect();
            let (dims, bytes) = (dims.join(" x "), bytes_text(t.bytes));
            writeln!(
                out,
                "  {:<width$}  {:<8}{dims:<22}{bytes:>12}  at {}",
                t.name, t.quant, t.offset_bytes
            )?;
        }
        Ok(())
    }
}

fn metadata(gguf: &Gguf) -> serde_json::Map<String, Json> {
    let value = |key: &str| match gguf.metadata.get(key) {
        None | Some(KeyValue::Nested) => Json::Null,
        Some(KeyValue::Integer(v)) => i64::try_from(v).map_or_else(|_| json!(v.to_string()), |v| json!(v)),
        Some(KeyValue::Float(v)) => json!(v),
        Some(KeyValue::Bool(v)) => json!(v),
        Some(KeyValue::Text(v)) => json!(v),
        Some(KeyValue::Integers(v)) => array(&v, |v| json!(i64::try_from(*v).unwrap_or(i64::MAX))),
        Some(KeyValue::Floats(v)) => array(&v, |v| json!(v)),
        Some(KeyValue::Bools(v)) => array(&v, |v| json!(v)),
        Some(KeyValue::Texts(v)) => array(v, |v| json!(v)),
    };
    gguf.metadata.entries().iter().map(|(key, _)| (key.clone(), value(key))).collect()
}

fn array<T>(values: &[T], one: impl Fn(&T) -> Json) -> Json {
    if values.len() > ARRAY_SHOWN_MAX {
        return json!({ "array_length": values.len() });
    }
    values.iter().map(one).collect()
}

fn types(tensors: &[TensorInfo]) -> Vec<TypeTotal> {
    let mut totals: BTreeMap<&'static str, (usize, u64)> = BTreeMap::new();
    for tensor in tensors {
        let total = totals.entry(tensor.quant.name()).or_default();
        *total = (total.0 + 1, total.1 + tensor.len_bytes);
    }
    let mut totals: Vec<_> =
        totals.into_iter().map(|(quant, (n_tensors, bytes))| TypeTotal { quant, n_tensors, bytes }).collect();
    totals.sort_by_key(|total| std::cmp::Reverse(total.bytes));
    totals
}

impl Tensor {
    fn new(tensor: &TensorInfo) -> Self {
        Self {
            name: tensor.name.clone(),
            quant: tensor.quant.name(),
            dims: tensor.dims().to_vec(),
            file: tensor.file,
            offset_bytes: tensor.offset_bytes,
            bytes: tensor.len_bytes,
        }
    }
}

impl Model {
    fn new(gguf: &Gguf, shape: &ModelShape, catalog: &Catalog) -> Self {
        let n_experts = shape.moe.n_experts;
        let layers: Vec<_> = shape
            .layer_ids()
            .filter_map(|layer| {
                let layout = catalog.layout(layer)?;
                let prefix = format!("blk.{}.", layer.0);
                let all = gguf.tensors().iter().filter(|tensor| tensor.name.starts_with(&prefix));
                let all: u64 = all.map(|tensor| tensor.len_bytes).sum();
                let expert_bytes = (layout.weight_bytes() * n_experts) as u64;
                Some(Layer {
                    layer: layer.0,
                    mixer: match shape.layers[layer.idx()] {
                        LayerKind::DeltaNet => "delta-net",
                        LayerKind::Attention => "attention",
                    },
                    resident_bytes: all.saturating_sub(expert_bytes),
                    expert_bytes,
                    expert_record_bytes: layout.weight_bytes(),
                    expert_types: [layout.gate, layout.up, layout.down].map(|part| part.quant.name()),
                })
            })
            .collect();
        let outside = gguf.tensors().iter().filter(|tensor| !tensor.name.starts_with("blk."));
        let outside: u64 = outside.map(|tensor| tensor.len_bytes).sum();
        Self {
            hidden: shape.hidden,
            vocabulary: shape.n_vocab,
            context: shape.context_max,
            experts_per_layer: n_experts,
            experts_per_token: shape.moe.top_k,
            prediction_blocks: shape.n_mtp,
            expert_bytes: catalog.expert_bytes(),
            resident_bytes: outside + layers.iter().map(|layer| layer.resident_bytes).sum::<u64>(),
            slot_bytes: catalog.slot_bytes(1),
            layers,
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "\n{} layers of {} experts, {} used per token; hidden {}, vocabulary {}, context {}",
            self.layers.len(),
            self.experts_per_layer,
            self.experts_per_token,
            self.hidden,
            self.vocabulary,
            self.context
        )?;
        writeln!(
            out,
            "experts {}, resident {}, one slot {}",
            bytes_text(self.expert_bytes),
            bytes_text(self.resident_bytes),
            bytes_text(self.slot_bytes as u64)
        )?;
        writeln!(out, "\n  layer  mixer         resident       experts    one expert  gate/up/down")?;
        for layer in &self.layers {
            writeln!(
                out,
                "  {:>5}  {:<10}{:>12}{:>14}{:>14}  {}",
                layer.layer,
                layer.mixer,
                bytes_text(layer.resident_bytes),
                bytes_text(layer.expert_bytes),
                bytes_text(layer.expert_record_bytes as u64),
                layer.expert_types.join("/")
            )?;
        }
        Ok(())
    }
}
