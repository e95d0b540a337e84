//! The recipe of a copy with other types, and what of it packing shares.

use std::path::Path;

use forerun_model::{ExpertLayout, MatrixLayout, QuantType};

use super::{Recipe, Source, copy, empty, header_error, kept};
use crate::expert_name::Holds;
use crate::gguf::{HeaderWriter, TensorSpec, Value};
use crate::repack::Settings;
use crate::repack::plan::Plan;
use crate::repack::recode::set_keys;
use crate::{OpenError, PackError, TensorInfo, packed};

/// What a copy writes that keeps the source's tensors, in its order, and gives some of them other types.
pub(in crate::repack) fn recode(
    source: &Source<'_>,
    target: &Path,
    settings: &Settings,
) -> Result<Recipe, PackError> {
    source.check_recoding()?;
    // The types that experts get must be such as a catalog takes.
    source.target_layouts()?;
    let mut entries = kept(source.gguf);
    source.set_keys(&mut entries);
    let tensors = source.gguf.tensors();
    let specs = tensors.iter().map(|tensor| source.spec(tensor)).collect();
    let header = HeaderWriter::new(entries, specs).map_err(|problem| header_error(target, problem))?;
    let layers = vec![empty(source); source.shape.n_layers()];
    let mut plan = Plan { layers, steps: Vec::new() };
    for (idx, tensor) in tensors.iter().enumerate() {
        source.push_tensor(&mut plan, (idx, tensor), header.offset_bytes(idx), settings.step_bytes);
    }
    Ok(Recipe { header, plan })
}

impl Source<'_> {
    /// Refuses other types for records.
    pub(super) fn check_recoding(&self) -> Result<(), PackError> {
        if self.recoding.is_some() && packed::is_packed(&self.gguf.metadata) {
            return Err(PackError::PackedSource { path: self.path().to_owned() });
        }
        Ok(())
    }

    /// The type that `tensor` gets.
    fn quant(&self, tensor: &TensorInfo) -> QuantType {
        self.recoding.map_or(tensor.quant, |recoding| recoding.recode.target(tensor))
    }

    /// `tensor` as the target has it.
    pub(super) fn spec(&self, tensor: &TensorInfo) -> TensorSpec {
        TensorSpec { quant: self.quant(tensor), ..TensorSpec::from(tensor) }
    }

    /// Adds tensor `idx`, as it is or with another type.
    pub(super) fn push_tensor(
        &self,
        plan: &mut Plan,
        (idx, tensor): (usize, &TensorInfo),
        to_bytes: u64,
        step_bytes: u64,
    ) {
        let to = self.quant(tensor);
        if to == tensor.quant {
            plan.push_copy(copy(tensor, to_bytes), step_bytes);
        } else {
            plan.push_rows((idx, tensor), (to, to_bytes), step_bytes);
        }
    }

    /// Sets the keys that come with other types.
    pub(super) fn set_keys(&self, entries: &mut Vec<(String, Value)>) {
        if let Some(recoding) = self.recoding {
            entries.retain(|entry| !recoding.drops.iter().any(|start| entry.0.starts_with(start)));
            set_keys(entries, &recoding.keys);
        }
    }

    /// Types and sizes of each layer's experts in the target. All experts of a layer share their types.
    pub(super) fn target_layouts(&self) -> Result<Vec<ExpertLayout>, PackError> {
        let mut layouts: Vec<_> = self.shape.layer_ids().map(|layer| self.layout(layer)).collect();
        if self.recoding.is_none() {
            return Ok(layouts);
        }
        let mut types: Vec<[Option<QuantType>; 3]> = vec![[None; 3]; layouts.len()];
        for tensor in self.gguf.tensors() {
            let Some(expert) = self.expert_tensor(tensor) else { continue };
            let found = self.quant(tensor);
            let parts = match expert.holds {
                Holds::Stacked(part) | Holds::One { part, .. } => part..part + 1,
                Holds::GateUp => 0..2,
                Holds::Packed => 0..0,
            };
            for part in parts {
                let expected = *types[expert.layer.idx()][part].get_or_insert(found);
                if expected != found {
                    let name = tensor.name.clone();
                    return Err(PackError::Open(OpenError::ExpertType { name, found, expected }));
                }
            }
        }
        for (layout, types) in layouts.iter_mut().zip(types) {
            for (part, quant) in [&mut layout.gate, &mut layout.up, &mut layout.down].into_iter().zip(types) {
                let quant = quant.unwrap_or(part.quant);
                *part = MatrixLayout::new(quant, part.n_rows, part.n_cols).map_err(OpenError::from)?;
            }
        }
        Ok(layouts)
    }
}
