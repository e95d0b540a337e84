//! From a source to what is to be written: the target's header, and where each tensor and expert goes. Pure.

mod recode;
mod unpack;

use std::collections::HashSet;
use std::path::Path;

use forerun_model::{ExpertLayout, LayerId, ModelShape, QuantType};

use super::plan::{Copy, Destination, Plan};
use super::{Order, Recoding, Settings};
pub(super) use recode::recode;
pub(super) use unpack::unpack;

use crate::expert_name::{ExpertTensor, Holds};
use crate::gguf::{Array, Dims, HeaderWriter, TensorSpec, Value};
use crate::packed;
use crate::{Catalog, Gguf, OpenError, PackError, TensorInfo};

const KEY_ALIGNMENT: &str = "general.alignment";
/// Readers accept no longer arrays.
const ENTRIES_MAX: usize = 1 << 20;

/// What is to be written.
#[derive(Debug)]
pub(super) struct Recipe {
    pub(super) header: HeaderWriter,
    pub(super) plan: Plan,
}

/// A source: its files, and what they say of the model.
pub(super) struct Source<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) shape: &'a ModelShape,
    pub(super) catalog: &'a Catalog,
    /// Other types, where the copy gives them.
    pub(super) recoding: Option<&'a Recoding<'a>>,
}

impl Source<'_> {
    fn path(&self) -> &Path {
        &self.gguf.files().files()[0].path
    }

    fn layout(&self, layer: LayerId) -> ExpertLayout {
        *self.catalog.layout(layer).expect("the catalog has every layer of its shape")
    }

    fn n_experts(&self) -> usize {
        self.catalog.n_experts()
    }

    /// Whether `tensor` is one of those that the catalog takes the experts of its layer from.
    fn expert_tensor(&self, tensor: &TensorInfo) -> Option<ExpertTensor> {
        expert_tensor(self.gguf, self.catalog, tensor)
    }
}

/// What `tensor` holds of the experts of `catalog`; `None` for one that the catalog of `gguf` doesn't use, whatever its
/// name.
pub(super) fn expert_tensor(gguf: &Gguf, catalog: &Catalog, tensor: &TensorInfo) -> Option<ExpertTensor> {
    let found = ExpertTensor::parse(&tensor.name).filter(|t| t.layer.idx() < catalog.n_layers())?;
    let form = Form::of(gguf, found.layer);
    let used = match found.holds {
        Holds::Packed => form == Form::Packed,
        Holds::GateUp => form == Form::Fused,
        Holds::Stacked(part) => form == Form::Stacked || (form == Form::Fused && part == 2),
        Holds::One { expert, .. } => form == Form::Apart && usize::from(expert) < catalog.n_experts(),
    };
    used.then_some(found)
}

/// How a file keeps the experts of a layer; asked in the order in which the catalog does, so that a stray tensor of
/// another form is never taken for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A record each.
    Packed,
    /// Gate and up of all in one tensor, down in another.
    Fused,
    /// A tensor for each part of each.
    Apart,
    /// A tensor for each part of all.
    Stacked,
}

impl Form {
    /// The form of `layer` in `gguf`.
    pub(super) fn of(gguf: &Gguf, layer: LayerId) -> Self {
        let has = |name: String| gguf.tensor(&name).is_some();
        if packed::is_packed(&gguf.metadata) {
            Self::Packed
        } else if has(forerun_model::names::block(layer, "ffn_gate_up_exps")) {
            Self::Fused
        } else if has(forerun_model::names::block_expert(layer, "ffn_gate", 0)) {
            Self::Apart
        } else {
            Self::Stacked
        }
    }
}

