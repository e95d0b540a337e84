//! Calls of the project's own kernels: which one, on how many threads, with which shape, and what its buffers must hold.
//!
//! A [`Launch`] is made of sizes alone, so that what a GPU is told is the same that the kernels are proven with on a CPU. Whoever runs
//! it compares its buffers with [`Launch::buffers`] first: kernels don't look at lengths.
//!
//! Never here: memory, devices, `unsafe`.

use forerun_model::{DeltaNetShape, ExpertLayout, HeadOrder, MatrixLayout, PartOffsets, QuantType, Use};

/// Threads of a simdgroup, which kernels count on.
pub const LANES: usize = 32;
/// Simdgroups of a threadgroup where a kernel doesn't say otherwise.
const SIMDGROUPS: usize = 4;
/// Uses of an expert that one threadgroup takes.
const USES: usize = 8;
/// Values that a lane decodes at once.
const UNIT: usize = 16;
/// Keys of a delta-net's head that one simdgroup takes; there are at most 32 simdgroups.
const KEYS: usize = 32;
/// The widest key head that there is a kernel for.
pub const KEY_DIM_MAX: usize = 32 * KEYS;

/// Every kernel.
pub const KERNELS: &[&str] = &[
    "delta_convolve",
    "delta_step",
    "delta_gate",
    "close_layer",
    "expert_inner_F32",
    "expert_down_F32",
    "expert_inner_Q8_0",
    "expert_down_Q8_0",
    "expert_inner_Q3_K",
    "expert_down_Q3_K",
    "expert_inner_Q4_K",
    "expert_down_Q4_K",
    "expert_inner_Q5_K",
    "expert_down_Q5_K",
    "expert_inner_Q6_K",
    "expert_down_Q6_K",
];

/// What a kernel does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only reads it.
    Read,
    /// Writes it, and may read it. No other buffer of the call may overlap with it.
    Write,
}

/// What a call wants of one of its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// What is done with it.
    pub access: Access,
    /// Bytes that it has at least.
    pub bytes: usize,
    /// Its first byte lies at a multiple of this.
    pub align: usize,
}

impl Need {
    fn floats(access: Access, n: usize) -> Self {
        Self { access, bytes: 4 * n, align: 4 }
    }

    fn read(n_floats: usize) -> Self {
        Self::floats(Access::Read, n_floats)
    }

    fn write(n_floats: usize) -> Self {
        Self::floats(Access::Write, n_floats)
    }
}

/// One call of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The function's name.
    pub kernel: &'static str,
    /// Threadgroups, in one row.
    pub groups: usize,
    /// Simdgroups of each threadgroup.
    pub simdgroups: usize,
    /// Buffers, by index; the shape has the index after the last.
    pub buffers: Vec<Need>,
    /// The bytes of the kernel's shape.
    pub shape: Vec<u8>,
}

/// A delta-net's recurrence over consecutive rows of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct DeltaNet {
    net: DeltaNetShape,
    n_rows: usize,
    eps: f32,
}

impl DeltaNet {
    /// `n_rows` rows of a block of shape `net`, whose norms add `eps`. `None` when there is no kernel for so large a shape, or no row.
    pub fn new(net: &DeltaNetShape, n_rows: usize, eps: f32) -> Option<Self> {
        let values =
            n_rows.checked_mul(net.conv_channels())?.checked_add(net.conv_len() + net.state_len())?;
        let fits = u32::try_from(values).is_ok() && n_rows > 0 && net.key_dim <= KEY_DIM_MAX;
        fits.then_some(Self { net: *net, n_rows, eps })
    }

    /// Convolution, SiLU, and the norms of queries and keys. Buffers: the history `[conv_kernel - 1, channels]`, raw projections
    /// `[rows, channels]`, weights `[conv_kernel, channels]`, the next history, convolved channels `[rows, channels]`.
    pub fn convolve(&self) -> Launch {
        let Self { net, n_rows, .. } = self;
        let channels = net.conv_channels();
        let heads = 2 * net.n_key_heads + net.n_value_heads;
        Launch {
            kernel: "delta_convolve",
            groups: (*n_rows).max(net.conv_kernel - 1) * heads,
            simdgroups: 1,
            buffers: vec![
                Need::read(net.conv_len()),
                Need::read(n_rows * channels),
                Need::read(net.conv_kernel * channels),
                Need::write(net.conv_len()),
                Need::write(n_rows * channels),
            ],
            shape: self.shape(),
        }
    }

