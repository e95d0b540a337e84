//! The recipe of an unpacked file: the tensors that the packed file's source had, in the order that they had.

use std::collections::HashSet;
use std::path::Path;

use forerun_model::{ExpertKey, LayerId};

use super::{Recipe, Source, carried, copy, expert_ids, header_error};
use crate::expert_name::{ExpertTensor, Holds, PARTS};
use crate::gguf::{Dims, HeaderWriter, TensorSpec};
use crate::repack::Settings;
use crate::repack::plan::{Destination, Plan};
use crate::{PackError, TensorInfo, packed};

/// What unpacking `source` writes: its source's tensors, in the order that they had.
pub(in crate::repack) fn unpack(
    source: &Source<'_>,
    target: &Path,
    settings: &Settings,
) -> Result<Recipe, PackError> {
    if !packed::is_packed(&source.gguf.metadata) {
        return Err(PackError::NotPacked { path: source.path().to_owned() });
    }
    let tensors = source_tensors(source)?;
    let (entries, _) = carried(source.gguf, None);
    let specs = tensors.iter().map(|tensor| tensor.spec.clone()).collect();
    let header = HeaderWriter::new(entries, specs).map_err(|problem| header_error(target, problem))?;
    let mut layers: Vec<_> = source.shape.layer_ids().map(|layer| destination(source, layer)).collect();
    for (idx, tensor) in tensors.iter().enumerate() {
        if let Some(expert) = tensor.expert {
            set_places(&mut layers[expert.layer.idx()], expert.holds, header.offset_bytes(idx));
        }
    }
    let (mut plan, mut moved) = (Plan { layers, steps: Vec::new() }, HashSet::new());
    for (idx, tensor) in tensors.iter().enumerate() {
        match (tensor.carried, tensor.expert) {
            (Some(info), _) => plan.push_copy(copy(info, header.offset_bytes(idx)), settings.step_bytes),
            (None, Some(expert)) if moved.insert(expert.layer) => {
                plan.push_experts(expert.layer.0, settings.step_bytes);
            }
            (None, _) => {}
        }
    }
    Ok(Recipe { header, plan })
}

/// A layer whose experts are read in the order of the disk; where they go isn't known yet.
fn destination(source: &Source<'_>, layer: LayerId) -> Destination {
    let n_experts = source.n_experts();
    let mut sequence = expert_ids(n_experts);
    let place = |expert: u16| {
        let key = ExpertKey::new(layer.0, expert);
        source.catalog.record(key).map(|record| (record.parts[0].file, record.parts[0].offset_bytes))
    };
    sequence.sort_unstable_by_key(|&expert| place(expert));
    let to_bytes = vec![[0; 3]; n_experts];
    Destination { layout: source.layout(layer), to_bytes, pads_bytes: [0; 3], sequence }
}

/// A tensor of an unpacked file.
struct Unpacked<'a> {
    spec: TensorSpec,
    /// The packed file's own tensor, where it passes unchanged.
    carried: Option<&'a TensorInfo>,
    /// What it holds of a layer's experts.
    expert: Option<ExpertTensor>,
}

