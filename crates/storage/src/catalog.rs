//! Where each expert lies: key in, three byte ranges out.
//!
//! Files keep experts in one of four ways: one tensor per matrix for all experts of a layer (stacked), gate and up in
//! one tensor (fused), three tensors per expert (apart), or one record per expert (packed). Nothing above this module
//! knows which. Where a record's parts land in a slot is [`placement`](crate::placement)'s to say.

use forerun_model::{ExpertKey, ExpertLayout, LayerId, MatrixLayout, ModelShape, ShapeError};
use forerun_model::{QuantType, names};

use crate::expert_name::{ExpertTensor, PARTS};
use crate::packed::{self, PackKeys};
use crate::placement::{Placement, slot_bytes_max};
use crate::{Gguf, OpenError, TensorInfo};

/// Largest record: a slot is one allocation, and lengths of ranges are 32 bits wide.
const RECORD_BYTES_MAX: u64 = 1 << 31;

/// A range of one file of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteRange {
    /// Index of the file in its set.
    pub file: u16,
    /// First byte in the file.
    pub offset_bytes: u64,
    /// Bytes.
    pub len_bytes: u32,
}

impl ByteRange {
    /// The first byte after it.
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes + u64::from(self.len_bytes)
    }
}

/// Where one expert lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The gate, up and down matrices.
    pub parts: [ByteRange; 3],
    /// The padded record around them, where the file keeps each expert in one piece.
    pub whole: Option<ByteRange>,
    /// The checksum of `whole`, where the file has one.
    pub crc32c: Option<u32>,
}

/// All experts of a model.
#[derive(Clone, Debug)]
pub struct Catalog {
    layers: Vec<Layer>,
    /// Those that aren't prediction blocks.
    n_trunk: usize,
    n_experts: usize,
}

#[derive(Clone, Debug)]
struct Layer {
    layout: ExpertLayout,
    /// Bytes of gate, up and down.
    lens_bytes: [u32; 3],
    places: Places,
}

/// Where the gate, up and down matrices of a layer's experts lie.
#[derive(Clone, Debug)]
enum Places {
    /// Expert `e` of a part begins `e` strides after the part's first byte.
    Regular([Run; 3]),
    /// One place per part and expert.
    Apart(Vec<[Place; 3]>),
    /// One record per expert.
    Packed(PackedPlaces),
}

#[derive(Clone, Debug)]
struct PackedPlaces {
    /// The first record on disk; others follow it without a gap.
    first: Place,
    record_bytes: u32,
    /// Where the parts begin in a record.
    offsets: [u32; 3],
    /// Position on disk, and checksum, of each expert.
    records: Vec<(u32, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    file: u16,
    offset_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    first: Place,
    stride_bytes: u64,
}

impl Catalog {
    /// Finds all experts of `shape` in `gguf`.
    ///
    /// # Errors
    /// [`OpenError::Shape`] names a tensor that is missing or has other dimensions than the header needs;
    /// [`OpenError::ExpertType`] and [`OpenError::ExpertSize`] name experts that no slot can hold.
    pub fn new(shape: &ModelShape, gguf: &Gguf) -> Result<Self, OpenError> {
        Self::with_blocks(shape, gguf, 0)
    }

    /// The same with the experts of the first `n_blocks` prediction blocks, as layers after the last. Packed files keep them
    /// as they were.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_blocks(shape: &ModelShape, gguf: &Gguf, n_blocks: usize) -> Result<Self, OpenError> {
        let keys = PackKeys::read(&gguf.metadata, shape.n_layers(), shape.moe.n_experts)?;
        let finder = Finder { shape, gguf, keys };
        let ids = 0..u16::try_from(shape.n_layers() + n_blocks).unwrap_or(u16::MAX);
        let layers = ids.map(|layer| finder.layer(LayerId(layer))).collect::<Result<_, _>>()?;
        Ok(Self { layers, n_trunk: shape.n_layers(), n_experts: shape.moe.n_experts })
    }

    /// Layers.
    pub fn n_layers(&self) -> usize {
        self.layers.len()
    }

    /// Experts of each layer.
    pub fn n_experts(&self) -> usize {
        self.n_experts
    }

