//! Experts from a model's disk, cold, against a plain sequential read. Unit of work: the experts of one layer and token.
//!
//! ```text
//! cargo bench -p forerun-benches --bench disk -- MODEL.gguf [PACKED.gguf ...] [--steps 48] [--rounds 5]
//!     [--rows 1] [--trace NAME]
//! ```
//!
//! Every round reads each model in each way, in turn; every step wants the top-k experts of one layer for some tokens
//! (`--rows`), chosen at random or as a recorded trace has them (`NAME.json` and `NAME.bin`), and waits for all of them,
//! as a token loop without a cache would. Direct reads can't come from the page cache; before a cached way reads, the
//! pages of its file are dropped. `raw` reads the same experts' bytes directly, one range after the other in the order of
//! the file, by a plain loop; `stretch` reads as many bytes that lie in one stretch, which a disk likes best. The table has
//! medians over the rounds, and each way's share of `raw` and of `stretch` in the same round.
//!
//! Without arguments it goes over the small fixture once, which is only a test that it works.

#![expect(clippy::print_stdout, reason = "a benchmark talks")]

mod args;
mod report;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use std::{env, fmt, fs};

use forerun_arena::{Arena, SlotIdx};
use forerun_model::{Clock, ExpertKey, LayerId, ModelShape, Nanos, Routing, SystemClock};
use forerun_sim::{Synthetic, Trace};
use forerun_storage::{
    Catalog, DirectFiles, ExpertStore, FileStore, Gguf, PreadBackend, PreadConfig, Priority, Read,
    ReadBackend, RefusedReason, Tag,
};

use args::Args;
use report::{Cost, report};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Why a way of reading can't be had here.
#[derive(Debug)]
struct Unavailable(String);

impl Error for Unavailable {}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A model, and where its experts are.
struct Model {
    name: String,
    gguf: Gguf,
    catalog: Arc<Catalog>,
    top_k: usize,
}

impl Model {
    fn open(path: &Path) -> Outcome<Self> {
        let gguf = Gguf::open(path)?;
        let shape = ModelShape::from_metadata(&gguf.metadata)?;
        let catalog = Arc::new(Catalog::new(&shape, &gguf)?);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, gguf, catalog, top_k: shape.moe.top_k })
    }
}

/// Which experts the steps want.
enum Source {
    Random(Synthetic),
    Recorded(Trace),
}

impl Source {
    fn new(args: &Args, model: &Model) -> Outcome<Self> {
        let Some(name) = &args.trace else {
            let n_experts = u16::try_from(model.catalog.n_experts())?;
            return Ok(Self::Random(Synthetic::new(7, n_experts, model.top_k, 0)));
        };
        let header = fs::read(format!("{name}.json"))?;
        let trace = Trace::parse(&header, &fs::read(format!("{name}.bin"))?)?;
        Ok(Self::Recorded(trace))
    }

    /// The experts of each step, which no two calls with other `first` have in common by plan.
    fn steps(&mut self, model: &Model, first: usize, args: &Args) -> Vec<Vec<ExpertKey>> {
        let n_layers = model.catalog.n_layers();
        let (mut routing, mut row) = (Routing::default(), Routing::default());
        (first..first + args.n_steps)
            .map(|i| {
                let layer = LayerId(u16::try_from(i % n_layers).expect("few layers"));
                match self {
                    Self::Random(random) => random.next(layer, args.n_rows, &mut routing),
                    Self::Recorded(trace) => {
                        let token = i / n_layers * args.n_rows;
                        routing.reset(model.top_k);
                        for offset in 0..args.n_rows {
                            trace.routing((token + offset) % trace.n_tokens, layer, &mut row);
                            let experts: Vec<_> = row.experts().map(|expert| (expert, 1.0)).collect();
                            routing.push_row(&experts);
                        }
                        routing.group();
                    }
                }
                routing.experts().map(|expert| ExpertKey { layer, expert }).collect()
            })
            .collect()
    }
}

/// Seconds of CPU that this process has used, on all cores, in user code and in the system.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    // USER_HZ is 100 on every Linux.
    f64::from(u32::try_from(ticks).unwrap_or(u32::MAX)) / 100.0
}

fn timed(work: impl FnOnce() -> Outcome<Cost>) -> Outcome<Cost> {
    let (start, cpu) = (Instant::now(), cpu_seconds());
    let cost = work()?;
    Ok(Cost { seconds: start.elapsed().as_secs_f64(), cpu_seconds: cpu_seconds() - cpu, ..cost })
}

