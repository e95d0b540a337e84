//! The tensors that stay in memory: everything but the routed experts, each as bytes of its own.
//!
//! A mapped tensor has a mapping of its own pages only. One mapping of the whole file would let the system map pages
//! around each touched one, experts among them, and count them as the program's memory.

#![expect(unsafe_code, reason = "a file mapping's bytes change when somebody else writes the file")]

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use forerun_model::names::{self, Spec};
use forerun_model::{ModelShape, QuantType, ShapeError};
use memmap2::MmapOptions;

use crate::catalog::is_expert_tensor;
use crate::files::{Content, DataFile};
use crate::gguf::Dims;
use crate::{Gguf, OpenError, TensorInfo};

/// Tensors of these families belong to parts of a model that don't run here: vision, audio, prediction.
const IGNORED: [&str; 4] = ["v.", "a.", "mm.", "mtp."];

/// Where a resident tensor's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResidentMode {
    /// In pages of the file, which the system may drop and read again.
    Mapped,
    /// In memory of the program's own, read once.
    Owned,
}

/// One tensor that stays in memory.
#[derive(Clone, Debug)]
pub struct ResidentTensor {
    /// Its usual name, whichever of its names the file has.
    pub name: String,
    /// How its values are stored.
    pub quant: QuantType,
    /// Sizes of its axes.
    pub dims: Dims,
    /// Its bytes. Those of a file begin at a multiple of the file's alignment, those in memory anywhere.
    pub bytes: Bytes,
}

/// All tensors of a model that stay in memory.
#[derive(Debug)]
pub struct Resident {
    /// Sorted by name.
    tensors: Vec<ResidentTensor>,
    unknown: Vec<String>,
}

impl Resident {
    /// Finds every tensor of [`names::resident`] and makes its bytes available as `mode` says; bytes in memory are
    /// shared in either mode. Optional tensors that the file lacks are left out.
    ///
    /// # Errors
    /// [`OpenError::Shape`] names a tensor that is missing or has other dimensions than the header needs;
    /// [`OpenError::Io`] when the system can't map or read one.
    pub fn load(shape: &ModelShape, gguf: &Gguf, mode: ResidentMode) -> Result<Self, OpenError> {
        let specs = names::resident(shape);
        let unknown = unknown(shape, gguf, &specs);
        Ok(Self { unknown, ..Self::load_specs(&specs, gguf, mode)? })
    }

    /// Finds every tensor of `specs`, of a file that is no model with experts. None counts as unknown.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_specs(specs: &[Spec], gguf: &Gguf, mode: ResidentMode) -> Result<Self, OpenError> {
        let mut tensors = Vec::with_capacity(specs.len());
        for spec in specs {
            let Some(info) = find(gguf, spec)? else { continue };
            let file = &gguf.files().files()[usize::from(info.file)];
            let name = spec.names[0].clone();
            tensors.push(ResidentTensor {
                name,
                quant: info.quant,
                dims: info.dims,
                bytes: load(file, info, mode)?,
            });
        }
        tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { tensors, unknown: Vec::new() })
    }

    /// The tensor of that usual name (the first of its [`Spec::names`]).
    pub fn get(&self, name: &str) -> Option<&ResidentTensor> {
        let idx = self.tensors.binary_search_by(|tensor| tensor.name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[idx])
    }

    /// All tensors, sorted by name.
    pub fn tensors(&self) -> &[ResidentTensor] {
        &self.tensors
    }

    /// Forgets the tensors of these usual names; their memory is free once nobody else holds it.
    pub fn release(&mut self, names: &[String]) {
        self.tensors.retain(|tensor| !names.contains(&tensor.name));
    }

    /// Bytes of all tensors.
    pub fn len_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes.len() as u64).sum()
    }

    /// Tensors of the file that nothing here uses, for a warning. Those of prediction blocks, vision and audio are
    /// expected and not among them.
    pub fn unknown(&self) -> &[String] {
        &self.unknown
    }
}