    /// The delta rule. Buffers: the state before `[value heads, key_dim, value_dim]`, convolved channels, logarithms of the decay
    /// `[rows, value heads]`, betas of the same shape, the state after, outputs `[rows, value heads, value_dim]`.
    pub fn step(&self) -> Launch {
        let Self { net, n_rows, .. } = self;
        let coefficients = n_rows * net.n_value_heads;
        Launch {
            kernel: "delta_step",
            groups: net.n_value_heads * net.value_dim.div_ceil(LANES),
            simdgroups: net.key_dim.div_ceil(KEYS),
            buffers: vec![
                Need::read(net.state_len()),
                Need::read(n_rows * net.conv_channels()),
                Need::read(coefficients),
                Need::read(coefficients),
                Need::write(net.state_len()),
                Need::write(n_rows * net.value_width()),
            ],
            shape: self.shape(),
        }
    }

    /// The gated norm of the heads' outputs. Buffers: gates `[rows, value heads, value_dim]`, the norm's weights `[value_dim]`,
    /// outputs, which are changed where they stand.
    pub fn gate(&self) -> Launch {
        let Self { net, n_rows, .. } = self;
        let outputs = n_rows * net.value_width();
        Launch {
            kernel: "delta_gate",
            groups: n_rows * net.n_value_heads,
            simdgroups: 1,
            buffers: vec![Need::read(outputs), Need::read(net.value_dim), Need::write(outputs)],
            shape: self.shape(),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a head has few channels")]
    fn shape(&self) -> Vec<u8> {
        let Self { net, n_rows, eps } = self;
        let sizes =
            [*n_rows, net.n_key_heads, net.n_value_heads, net.key_dim, net.value_dim, net.conv_kernel];
        let grouped = usize::from(net.order == HeadOrder::Grouped);
        let query_scale = 1.0 / (net.key_dim as f32).sqrt();
        let floats = [*eps, query_scale].map(f32::to_ne_bytes).concat();
        [words(&sizes), words(&[grouped]), floats].concat()
    }
}

/// One expert on the rows that want it.
#[derive(Clone, Copy, Debug)]
pub struct Expert {
    layout: ExpertLayout,
    parts: PartOffsets,
    job: ExpertSizes,
}

/// How many rows there are, and how many want the expert.
#[derive(Clone, Copy, Debug)]
pub struct ExpertSizes {
    /// Rows of the step.
    pub n_rows: usize,
    /// Experts of a row.
    pub top_k: usize,
    /// Rows that want this expert.
    pub n_uses: usize,
}

impl Expert {
    /// An expert of matrices `layout`, which begin at `parts` in the bytes that hold them. `None` when there is no kernel for their
    /// types or shapes, when a matrix begins where a kernel can't read it, or when nobody wants it.
    pub fn new(layout: &ExpertLayout, parts: PartOffsets, job: ExpertSizes) -> Option<Self> {
        let ExpertLayout { gate, up, down } = layout;
        let pairs = gate.quant == up.quant && gate.n_rows == up.n_rows && gate.n_cols == up.n_cols;
        let chains = down.n_cols == gate.n_rows && down.n_rows == gate.n_cols;
        let at = [(parts.gate, gate), (parts.up, up), (parts.down, down)];
        let readable = |(at, matrix): (usize, &MatrixLayout)| {
            kernels(matrix.quant).is_some_and(|kernels| at.is_multiple_of(kernels.align))
                && matrix.n_cols.is_multiple_of(UNIT)
                && matrix.n_rows > 0
        };
        let values = job.n_rows.checked_mul(job.top_k)?.checked_mul(gate.n_cols.max(gate.n_rows))?;
        let fits = u32::try_from(values).is_ok() && job.n_uses > 0 && job.n_uses <= job.n_rows;
        (pairs && chains && fits && at.into_iter().all(readable)).then_some(Self {
            layout: *layout,
            parts,
            job,
        })
    }

    /// The buffer of uses as kernels read it: row and rank of each. Kernels don't compare them with anything.
    ///
    /// # Panics
    /// When these aren't the uses that the call is for: another number, or a row or a rank that there isn't.
    pub fn uses(&self, uses: &[Use]) -> Vec<u32> {
        let ExpertSizes { n_rows, top_k, n_uses } = self.job;
        assert_eq!(uses.len(), n_uses, "as many uses as the call is for");
        let inside = |u: &Use| (u.row as usize) < n_rows && (u.rank as usize) < top_k;
        assert!(uses.iter().all(inside), "uses are of the step's rows and ranks");
        uses.iter().flat_map(|u| [u.row, u.rank]).collect()
    }

    /// `silu(gate x) * (up x)`. Buffers: the slot's bytes, rows `[rows, hidden]`, [uses](Self::uses), inner values `[uses, ff]`.
    pub fn inner(&self) -> Launch {
        let Self { layout, job, .. } = self;
        let (hidden, ff) = (layout.gate.n_cols, layout.gate.n_rows);
        Launch {
            kernel: kernels(layout.gate.quant).map_or("", |kernels| kernels.inner),
            groups: ff.div_ceil(SIMDGROUPS) * job.n_uses.div_ceil(USES),
            simdgroups: SIMDGROUPS,
            buffers: vec![
                self.slot(&[(self.parts.gate, layout.gate), (self.parts.up, layout.up)]),
                Need::read(job.n_rows * hidden),
                Need::read(2 * job.n_uses),
                Need::write(job.n_uses * ff),
            ],
            shape: self.shape(),
        }
    }

    /// `down inner`, by row and rank. Buffers: the slot's bytes, inner values `[uses, ff]`, [uses](Self::uses), results
    /// `[rows, top_k, hidden]`, of which only those of the uses are written.
    pub fn down(&self) -> Launch {
        let Self { layout, job, .. } = self;
        let (hidden, ff) = (layout.down.n_rows, layout.down.n_cols);
        Launch {
            kernel: kernels(layout.down.quant).map_or("", |kernels| kernels.down),
            groups: hidden.div_ceil(SIMDGROUPS) * job.n_uses.div_ceil(USES),
            simdgroups: SIMDGROUPS,
            buffers: vec![
                self.slot(&[(self.parts.down, layout.down)]),
                Need::read(job.n_uses * ff),
                Need::read(2 * job.n_uses),
                Need::write(job.n_rows * job.top_k * hidden),
            ],
            shape: self.shape(),
        }
    }

    fn slot(&self, parts: &[(usize, MatrixLayout)]) -> Need {
        let ends = parts.iter().map(|(at, matrix)| at + matrix.bytes());
        let aligns =
            parts.iter().filter_map(|(_, matrix)| kernels(matrix.quant)).map(|kernels| kernels.align);
        Need { access: Access::Read, bytes: ends.max().unwrap_or(0), align: aligns.max().unwrap_or(1) }
    }

    fn shape(&self) -> Vec<u8> {
        let Self { layout, parts, job } = self;
        let parts = [parts.gate, parts.up, parts.down].map(|at| (at as u64).to_ne_bytes()).concat();
        [parts, words(&[layout.gate.n_cols, layout.gate.n_rows, job.top_k, job.n_uses])].concat()
    }
}

/// The kernels of one type of matrix.
struct Kernels {
    inner: &'static str,
    down: &'static str,
    /// Matrices begin at a multiple of this.
    align: usize,
}

fn kernels(quant: QuantType) -> Option<Kernels> {
    let (inner, down, align) = match quant {
        QuantType::F32 => ("expert_inner_F32", "expert_down_F32", 4),
        QuantType::Q8_0 => ("expert_inner_Q8_0", "expert_down_Q8_0", 2),
        QuantType::Q3_K => ("expert_inner_Q3_K", "expert_down_Q3_K", 2),
        QuantType::Q4_K => ("expert_inner_Q4_K", "expert_down_Q4_K", 2),
        QuantType::Q5_K => ("expert_inner_Q5_K", "expert_down_Q5_K", 2),
        QuantType::Q6_K => ("expert_inner_Q6_K", "expert_down_Q6_K", 2),
        _ => return None,
    };
    Some(Kernels { inner, down, align })
}

/// The end of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Close {
    /// Rows.
    pub n_rows: usize,
    /// Values of a row.
    pub hidden: usize,
    /// Experts of a row.
    pub top_k: usize,
    /// Whether there is a shared expert.
    pub has_shared: bool,
}

impl Close {
    /// Adds all results to the residual stream. Buffers: results `[rows, top_k, hidden]`, their weights `[rows, top_k]`, the shared
    /// expert's results `[rows, hidden]` and the logits of its switch `[rows]` (without a shared expert any buffers do), the residual
    /// stream `[rows, hidden]`. `None` when there is no row, or more than a kernel can count.
    pub fn launch(&self) -> Option<Launch> {
        let Self { n_rows, hidden, top_k, has_shared } = *self;
        let values = n_rows.checked_mul(hidden)?.checked_mul(top_k.max(1))?;
        let shared = usize::from(has_shared);
        (values > 0 && u32::try_from(values).is_ok()).then(|| Launch {
            kernel: "close_layer",
            groups: (n_rows * hidden).div_ceil(SIMDGROUPS * LANES),
            simdgroups: SIMDGROUPS,
            buffers: vec![
                Need::read(n_rows * top_k * hidden),
                Need::read(n_rows * top_k),
                Need::read(shared * n_rows * hidden),
                Need::read(shared * n_rows),
                Need::write(n_rows * hidden),
            ],
            shape: words(&[n_rows, hidden, top_k, shared]),
        })
    }
}

/// As the kernels' `uint`s.
///
/// # Panics
/// When one is larger than that; the constructors have compared.
fn words(sizes: &[usize]) -> Vec<u8> {
    let word = |&size: &usize| u32::try_from(size).expect("sizes were compared with what a kernel can count");
    sizes.iter().flat_map(|size| word(size).to_ne_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expert(types: [QuantType; 3], at: usize, n_uses: usize) -> Option<Expert> {
        let [gate, up, down] = types;
        let matrix = |quant, n_rows, n_cols| MatrixLayout::new(quant, n_rows, n_cols).unwrap();
        let (gate, up, down) = (matrix(gate, 256, 512), matrix(up, 256, 512), matrix(down, 512, 256));
        let parts = PartOffsets { gate: at, up: at + gate.bytes(), down: at + gate.bytes() + up.bytes() };
        let sizes = ExpertSizes { n_rows: 9, top_k: 2, n_uses };
        Expert::new(&ExpertLayout { gate, up, down }, parts, sizes)
    }

    #[test]
    fn what_no_kernel_can_read_is_refused() {
        use QuantType::{F32, Q4_0, Q4_K, Q6_K};
        assert!(expert([Q4_K, Q4_K, Q6_K], 34, 9).is_some());
        assert!(expert([Q4_K, Q4_K, Q6_K], 33, 9).is_none(), "an odd byte");
        assert!(expert([F32, F32, F32], 34, 9).is_none(), "floats at no multiple of four");
        assert!(expert([Q4_K, Q6_K, Q6_K], 34, 9).is_none(), "gate and up in one pass are of one type");
        assert!(expert([Q4_0, Q4_0, Q4_0], 34, 9).is_none(), "no kernel");
        assert!(expert([Q4_K, Q4_K, Q4_K], 34, 0).is_none(), "no uses");
        assert!(expert([Q4_K, Q4_K, Q4_K], 34, 10).is_none(), "more uses than rows");
    }

    #[test]
    fn nine_uses_take_two_threadgroups_a_block_of_rows() {
        let expert = expert([QuantType::Q4_K; 3], 34, 9).unwrap();
        let (inner, down) = (expert.inner(), expert.down());
        assert_eq!((inner.kernel, inner.groups, inner.simdgroups), ("expert_inner_Q4_K", 64 * 2, 4));
        assert_eq!((down.kernel, down.groups, down.simdgroups), ("expert_down_Q4_K", 128 * 2, 4));
        let bytes = 3 * 256 * 288;
        assert_eq!((inner.buffers[0].bytes, down.buffers[0].bytes), (34 + 2 * bytes / 3, 34 + bytes));
        assert!(KERNELS.contains(&inner.kernel) && inner.shape.len() == 40);
    }
}