    /// Types and sizes of the matrices of `layer`'s experts; `None` when there is no such layer.
    pub fn layout(&self, layer: LayerId) -> Option<&ExpertLayout> {
        self.layers.get(layer.idx()).map(|layer| &layer.layout)
    }

    /// Bytes that a slot must have for every record, when reads begin and end at multiples of `align_bytes` of the
    /// file (1: anywhere).
    pub fn slot_bytes(&self, align_bytes: u32) -> usize {
        let of = |layer: &Layer| match &layer.places {
            Places::Regular(_) | Places::Apart(_) => slot_bytes_max(layer.lens_bytes, align_bytes),
            Places::Packed(packed) => packed.slot_bytes(align_bytes),
        };
        self.layers.iter().map(of).max().unwrap_or(0)
    }

    /// Bytes of all experts' weights.
    pub fn expert_bytes(&self) -> u64 {
        let per_expert = self.layers.iter().map(|layer| layer.layout.weight_bytes() as u64);
        per_expert.sum::<u64>() * self.n_experts as u64
    }

    /// Whether every record has a checksum, prediction blocks apart: what they say is verified anyway.
    pub fn has_checksums(&self) -> bool {
        let n_layers = u16::try_from(self.n_trunk).unwrap_or(u16::MAX);
        (0..n_layers)
            .all(|layer| self.record(ExpertKey::new(layer, 0)).is_some_and(|record| record.crc32c.is_some()))
    }

    /// Where `key` lies; `None` when there is no such expert.
    pub fn record(&self, key: ExpertKey) -> Option<Record> {
        let layer = self.layers.get(key.layer.idx())?;
        let places = match &layer.places {
            Places::Regular(runs) if key.expert.idx() < self.n_experts => runs.map(|run| run.at(key)),
            Places::Regular(_) => return None,
            Places::Apart(list) => *list.get(key.expert.idx())?,
            Places::Packed(packed) => return packed.record(key, layer.lens_bytes),
        };
        let part = |i: usize| {
            let Place { file, offset_bytes } = places[i];
            ByteRange { file, offset_bytes, len_bytes: layer.lens_bytes[i] }
        };
        Some(Record { parts: [part(0), part(1), part(2)], whole: None, crc32c: None })
    }

    /// Where `key` lands in a slot when reads begin and end at multiples of `align_bytes`; `None` when there is no
    /// such expert.
    pub fn placement(&self, key: ExpertKey, align_bytes: u32) -> Option<Placement> {
        self.record(key).map(|record| Placement::new(&record, align_bytes))
    }
}

impl PackedPlaces {
    /// Records begin and end at multiples of [`packed::RECORD_ALIGN_BYTES`]: only larger blocks widen them.
    fn slot_bytes(&self, align_bytes: u32) -> usize {
        let align = u64::from(align_bytes);
        let slack = align.saturating_sub(packed::RECORD_ALIGN_BYTES);
        let bytes = (u64::from(self.record_bytes) + slack).next_multiple_of(align);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    fn record(&self, key: ExpertKey, lens_bytes: [u32; 3]) -> Option<Record> {
        let (position, crc32c) = *self.records.get(key.expert.idx())?;
        let (file, len_bytes) = (self.first.file, self.record_bytes);
        let offset_bytes = self.first.offset_bytes + u64::from(position) * u64::from(len_bytes);
        let part = |i: usize| ByteRange {
            file,
            offset_bytes: offset_bytes + u64::from(self.offsets[i]),
            len_bytes: lens_bytes[i],
        };
        let whole = Some(ByteRange { file, offset_bytes, len_bytes });
        Some(Record { parts: [part(0), part(1), part(2)], whole, crc32c: Some(crc32c) })
    }
}

impl Layer {
    /// A layer whose records fit a slot.
    fn new(layer: LayerId, layout: ExpertLayout, places: Places) -> Result<Self, OpenError> {
        let parts = [layout.gate, layout.up, layout.down].map(|part| part.bytes() as u64);
        let bytes = parts.iter().fold(0, |sum: u64, part| sum.saturating_add(*part));
        match parts.map(u32::try_from) {
            [Ok(gate), Ok(up), Ok(down)] if bytes <= RECORD_BYTES_MAX => {
                Ok(Self { layout, lens_bytes: [gate, up, down], places })
            }
            _ => Err(OpenError::ExpertSize { layer: layer.idx(), bytes, max: RECORD_BYTES_MAX }),
        }
    }
}

impl Run {
    fn at(self, key: ExpertKey) -> Place {
        let skip_bytes = self.stride_bytes * u64::from(key.expert.0);
        Place { file: self.first.file, offset_bytes: self.first.offset_bytes + skip_bytes }
    }
}

/// Whether a tensor of that name may belong to a routed expert of a layer.
pub(crate) fn is_expert_tensor(name: &str) -> bool {
    ExpertTensor::parse(name).is_some()
}

struct Finder<'a> {
    shape: &'a ModelShape,
    gguf: &'a Gguf,
    keys: Option<PackKeys>,
}