/// What packing `source` writes. `sums` are the source's own name, size and hash.
pub(super) fn pack(
    source: &Source<'_>,
    target: &Path,
    settings: &Settings,
    sums: [String; 3],
) -> Result<Recipe, PackError> {
    source.check_recoding()?;
    let order = order(source, &settings.order)?;
    let layouts = source.target_layouts()?;
    let mut tensors = Vec::new();
    // Which of the target's tensors are copies, and of what.
    let mut contents: Vec<Content<'_>> = Vec::new();
    let mut packed_layers = HashSet::new();
    for (place, tensor) in source.gguf.tensors().iter().enumerate() {
        match source.expert_tensor(tensor) {
            None => {
                tensors.push(source.spec(tensor));
                contents.push(Content::Tensor(place, tensor));
            }
            Some(expert) if packed_layers.insert(expert.layer) => {
                let record_bytes = packed::record_bytes(&layouts[expert.layer.idx()]);
                let sizes = [record_bytes, source.n_experts() as u64];
                let dims = Dims::new(&sizes).expect("two axes are a number that is accepted");
                let name = packed::tensor_name(expert.layer);
                tensors.push(TensorSpec { name, quant: QuantType::I8, dims });
                contents.push(Content::Layer(expert.layer));
            }
            Some(_) => {}
        }
    }
    let entries = pack_entries(source, (&order, &layouts), sums)?;
    let header = HeaderWriter::new(entries, tensors).map_err(|problem| header_error(target, problem))?;
    let mut plan = Plan { layers: vec![empty(source); source.shape.n_layers()], steps: Vec::new() };
    for (idx, content) in contents.iter().enumerate() {
        let to_bytes = header.offset_bytes(idx);
        match content {
            Content::Tensor(place, tensor) => {
                source.push_tensor(&mut plan, (*place, tensor), to_bytes, settings.step_bytes);
            }
            Content::Layer(layer) => {
                let from_bytes = source.layout(*layer).weight_bytes() as u64;
                let destination = packed_layer(layouts[layer.idx()], &order[layer.idx()], to_bytes);
                let expert_bytes = destination.expert_bytes();
                plan.layers[layer.idx()] = destination;
                // As few at once as the source's bytes allow too.
                let share = u128::from(settings.step_bytes) * u128::from(expert_bytes);
                let step_bytes = share / u128::from(expert_bytes.max(from_bytes));
                plan.push_experts(layer.0, u64::try_from(step_bytes).unwrap_or(u64::MAX));
            }
        }
    }
    Ok(Recipe { header, plan })
}

enum Content<'a> {
    /// One of the source's tensors, and its place in the list of them.
    Tensor(usize, &'a TensorInfo),
    Layer(LayerId),
}

fn copy(tensor: &TensorInfo, to_bytes: u64) -> Copy {
    Copy { file: tensor.file, from_bytes: tensor.offset_bytes, to_bytes, len_bytes: tensor.len_bytes }
}

fn header_error(target: &Path, problem: crate::HeaderError) -> PackError {
    PackError::Header { path: target.to_owned(), problem }
}

fn empty(source: &Source<'_>) -> Destination {
    let layout = source.layout(LayerId(0));
    Destination { layout, to_bytes: Vec::new(), pads_bytes: [0; 3], sequence: Vec::new() }
}

fn packed_layer(layout: ExpertLayout, order: &[u32], first: u64) -> Destination {
    let record_bytes = packed::record_bytes(&layout);
    let offsets = packed::part_offsets(&layout).map(u64::from);
    let ends = [offsets[1], offsets[2], record_bytes];
    let lens = [layout.gate, layout.up, layout.down].map(|part| part.bytes() as u64);
    let to_bytes = order.iter().map(|&position| {
        let record = first + u64::from(position) * record_bytes;
        offsets.map(|offset| record + offset)
    });
    let mut sequence: Vec<u16> = expert_ids(order.len());
    sequence.sort_unstable_by_key(|&expert| order[usize::from(expert)]);
    let pads_bytes = [0, 1, 2].map(|i| ends[i] - offsets[i] - lens[i]);
    Destination { layout, to_bytes: to_bytes.collect(), pads_bytes, sequence }
}

fn expert_ids(n: usize) -> Vec<u16> {
    (0..u16::try_from(n).expect("a header allows fewer experts than ids")).collect()
}

/// Position of each expert of each layer.
fn order(source: &Source<'_>, order: &Order) -> Result<Vec<Vec<u32>>, PackError> {
    let (n_layers, n_experts) = (source.shape.n_layers(), source.n_experts());
    let found = n_layers * n_experts;
    if found > ENTRIES_MAX {
        return Err(PackError::TooMany { what: "experts", found, max: ENTRIES_MAX });
    }
    let rows = match order {
        Order::File => {
            let file_order: Vec<u32> = expert_ids(n_experts).into_iter().map(u32::from).collect();
            return Ok(vec![file_order; n_layers]);
        }
        Order::Given(rows) => rows,
    };
    if rows.len() != n_layers {
        return Err(PackError::OrderSize { what: "layers", found: rows.len(), expected: n_layers });
    }
    for (layer, row) in rows.iter().enumerate() {
        if row.len() != n_experts {
            let (found, expected) = (row.len(), n_experts);
            return Err(PackError::OrderSize { what: "experts in a layer", found, expected });
        }
        packed::check_order(row).map_err(|position| PackError::Order { layer, position })?;
    }
    Ok(rows.clone())
}