fn find<'a>(gguf: &'a Gguf, spec: &Spec) -> Result<Option<&'a TensorInfo>, ShapeError> {
    match spec.names.iter().find_map(|name| gguf.tensor(name)) {
        Some(info) if spec.accepts(info.dims()) => Ok(Some(info)),
        Some(info) => Err(ShapeError::TensorShape {
            name: info.name.clone(),
            found: info.dims().to_vec(),
            expected: spec.dims.clone(),
        }),
        None if spec.optional => Ok(None),
        None => Err(ShapeError::MissingTensor { name: spec.names[0].clone() }),
    }
}

fn load(file: &DataFile, info: &TensorInfo, mode: ResidentMode) -> Result<Bytes, OpenError> {
    let refused = |source| OpenError::Io { doing: "map or read", path: file.path.clone(), source };
    let len = usize::try_from(info.len_bytes).map_err(|_| refused(io::ErrorKind::OutOfMemory.into()))?;
    let map = |file: &Arc<std::fs::File>| {
        // SAFETY: nobody of this program writes the file. Another program that does changes weights under us, which
        // makes wrong numbers, or truncates it, which ends this program with a signal: `Owned` is there for files
        // that others may touch. The bytes have no invalid values, and no reference into them outlives the mapping.
        unsafe { MmapOptions::new().offset(info.offset_bytes).len(len).map(&**file) }
    };
    match (&file.content, mode) {
        (Content::Bytes(bytes), _) => {
            let start =
                usize::try_from(info.offset_bytes).expect("a tensor of bytes in memory lies inside them");
            Ok(bytes.slice(start..start + len))
        }
        (Content::File(file), ResidentMode::Mapped) => map(file).map(Bytes::from_owner).map_err(refused),
        (Content::File(_), ResidentMode::Owned) => {
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, info.offset_bytes).map_err(refused)?;
            Ok(bytes.into())
        }
    }
}

fn unknown(shape: &ModelShape, gguf: &Gguf, specs: &[Spec]) -> Vec<String> {
    let mut known: Vec<&str> = specs.iter().flat_map(|spec| &spec.names).map(String::as_str).collect();
    known.sort_unstable();
    let names = gguf.tensors().iter().map(|tensor| tensor.name.as_str());
    let unknown = names.filter(|name| {
        known.binary_search(name).is_err() && !is_expert_tensor(name) && !is_expected(shape, name)
    });
    unknown.map(str::to_owned).collect()
}

/// Whether `name` belongs to a part of the model that doesn't run here.
fn is_expected(shape: &ModelShape, name: &str) -> bool {
    let block = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let block = block.and_then(|(idx, _)| idx.parse::<usize>().ok());
    let beyond = block.is_some_and(|idx| (shape.n_layers()..shape.n_layers() + shape.n_mtp).contains(&idx));
    beyond || IGNORED.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::path::Path;

    use super::*;

    /// Touching every resident byte makes no page of an expert resident, but for those shared with a neighbour.
    #[test]
    fn mapped_tensors_bring_no_experts_along() {
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/pico-q4_k_m.gguf");
        let copy = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
        std::fs::copy(Path::new(fixture), copy.path()).unwrap();
        let gguf = Gguf::open(copy.path()).unwrap();
        let shape = ModelShape::from_metadata(&gguf.metadata).unwrap();
        let resident = Resident::load(&shape, &gguf, ResidentMode::Mapped).unwrap();
        let sum: u64 =
            resident.tensors().iter().flat_map(|t| t.bytes.iter()).map(|&byte| u64::from(byte)).sum();
        assert!(sum > 0);
        let pages: u64 = resident.tensors().iter().map(|tensor| tensor.bytes.len() as u64 / 4096 + 2).sum();
        let kib = crate::testing::resident_kib(copy.path());
        assert!(kib <= pages * 4, "{kib} KiB are resident, {} were touched", pages * 4);
    }
}