impl Finder<'_> {
    fn layer(&self, layer: LayerId) -> Result<Layer, OpenError> {
        let [gate, up, down] = PARTS;
        let is_layer = layer.idx() < self.shape.n_layers();
        let found = if let Some(keys) = self.keys.as_ref().filter(|_| is_layer) {
            self.packed(layer, keys)?
        } else if self.gguf.tensor(&names::block(layer, "ffn_gate_up_exps")).is_some() {
            self.fused(layer)?
        } else if self.gguf.tensor(&names::block_expert(layer, gate, 0)).is_some() {
            self.apart(layer)?
        } else {
            let runs = [self.stacked(layer, gate)?, self.stacked(layer, up)?, self.stacked(layer, down)?];
            (self.layout(runs.map(|run| run.0))?, Places::Regular(runs.map(|run| run.1)))
        };
        Layer::new(layer, found.0, found.1)
    }

    /// One tensor for a part of all experts.
    fn stacked(&self, layer: LayerId, part: &str) -> Result<(QuantType, Run), OpenError> {
        let [n_cols, n_rows] = self.dims(part);
        let tensor =
            self.tensor(names::block(layer, &format!("{part}_exps")), &[n_cols, n_rows, self.n_experts()])?;
        Ok((tensor.quant, self.run(tensor)))
    }

    /// One tensor for the gate and up rows of all experts: an expert's gate rows, then its up rows.
    fn fused(&self, layer: LayerId) -> Result<(ExpertLayout, Places), OpenError> {
        let [hidden, ff] = self.dims(PARTS[0]);
        let name = names::block(layer, "ffn_gate_up_exps");
        let tensor = self.tensor(name, &[hidden, 2 * ff, self.n_experts()])?;
        let gate = self.run(tensor);
        let mut up = gate;
        up.first.offset_bytes += gate.stride_bytes / 2;
        let (down_quant, down) = self.stacked(layer, PARTS[2])?;
        let layout = self.layout([tensor.quant, tensor.quant, down_quant])?;
        Ok((layout, Places::Regular([gate, up, down])))
    }

    /// Three tensors per expert.
    fn apart(&self, layer: LayerId) -> Result<(ExpertLayout, Places), OpenError> {
        let mut types: Option<[QuantType; 3]> = None;
        let mut places = Vec::with_capacity(self.shape.moe.n_experts);
        for expert in 0..self.shape.moe.n_experts {
            let mut tensors = Vec::with_capacity(PARTS.len());
            for part in PARTS {
                tensors.push(self.tensor(names::block_expert(layer, part, expert), &self.dims(part))?);
            }
            let types = *types.get_or_insert([0, 1, 2].map(|i| tensors[i].quant));
            for (tensor, expected) in tensors.iter().zip(types) {
                if tensor.quant != expected {
                    let (name, found) = (tensor.name.clone(), tensor.quant);
                    return Err(OpenError::ExpertType { name, found, expected });
                }
            }
            places.push([0, 1, 2].map(|i| place(tensors[i])));
        }
        let types = types.expect("a model has at least one expert");
        Ok((self.layout(types)?, Places::Apart(places)))
    }

    /// One record per expert.
    fn packed(&self, layer: LayerId, keys: &PackKeys) -> Result<(ExpertLayout, Places), OpenError> {
        let keys = keys.layer(layer)?;
        let layout = self.layout(keys.types)?;
        keys.check_offsets(layer, &layout)?;
        let record_bytes = packed::record_bytes(&layout);
        let tensor = self.tensor(packed::tensor_name(layer), &[record_bytes, self.n_experts()])?;
        if tensor.quant != QuantType::I8 {
            let (name, found) = (tensor.name.clone(), tensor.quant);
            return Err(OpenError::PackedType { name, found, expected: QuantType::I8 });
        }
        if !tensor.offset_bytes.is_multiple_of(packed::RECORD_ALIGN_BYTES) {
            let (name, offset_bytes) = (tensor.name.clone(), tensor.offset_bytes);
            return Err(OpenError::PackOffset {
                name,
                offset_bytes,
                align_bytes: packed::RECORD_ALIGN_BYTES,
            });
        }
        let max = RECORD_BYTES_MAX;
        let too_large = |_| OpenError::ExpertSize { layer: layer.idx(), bytes: record_bytes, max };
        let records = keys.order.iter().copied().zip(keys.crc32c.iter().copied()).collect();
        let (first, offsets) = (place(tensor), keys.offsets);
        let record_bytes = u32::try_from(record_bytes).map_err(too_large)?;
        Ok((layout, Places::Packed(PackedPlaces { first, record_bytes, offsets, records })))
    }

    fn layout(&self, [gate, up, down]: [QuantType; 3]) -> Result<ExpertLayout, OpenError> {
        let (hidden, ff) = (self.shape.hidden, self.shape.moe.expert_ff);
        Ok(ExpertLayout {
            gate: MatrixLayout::new(gate, ff, hidden)?,
            up: MatrixLayout::new(up, ff, hidden)?,
            down: MatrixLayout::new(down, hidden, ff)?,
        })
    }

    fn tensor(&self, name: String, dims: &[u64]) -> Result<&TensorInfo, OpenError> {
        match self.gguf.tensor(&name) {
            None => Err(ShapeError::MissingTensor { name }.into()),
            // Writers drop trailing axes of length 1, such as that of a single expert.
            Some(tensor) if same_dims(tensor.dims(), dims) => Ok(tensor),
            Some(tensor) => {
                let (found, expected) = (tensor.dims().to_vec(), dims.to_vec());
                Err(ShapeError::TensorShape { name, found, expected }.into())
            }
        }
    }

    fn run(&self, tensor: &TensorInfo) -> Run {
        Run { first: place(tensor), stride_bytes: tensor.len_bytes / self.n_experts() }
    }

    /// Dimensions of one expert's matrix, fastest first.
    fn dims(&self, part: &str) -> [u64; 2] {
        let (hidden, ff) = (self.shape.hidden as u64, self.shape.moe.expert_ff as u64);
        if part == PARTS[2] { [ff, hidden] } else { [hidden, ff] }
    }

    fn n_experts(&self) -> u64 {
        self.shape.moe.n_experts as u64
    }
}