/// Reads the experts of every step through `backend`.
fn experts(model: &Model, backend: Box<dyn ReadBackend>, steps: &[Vec<ExpertKey>]) -> Outcome<Cost> {
    let mut store = FileStore::new(Arc::clone(&model.catalog), model.gguf.files().clone(), backend);
    let n_slots = n_slots(steps);
    let arena = Arena::new(n_slots, store.slot_bytes())?;
    touch(&arena);
    timed(|| {
        let (mut done, mut n_experts) = (Vec::new(), 0);
        for step in steps {
            let mut free: Vec<SlotIdx> = (0..).map(SlotIdx).take(n_slots).collect();
            let (mut n_begun, mut n_over) = (0, 0);
            while n_over < step.len() {
                while let (Some(key), Some(slot)) = (step.get(n_begun), free.last()) {
                    let lease = arena.try_write(*slot).ok_or("a slot is still leased")?;
                    match store.begin(*key, lease, Priority::Demand) {
                        Ok(()) => free.pop(),
                        Err(refused) if matches!(refused.reason, RefusedReason::QueueFull) => break,
                        Err(refused) => return Err(format!("{key}: {:?}", refused.reason).into()),
                    };
                    n_begun += 1;
                }
                store.start();
                store.wait(Nanos::MAX, &mut done);
                for fetched in done.drain(..) {
                    free.extend(fetched.result?.lease.slot());
                    n_over += 1;
                }
            }
            n_experts += step.len();
        }
        let stats = store.stats();
        Ok(Cost { bytes: stats.read_bytes, n_experts, stats, ..Cost::default() })
    })
}

/// Reads the ranges of the steps' experts, step by step, in the order of the file.
fn same_bytes(model: &Model, steps: &[Vec<ExpertKey>], align_bytes: u32) -> Vec<(u16, u64, usize)> {
    let ranges = |step: &Vec<ExpertKey>| {
        let placed = step.iter().filter_map(|key| model.catalog.placement(*key, align_bytes));
        let mut ranges: Vec<_> =
            placed.flat_map(|placement| placement.ranges).map(|placed| placed.range).collect();
        ranges.sort_unstable();
        ranges.into_iter().map(|range| (range.file, range.offset_bytes, range.len_bytes as usize))
    };
    steps.iter().flat_map(ranges).collect()
}

/// As many bytes, in pieces of a record, from a place of its own on.
fn stretch(model: &Model, bytes: u64, align_bytes: u32, round: usize) -> Vec<(u16, u64, usize)> {
    let piece = model.catalog.slot_bytes(align_bytes).next_multiple_of(4096);
    let len = model.gguf.files().files()[0].len_bytes / 4096 * 4096;
    let start = len / 11 * (round as u64 % 10) / 4096 * 4096;
    let n_pieces = bytes.div_ceil(piece as u64);
    let n_places = (len / piece as u64).max(1);
    (0..n_pieces).map(|i| (0, (start / piece as u64 + i) % n_places * piece as u64, piece)).collect()
}

/// Reads ranges one after the other, into as many slots in turn as the experts of a step have: memory that was written
/// a moment ago takes the next bytes faster than memory that wasn't.
fn raw(model: &Model, direct: &DirectFiles, ranges: &[(u16, u64, usize)], n_slots: usize) -> Outcome<Cost> {
    let files = model.gguf.files();
    let piece = ranges.iter().map(|range| range.2).max().unwrap_or(1);
    let (arena, clock) = (Arena::new(n_slots, piece)?, Arc::new(SystemClock::new()) as Arc<dyn Clock>);
    touch(&arena);
    let config = PreadConfig { n_threads: 1, depth: 1 };
    let mut backend = PreadBackend::direct(files, direct.clone(), config, clock)?;
    timed(|| {
        let (mut bytes, mut done) = (0, Vec::new());
        for (i, &(file, offset_bytes, len)) in ranges.iter().enumerate() {
            let slot = SlotIdx(u32::try_from(i % n_slots)?);
            let windows = vec![arena.try_write(slot).ok_or("the slot is leased")?.window(0..len)];
            let read = Read { tag: Tag(0), priority: Priority::Demand, file, offset_bytes, windows };
            backend.submit(read).map_err(|_| "an idle backend refused a read")?;
            backend.wait(Nanos::MAX, &mut done);
            bytes += done.pop().ok_or("nothing came back")?.result?;
        }
        Ok(Cost { bytes, ..Cost::default() })
    })
}

/// Slots that take the experts of any step.
fn n_slots(steps: &[Vec<ExpertKey>]) -> usize {
    steps.iter().map(Vec::len).max().unwrap_or(0).clamp(2, 64)
}

/// Makes the slots resident, so that no way pays for pages that others find.
fn touch(arena: &Arena) {
    for slot in (0..).map(SlotIdx).take(arena.n_slots()) {
        if let Some(mut lease) = arena.try_write(slot) {
            lease.bytes_mut().fill(1);
        }
    }
}

