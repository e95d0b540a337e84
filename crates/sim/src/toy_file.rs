//! A small expert file whose every byte is a known function of layer and expert.

use bytes::Bytes;
use forerun_model::{
    AttentionParts, AttentionShape, DeltaNetShape, ExpertKey, ExpertLayout, HeadOrder, LayerId, LayerKind,
    MatrixLayout, ModelShape, MoeShape, QuantType, RopeShape, names,
};
use forerun_storage::{Catalog, Gguf, OpenError};

use crate::rng::{Rng, hash};

/// Width of the toy's residual stream, as the file sees it.
const HIDDEN: usize = 64;
/// Inner width of the toy's experts.
const EXPERT_FF: usize = 32;
/// Where tensors begin in the file: the format's default.
const ALIGN_BYTES: usize = 32;

/// The size of a toy model, and the seed of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToyModel {
    /// Decides every byte.
    pub seed: u64,
    /// Layers.
    pub n_layers: u16,
    /// Experts of a layer.
    pub n_experts: u16,
    /// Experts of a row.
    pub top_k: usize,
    /// Tokens, and logits of a row.
    pub n_vocab: usize,
}

/// One of an expert's three matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The gate matrix.
    Gate,
    /// The up matrix.
    Up,
    /// The down matrix.
    Down,
}

impl ToyModel {
    /// Four layers of 16 experts, 3 of which a row uses.
    pub fn small() -> Self {
        Self { seed: 0x7097, n_layers: 4, n_experts: 16, top_k: 3, n_vocab: 32 }
    }

    /// Experts of all layers.
    pub fn n_experts_total(&self) -> usize {
        usize::from(self.n_layers) * usize::from(self.n_experts)
    }

    /// Types and sizes of `layer`'s experts; they differ from layer to layer, as real files do.
    ///
    /// # Panics
    /// Never: the toy's rows fill whole blocks.
    pub fn layout(&self, layer: LayerId) -> ExpertLayout {
        let (wide, narrow) = [
            (QuantType::Q8_0, QuantType::Q4_0),
            (QuantType::Q4_0, QuantType::Q5_1),
            (QuantType::Q5_0, QuantType::Q8_0),
        ][layer.idx() % 3];
        let matrix = |quant, n_rows, n_cols| {
            MatrixLayout::new(quant, n_rows, n_cols).expect("the toy's rows fill whole blocks")
        };
        let gate = matrix(wide, EXPERT_FF, HIDDEN);
        ExpertLayout { gate, up: gate, down: matrix(narrow, HIDDEN, EXPERT_FF) }
    }