/// The tensors of the packed file's source; each matrix of each expert is in exactly one.
fn source_tensors<'a>(source: &Source<'a>) -> Result<Vec<Unpacked<'a>>, PackError> {
    let wrong = |problem: String| PackError::SourceTensors { path: source.path().to_owned(), problem };
    let names = packed::texts(&source.gguf.metadata, packed::KEY_SOURCE_TENSORS).map_err(PackError::Open)?;
    let (mut tensors, mut seen) = (Vec::with_capacity(names.len()), HashSet::new());
    let mut held = vec![0_u8; 3 * source.shape.n_layers() * source.n_experts()];
    for name in names {
        if !seen.insert(name.as_str()) {
            return Err(wrong(format!("`{name}` occurs twice")));
        }
        let plain = source.gguf.tensor(name).filter(|tensor| source.expert_tensor(tensor).is_none());
        if let Some(info) = plain {
            tensors.push(Unpacked { spec: TensorSpec::from(info), carried: Some(info), expert: None });
            continue;
        }
        let expert = ExpertTensor::parse(name).filter(|found| found.layer.idx() < source.shape.n_layers());
        let spec = expert.and_then(|expert| spec_of(source, name, expert));
        let (Some(expert), Some(spec)) = (expert, spec) else {
            return Err(wrong(format!("`{name}` is neither in the file nor made of its experts")));
        };
        let first = 3 * source.n_experts() * expert.layer.idx();
        for part in parts_of(expert.holds, source.n_experts()) {
            held[first + part] = held[first + part].saturating_add(1);
        }
        tensors.push(Unpacked { spec, carried: None, expert: Some(expert) });
    }
    if let Some(place) = held.iter().position(|n| *n != 1) {
        let (layer, rest) = (place / (3 * source.n_experts()), place % (3 * source.n_experts()));
        let (expert, part) = (rest / 3, PARTS[rest % 3]);
        return Err(wrong(format!("{part} of expert {expert} of layer {layer} must be in one tensor")));
    }
    // Tensors that somebody added to the packed file go behind.
    let added = source.gguf.tensors().iter();
    let added = added.filter(|t| !seen.contains(t.name.as_str()) && source.expert_tensor(t).is_none());
    tensors.extend(added.map(|info| Unpacked { spec: info.into(), carried: Some(info), expert: None }));
    Ok(tensors)
}

/// Indices `3 * expert + part` of what a tensor holds.
fn parts_of(holds: Holds, n_experts: usize) -> Vec<usize> {
    match holds {
        Holds::Stacked(part) => (0..n_experts).map(|expert| 3 * expert + part).collect(),
        Holds::GateUp => (0..n_experts).flat_map(|expert| [3 * expert, 3 * expert + 1]).collect(),
        Holds::One { part, expert } => vec![3 * usize::from(expert) + part],
        Holds::Packed => Vec::new(),
    }
}

/// Type and dimensions of a tensor of experts; `None` when it can't be.
fn spec_of(source: &Source<'_>, name: &str, expert: ExpertTensor) -> Option<TensorSpec> {
    let layout = source.layout(expert.layer);
    let parts = [layout.gate, layout.up, layout.down];
    let n = source.n_experts() as u64;
    let of = |part: usize| (parts[part].quant, parts[part].n_cols as u64, parts[part].n_rows as u64);
    let (quant, sizes) = match expert.holds {
        Holds::Stacked(part) => {
            let (quant, cols, rows) = of(part);
            (quant, vec![cols, rows, n])
        }
        Holds::GateUp => {
            let (quant, cols, rows) = of(0);
            (of(1) == (quant, cols, rows)).then_some((quant, vec![cols, 2 * rows, n]))?
        }
        Holds::One { part, expert } => {
            let (quant, cols, rows) = of(part);
            (u64::from(expert) < n).then_some((quant, vec![cols, rows]))?
        }
        Holds::Packed => return None,
    };
    Some(TensorSpec { name: name.to_owned(), quant, dims: Dims::new(&sizes)? })
}

/// Where the matrices of a tensor that begins at `first` go.
fn set_places(destination: &mut Destination, holds: Holds, first: u64) {
    let lens = [destination.layout.gate, destination.layout.up, destination.layout.down]
        .map(|part| part.bytes() as u64);
    let all = destination.to_bytes.iter_mut().zip(0_u64..);
    match holds {
        Holds::Stacked(part) => all.for_each(|(to, expert)| to[part] = first + expert * lens[part]),
        Holds::GateUp => all.for_each(|(to, expert)| {
            to[0] = first + expert * (lens[0] + lens[1]);
            to[1] = to[0] + lens[0];
        }),
        Holds::One { part, expert } => destination.to_bytes[usize::from(expert)][part] = first,
        Holds::Packed => {}
    }
}
