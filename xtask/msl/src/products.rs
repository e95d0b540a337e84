//! The products of a stack whose experts, recurrences and ends of layers are computed by the kernels.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use forerun_compute::Rounding;
use forerun_compute::activation::{Activations, Rows};
use forerun_compute::kernels::Isa;
use forerun_compute::products::{Exact, ExpertBuffers, ExpertMatrices, Product, Products};
use forerun_compute::stack::{Closing, Recurrence};
use forerun_compute::workers::Workers;
use forerun_model::{ExpertLayout, PartOffsets};

use crate::host::HostBuffer as Buffer;
use crate::launch::{Close, DeltaNet, Expert, ExpertSizes, Launch};
use crate::{Library, Order};

/// Exact products, but for what the kernels do; so are experts of types or widths that have no kernels.
#[derive(Debug)]
pub struct KernelProducts {
    exact: Exact,
    library: Arc<Library>,
    calls: Calls,
}

/// How often each kernel was called.
#[derive(Clone, Debug, Default)]
pub struct Calls(Arc<Mutex<BTreeMap<&'static str, usize>>>);

impl Calls {
    /// Each kernel that was called, and how often.
    pub fn counts(&self) -> BTreeMap<&'static str, usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count(&self, kernel: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(kernel).or_default() += 1;
    }
}

impl KernelProducts {
    /// Products through the kernels of `library`, counted in `calls`.
    pub fn new(library: Arc<Library>, calls: Calls) -> Self {
        Self { exact: Exact::new(Rounding::None), library, calls }
    }

    fn run(&mut self, launch: &Launch, buffers: &mut [Buffer<'_>]) {
        self.calls.count(launch.kernel);
        if let Err(error) = self.library.run(launch, buffers, Order::Forward) {
            panic!("{error}");
        }
    }
}

impl Products for KernelProducts {
    fn multiply(&mut self, x: &mut Activations, rows: Rows<'_>, products: &mut [Product<'_>]) {
        self.exact.multiply(x, rows, products);
    }

    fn expert(
        &mut self,
        expert: ExpertMatrices<'_>,
        x: &mut Activations,
        rows: Rows<'_>,
        buffers: ExpertBuffers<'_>,
        out: &mut [f32],
    ) {
        let ExpertMatrices { gate, up, down } = expert;
        let layout = ExpertLayout { gate: gate.layout, up: up.layout, down: down.layout };
        // Parts may begin anywhere in a slot.
        let mut slot = vec![0xFF; 4];
        let mut place = |bytes: &[u8]| {
            let at = slot.len();
            slot.extend_from_slice(bytes);
            at
        };
        let parts = PartOffsets { gate: place(gate.bytes), up: place(up.bytes), down: place(down.bytes) };
        let (n_rows, n, ff) = (x.n_rows(), rows.len(x.n_rows()), gate.layout.n_rows);
        let call = |n_rows| Expert::new(&layout, parts, ExpertSizes { n_rows, top_k: 1, n_uses: n });
        let (Some(wide), Some(narrow)) = (call(n_rows), call(n)) else {
            return self.exact.expert(expert, x, rows, buffers, out);
        };
        let uses = |row: &dyn Fn(usize) -> usize| -> Vec<u32> {
            (0..n).flat_map(|i| [u32::try_from(row(i)).expect("few rows"), 0]).collect()
        };
        let values: Vec<f32> = (0..n_rows).flat_map(|row| x.values(row)).copied().collect();
        let inner = buffers.inner.start(n, ff);
        let taken = uses(&|i| rows.get(i));
        let rows =
            &mut [Buffer::Bytes(&slot), Buffer::Floats(&values), Buffer::Words(&taken), Buffer::Out(inner)];
        self.run(&wide.inner(), rows);
        let inner: Vec<f32> = (0..n).flat_map(|i| buffers.inner.values(i)).copied().collect();
        let results = uses(&|i| i);
        let rows =
            &mut [Buffer::Bytes(&slot), Buffer::Floats(&inner), Buffer::Words(&results), Buffer::Out(out)];
        self.run(&narrow.down(), rows);
    }

    fn recur(&mut self, job: Recurrence<'_>) {
        let Recurrence { net, eps, conv, norm, inputs, old, new, convolved, outputs } = job;
        let delta = DeltaNet::new(net, inputs.n_rows, eps).expect("the fixtures' heads have kernels");
        self.run(
            &delta.convolve(),
            &mut [
                Buffer::Floats(&old.conv),
                Buffer::Floats(inputs.projections),
                Buffer::Floats(conv),
                Buffer::Out(&mut new.conv),
                Buffer::Out(&mut *convolved),
            ],
        );
        let mut heads = vec![f32::NAN; inputs.n_rows * net.value_width()];
        self.run(
            &delta.step(),
            &mut [
                Buffer::Floats(&old.state),
                Buffer::Floats(convolved),
                Buffer::Floats(inputs.log_decays),
                Buffer::Floats(inputs.betas),
                Buffer::Out(&mut new.state),
                Buffer::Out(&mut heads),
            ],
        );
        if let Some(outputs) = outputs {
            let buffers = &mut [Buffer::Floats(outputs.gates), Buffer::Floats(norm), Buffer::Out(&mut heads)];
            self.run(&delta.gate(), buffers);
            outputs.inner.copy_from_slice(&heads);
        }
    }

    fn close(&mut self, job: Closing<'_>) {
        let Closing { hidden, top_k, ranked, rank_weights, shared, x } = job;
        let n_rows = x.len() / hidden;
        // The stack has applied the shared expert's switch: an infinite logit leaves its results as they are.
        let (has_shared, switches) = (!shared.is_empty(), vec![f32::INFINITY; n_rows]);
        let close = Close { n_rows, hidden, top_k, has_shared }.launch().expect("a step has rows");
        let mut buffers = [
            Buffer::Floats(ranked),
            Buffer::Floats(rank_weights),
            Buffer::Floats(shared),
            Buffer::Floats(&switches),
            Buffer::Out(x),
        ];
        self.run(&close, &mut buffers);
    }

    fn workers(&self) -> &Workers {
        self.exact.workers()
    }

    fn isa(&self) -> Isa {
        self.exact.isa()
    }
}