/// Drops the pages of a model's files from the page cache.
#[cfg(target_os = "linux")]
fn drop_pages(model: &Model) -> Outcome<()> {
    use rustix::fs::{Advice, fadvise};
    for file in model.gguf.files().files() {
        let file = fs::File::open(&file.path)?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn drop_pages(_model: &Model) -> Outcome<()> {
    Err(Unavailable("cold cached reads are measured on Linux only".into()).into())
}

/// One way to read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Raw,
    Stretch,
    Pread(usize),
    Uring(usize),
    Cached,
}

impl Way {
    const ALL: [Self; 9] = [
        Self::Raw,
        Self::Stretch,
        Self::Pread(1),
        Self::Pread(2),
        Self::Pread(4),
        Self::Uring(1),
        Self::Uring(2),
        Self::Uring(4),
        Self::Cached,
    ];

    fn name(self) -> String {
        match self {
            Self::Raw => "raw, the same bytes".into(),
            Self::Stretch => "raw, one stretch".into(),
            Self::Pread(n) => format!("pread, direct, {n} threads"),
            Self::Uring(n) => format!("uring, direct, depth {n}"),
            Self::Cached => "pread, cached, 4 threads".into(),
        }
    }

    /// # Errors
    /// [`Unavailable`] where the system or the file doesn't offer this way.
    fn run(self, model: &Model, steps: &[Vec<ExpertKey>], round: usize) -> Outcome<Cost> {
        let (files, clock) = (model.gguf.files(), Arc::new(SystemClock::new()));
        let direct = || DirectFiles::open(files).map_err(Unavailable);
        let backend: Box<dyn ReadBackend> = match self {
            Self::Raw => {
                let direct = direct()?;
                let ranges = same_bytes(model, steps, direct.align_bytes());
                return raw(model, &direct, &ranges, n_slots(steps));
            }
            Self::Stretch => {
                let direct = direct()?;
                let ranges = same_bytes(model, steps, direct.align_bytes());
                let bytes = ranges.iter().map(|range| range.2 as u64).sum();
                let ranges = stretch(model, bytes, direct.align_bytes(), round);
                return raw(model, &direct, &ranges, n_slots(steps));
            }
            Self::Pread(n_threads) => {
                let config = PreadConfig { n_threads, ..PreadConfig::default() };
                Box::new(PreadBackend::direct(files, direct()?, config, clock)?)
            }
            Self::Uring(device_depth) => uring(direct()?, device_depth, clock)?,
            Self::Cached => {
                drop_pages(model)?;
                Box::new(PreadBackend::new(files, PreadConfig::default(), clock)?)
            }
        };
        experts(model, backend, steps)
    }
}

#[cfg(target_os = "linux")]
fn uring(direct: DirectFiles, device_depth: usize, clock: Arc<dyn Clock>) -> Outcome<Box<dyn ReadBackend>> {
    use forerun_storage::{UringBackend, UringConfig};
    let config = UringConfig { device_depth, ..UringConfig::default() };
    let backend = UringBackend::new(direct, config, None, clock);
    Ok(Box::new(backend.map_err(|why| Unavailable(why.to_string()))?))
}

#[cfg(not(target_os = "linux"))]
fn uring(
    _direct: DirectFiles,
    _device_depth: usize,
    _clock: Arc<dyn Clock>,
) -> Outcome<Box<dyn ReadBackend>> {
    Err(Unavailable("only Linux has io_uring".into()).into())
}

fn main() -> Outcome<()> {
    // Cargo starts benchmarks in the folder of their package; paths are meant from the checkout's root.
    if let Some(package) = env::var_os("CARGO_MANIFEST_DIR") {
        env::set_current_dir(Path::new(&package).join(".."))?;
    }
    let args = Args::parse(env::args().skip(1))?;
    let models: Vec<Model> = args.models.iter().map(|path| Model::open(path)).collect::<Outcome<_>>()?;
    let mut sources: Vec<Source> =
        models.iter().map(|model| Source::new(&args, model)).collect::<Outcome<_>>()?;
    // By model and way, one for each round.
    let mut costs = vec![vec![Vec::new(); Way::ALL.len()]; models.len()];
    let mut first = 0;
    for round in 0..args.n_rounds {
        for ((model, source), costs) in models.iter().zip(&mut sources).zip(&mut costs) {
            for (i, way) in Way::ALL.into_iter().enumerate() {
                let steps = source.steps(model, first, &args);
                first += args.n_steps;
                match way.run(model, &steps, round * Way::ALL.len() + i) {
                    Ok(cost) => costs[i].push(cost),
                    Err(why) if why.is::<Unavailable>() => eprintln!("{}, {}: {why}", model.name, way.name()),
                    Err(error) => return Err(error),
                }
            }
        }
    }
    for (model, costs) in models.iter().zip(&costs) {
        report(model, costs);
    }
    Ok(())
}