fn place(tensor: &TensorInfo) -> Place {
    Place { file: tensor.file, offset_bytes: tensor.offset_bytes }
}

fn same_dims(a: &[u64], b: &[u64]) -> bool {
    let at = |dims: &[u64], i: usize| dims.get(i).copied().unwrap_or(1);
    (0..a.len().max(b.len())).all(|i| at(a, i) == at(b, i))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// One layer of eight experts with records of three ranges of 2560 bytes each.
    pub(crate) fn catalog_of() -> Catalog {
        catalog_over([0, 0, 0])
    }

    /// The same, its gate, up and down matrices in these files.
    pub(crate) fn catalog_over(files: [u16; 3]) -> Catalog {
        let gate = MatrixLayout::new(QuantType::F32, 10, 64).unwrap();
        let layout =
            ExpertLayout { gate, up: gate, down: MatrixLayout::new(QuantType::F32, 64, 10).unwrap() };
        let run = |file, offset_bytes| Run { first: Place { file, offset_bytes }, stride_bytes: 2560 };
        let [gate_file, up, down] = files;
        let places = Places::Regular([run(gate_file, 1001), run(up, 1_021_001), run(down, 2_041_001)]);
        let layers = vec![Layer::new(LayerId(0), layout, places).unwrap()];
        Catalog { layers, n_trunk: 1, n_experts: 8 }
    }
}