    /// The bytes of one matrix of one expert.
    pub fn part_bytes(&self, key: ExpertKey, part: Part) -> Vec<u8> {
        let layout = self.layout(key.layer);
        let (len, n) = match part {
            Part::Gate => (layout.gate.bytes(), 0),
            Part::Up => (layout.up.bytes(), 1),
            Part::Down => (layout.down.bytes(), 2),
        };
        let mut rng = Rng::new(hash(&[self.seed, key.layer.0.into(), key.expert.0.into(), n]));
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// The whole file: a GGUF of version 3 that holds nothing but experts. Every third layer has gate and up in one
    /// tensor, every third has one tensor per expert, the others three tensors.
    pub fn file(&self) -> Bytes {
        let mut writer = Writer::default();
        for layer in (0..self.n_layers).map(LayerId) {
            self.write_layer(&mut writer, layer);
        }
        writer.finish()
    }

    fn write_layer(&self, writer: &mut Writer, layer: LayerId) {
        let (layout, n_experts) = (self.layout(layer), u64::from(self.n_experts));
        let experts = || (0..self.n_experts).map(|expert| ExpertKey::new(layer.0, expert));
        let stack = |parts: &[Part]| -> Vec<u8> {
            experts().flat_map(|key| parts.iter().flat_map(move |&part| self.part_bytes(key, part))).collect()
        };
        let (hidden, ff) = (HIDDEN as u64, EXPERT_FF as u64);
        let (wide, narrow) = (layout.gate.quant, layout.down.quant);
        let name = |name| names::block(layer, name);
        if layer.idx() % 3 == 2 {
            for key in experts() {
                let each = |part| names::block_expert(layer, part, key.expert.idx());
                writer.tensor(each("ffn_gate"), &[hidden, ff], wide, &self.part_bytes(key, Part::Gate));
                writer.tensor(each("ffn_up"), &[hidden, ff], wide, &self.part_bytes(key, Part::Up));
                writer.tensor(each("ffn_down"), &[ff, hidden], narrow, &self.part_bytes(key, Part::Down));
            }
            return;
        }
        if layer.idx() % 3 == 1 {
            let both = stack(&[Part::Gate, Part::Up]);
            writer.tensor(name("ffn_gate_up_exps"), &[hidden, 2 * ff, n_experts], wide, &both);
        } else {
            let wide_dims = [hidden, ff, n_experts];
            writer.tensor(name("ffn_gate_exps"), &wide_dims, wide, &stack(&[Part::Gate]));
            writer.tensor(name("ffn_up_exps"), &wide_dims, wide, &stack(&[Part::Up]));
        }
        writer.tensor(name("ffn_down_exps"), &[ff, hidden, n_experts], narrow, &stack(&[Part::Down]));
    }

    /// The toy's shape, as far as a catalog of experts needs one.
    pub fn shape(&self) -> ModelShape {
        let parts = AttentionParts { gate: true, head_norms: true };
        let attention = AttentionShape { n_heads: 1, n_kv_heads: 1, head_dim: HIDDEN, parts };
        let rope = RopeShape { n_rot: HIDDEN, freq_base: 10_000.0, sections: [HIDDEN / 2, 0, 0, 0] };
        let delta_net = DeltaNetShape {
            n_key_heads: 1,
            n_value_heads: 1,
            key_dim: HIDDEN,
            value_dim: HIDDEN,
            conv_kernel: 4,
            order: HeadOrder::Tiled,
        };
        let moe = MoeShape {
            n_experts: self.n_experts.into(),
            top_k: self.top_k,
            expert_ff: EXPERT_FF,
            shared_ff: Some(EXPERT_FF),
            renormalises: true,
        };
        ModelShape {
            hidden: HIDDEN,
            n_vocab: self.n_vocab,
            context_max: 1 << 16,
            norm_eps: 1e-6,
            layers: vec![LayerKind::DeltaNet; self.n_layers.into()],
            n_mtp: 0,
            attention,
            rope,
            delta_net: Some(delta_net),
            moe,
        }
    }

    /// The catalog that the real reader finds in [`ToyModel::file`].
    ///
    /// # Errors
    /// [`OpenError`] when reader and writer disagree.
    pub fn catalog(&self) -> Result<Catalog, OpenError> {
        Catalog::new(&self.shape(), &Gguf::open_bytes("toy", self.file())?)
    }
}

/// Writes tensors one after the other.
#[derive(Default)]
struct Writer {
    infos: Vec<u8>,
    n_tensors: u64,
    data: Vec<u8>,
}

impl Writer {
    fn tensor(&mut self, name: String, dims: &[u64], quant: QuantType, bytes: &[u8]) {
        self.data.resize(self.data.len().next_multiple_of(ALIGN_BYTES), 0);
        self.infos.extend_from_slice(&(name.len() as u64).to_le_bytes());
        self.infos.extend_from_slice(name.as_bytes());
        self.infos.extend_from_slice(&u32::try_from(dims.len()).unwrap_or(u32::MAX).to_le_bytes());
        for dim in dims {
            self.infos.extend_from_slice(&dim.to_le_bytes());
        }
        self.infos.extend_from_slice(&quant.id().to_le_bytes());
        self.infos.extend_from_slice(&(self.data.len() as u64).to_le_bytes());
        self.data.extend_from_slice(bytes);
        self.n_tensors += 1;
    }

    fn finish(self) -> Bytes {
        let mut file = b"GGUF".to_vec();
        file.extend_from_slice(&3u32.to_le_bytes());
        file.extend_from_slice(&self.n_tensors.to_le_bytes());
        file.extend_from_slice(&0u64.to_le_bytes());
        file.extend_from_slice(&self.infos);
        file.resize(file.len().next_multiple_of(ALIGN_BYTES), 0);
        file.extend_from_slice(&self.data);
        file.into()
    }
}

#[cfg(test)]
mod tests {
    use forerun_storage::{Placed, Placement};

    use super::*;

    #[test]
    fn the_real_catalog_finds_every_byte() {
        let model = ToyModel::small();
        let (file, catalog) = (model.file(), model.catalog().unwrap());
        assert_eq!((catalog.n_layers(), catalog.n_experts()), (4, 16));
        let mut n_ranges = [0; 4];
        for layer in 0..4 {
            for expert in 0..16 {
                let key = ExpertKey::new(layer, expert);
                let Placement { ranges, parts: at } = catalog.placement(key, 1).unwrap();
                n_ranges[ranges.len()] += 1;
                let mut slot = vec![0; catalog.slot_bytes(1)];
                for Placed { range, slot_offset_bytes, .. } in ranges {
                    let (from, to) =
                        (usize::try_from(range.offset_bytes).unwrap(), slot_offset_bytes as usize);
                    let len = range.len_bytes as usize;
                    slot[to..to + len].copy_from_slice(&file[from..from + len]);
                }
                for (part, start) in [(Part::Gate, at.gate), (Part::Up, at.up), (Part::Down, at.down)] {
                    let want = model.part_bytes(key, part);
                    assert_eq!(slot[start..start + want.len()], want, "{key} {part:?}");
                }
            }
        }
        assert!(n_ranges[1..].iter().filter(|&&n| n > 0).count() > 1, "ranges differ: {n_ranges:?}");
    }
}