/// The source's keys and those of the packed file; checksums are zeros until the experts have been read.
fn pack_entries(
    source: &Source<'_>,
    (order, layouts): (&[Vec<u32>], &[ExpertLayout]),
    sums: [String; 3],
) -> Result<Vec<(String, Value)>, PackError> {
    let metadata = &source.gguf.metadata;
    let (mut entries, alignment) = carried(source.gguf, Some(packed::RECORD_ALIGN_BYTES));
    source.set_keys(&mut entries);
    let types = layouts.iter().flat_map(|l| [l.gate, l.up, l.down].map(|part| part.quant.id())).collect();
    let offsets = layouts.iter().flat_map(packed::part_offsets).collect();
    let n_experts = order.iter().map(Vec::len).sum();
    let names = source.gguf.tensors();
    if names.len() > ENTRIES_MAX {
        return Err(PackError::TooMany { what: "tensors", found: names.len(), max: ENTRIES_MAX });
    }
    // What the first source was stays known, however often its experts are packed anew.
    let is_packed = packed::is_packed(metadata);
    let (source_names, first, tensors, alignment) = if is_packed {
        (
            packed::text(metadata, packed::KEY_SOURCE_NAMES)?.to_owned(),
            packed::texts(metadata, packed::KEY_SOURCE)?.to_vec(),
            packed::texts(metadata, packed::KEY_SOURCE_TENSORS)?.to_vec(),
            metadata.value(packed::KEY_SOURCE_ALIGNMENT).cloned(),
        )
    } else {
        let tensors = names.iter().map(|tensor| tensor.name.clone()).collect();
        (names_of(source).to_owned(), sums.to_vec(), tensors, alignment)
    };
    let mut add = |key: &str, value: Value| entries.push((key.to_owned(), value));
    add(packed::KEY_VERSION, Value::U32(packed::VERSION));
    add(packed::KEY_LAYOUT, Value::Text(packed::LAYOUT.to_owned()));
    add(packed::KEY_SOURCE_NAMES, Value::Text(source_names));
    add(packed::KEY_TYPES, Value::Array(Array::U32(types)));
    add(packed::KEY_OFFSETS, Value::Array(Array::U32(offsets)));
    add(packed::KEY_ORDER, Value::Array(Array::U32(order.concat())));
    add(packed::KEY_CRC32C, Value::Array(Array::U32(vec![0; n_experts])));
    add(packed::KEY_SOURCE, Value::Array(Array::Text(first)));
    add(packed::KEY_SOURCE_TENSORS, Value::Array(Array::Text(tensors)));
    if let Some(alignment) = alignment {
        add(packed::KEY_SOURCE_ALIGNMENT, alignment);
    }
    Ok(entries)
}

/// How the source keeps its experts.
fn names_of(source: &Source<'_>) -> &'static str {
    let found = source.gguf.tensors().iter().filter_map(|tensor| source.expert_tensor(tensor));
    let (mut stacked, mut fused, mut apart) = (false, false, false);
    for tensor in found {
        match tensor.holds {
            Holds::GateUp => fused = true,
            Holds::One { .. } => apart = true,
            Holds::Stacked(0) => stacked = true,
            Holds::Stacked(_) | Holds::Packed => {}
        }
    }
    match (stacked, fused, apart) {
        (true, false, false) => "stacked",
        (false, true, false) => "fused",
        (false, false, true) => "per-expert",
        _ => "mixed",
    }
}

/// The keys that pass into any copy.
fn kept(gguf: &Gguf) -> Vec<(String, Value)> {
    let ours = |key: &str| key.starts_with(packed::PREFIX) || key.starts_with("split.");
    gguf.metadata.entries().iter().filter(|entry| !ours(&entry.0)).cloned().collect()
}

/// The keys that pass unchanged, with another alignment, and the alignment that there was. Without `alignment` the key
/// is as the packed file remembers it.
fn carried(gguf: &Gguf, alignment: Option<u64>) -> (Vec<(String, Value)>, Option<Value>) {
    let mut entries = kept(gguf);
    let place = entries.iter().position(|entry| entry.0 == KEY_ALIGNMENT);
    let before = place.map(|idx| entries[idx].1.clone());
    let now = match alignment {
        Some(bytes) => Some(Value::U32(u32::try_from(bytes).unwrap_or(u32::MAX))),
        None => gguf.metadata.value(packed::KEY_SOURCE_ALIGNMENT).cloned(),
    };
    match (place, now) {
        (Some(idx), Some(value)) => entries[idx].1 = value,
        (Some(idx), None) => drop(entries.remove(idx)),
        (None, Some(value)) => entries.push((KEY_ALIGNMENT.to_owned(), value)),
        (None, None) => {}
    }
    (entries, before)
}

/// The shape and the experts of a model.
pub(super) fn describe(gguf: &Gguf) -> Result<(ModelShape, Catalog), OpenError> {
    let shape = ModelShape::from_metadata(&gguf.metadata)?;
    let catalog = Catalog::new(&shape, gguf)?;
    Ok((shape, catalog))
}
