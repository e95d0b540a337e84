//! A file from a plan: to a temporary beside it, synced, renamed.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use forerun_decode::bytes_text;
use forerun_sim::rng::hash;
use forerun_storage::gguf::{HeaderWriter, Value};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::chance::Purpose;
use crate::encode::encode;
use crate::error::SynthError;
use crate::plan::{Fill, Tensor};
use crate::pool::Pools;

/// Bytes in one write: a pool is longer, a zero row shorter.
const WRITE_BYTES: usize = 4 << 20;

/// Writes the model, and returns its bytes. What was at `path` stays until the new file is whole.
///
/// # Errors
/// [`SynthError::Space`] before anything is written, [`SynthError::Io`], [`SynthError::Header`].
pub(crate) fn write(
    path: &Path,
    keys: Vec<(String, Value)>,
    tensors: &[Tensor],
    seed: u64,
) -> Result<u64, SynthError> {
    let header = HeaderWriter::new(keys, tensors.iter().map(Tensor::spec).collect())?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    check_space(folder, header.file_bytes())?;
    let partial = Partial::beside(path);
    let io = |doing| move |source| SynthError::Io { doing, path: path.to_path_buf(), source };
    let file = File::create(&partial.path).map_err(io("create"))?;
    let mut sink = Sink { file, n_bytes: 0, bar: bar(header.file_bytes()) };
    let mut bytes = Vec::new();
    header.write(&mut bytes).and_then(|()| sink.write(&bytes)).map_err(io("write"))?;
    let mut pools = Pools::new(seed);
    for (idx, tensor) in tensors.iter().enumerate() {
        let place = Place { seed, idx: idx as u64 };
        sink.pad_to(header.offset_bytes(idx))
            .and_then(|()| tensor_data(tensor, place, &mut pools, &mut sink))
            .map_err(io("write"))?;
    }
    sink.file.sync_all().map_err(io("sync"))?;
    fs::rename(&partial.path, path).map_err(io("rename"))?;
    // A rename is on the disk once its folder is; systems that can't open folders see to that themselves.
    if let Ok(folder) = File::open(folder) {
        folder.sync_all().map_err(io("sync the folder of"))?;
    }
    Ok(header.file_bytes())
}

/// A file that is removed unless it was renamed.
struct Partial {
    path: PathBuf,
}

impl Partial {
    fn beside(path: &Path) -> Self {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(".partial");
        Self { path: path.with_file_name(name) }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After the rename there is nothing left of that name, and before it nothing can be done about a failure.
        let _ = fs::remove_file(&self.path);
    }
}

fn check_space(folder: &Path, need: u64) -> Result<(), SynthError> {
    let path = folder.to_path_buf();
    match fs4::available_space(folder) {
        Ok(free) if free >= need => Ok(()),
        Ok(free) => Err(SynthError::Space { path, free: bytes_text(free), need: bytes_text(need) }),
        Err(source) => Err(SynthError::Io { doing: "see the free space of", path, source }),
    }
}

fn bar(total: u64) -> ProgressBar {
    let visible = io::stderr().is_terminal();
    let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(total), target);
    let template = "writing {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}";
    ProgressStyle::with_template(template).map_or(bar.clone(), |style| bar.with_style(style))
}

/// Where bytes go.
struct Sink {
    file: File,
    n_bytes: u64,
    bar: ProgressBar,
}

impl Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(WRITE_BYTES) {
            self.file.write_all(piece)?;
            self.n_bytes += piece.len() as u64;
            self.bar.set_position(self.n_bytes);
        }
        Ok(())
    }

    /// Zeros up to byte `offset` of the file, which a header puts a few bytes ahead.
    fn pad_to(&mut self, offset: u64) -> io::Result<()> {
        let padding = usize::try_from(offset - self.n_bytes).unwrap_or(0);
        self.write(&vec![0; padding])
    }
}

/// Which tensor of which model: decides where in a pool it begins.
#[derive(Clone, Copy)]
struct Place {
    seed: u64,
    idx: u64,
}

fn tensor_data(tensor: &Tensor, place: Place, pools: &mut Pools, sink: &mut Sink) -> io::Result<()> {
    let len = usize::try_from(tensor.len_bytes()).unwrap_or(usize::MAX);
    let row = tensor.row_bytes();
    let mut tape = |deviation| Tape::new(pools.scaled(tensor.quant, deviation), tensor, place);
    match &tensor.fill {
        Fill::Values(values) => sink.write(&encoded(tensor, values)),
        Fill::Router(router) => sink.write(&encoded(tensor, &router.rows(tensor.dims[1]))),
        Fill::Random(deviation) => tape(*deviation).play(len, sink),
        Fill::Update { deviation, n_rows, n_zero } => {
            let mut tape = tape(*deviation);
            let zeros = vec![0; n_zero * row];
            for _ in 0..len / (n_rows * row) {
                tape.play((n_rows - n_zero) * row, sink)?;
                sink.write(&zeros)?;
            }
            Ok(())
        }
        Fill::Table { deviation, first, rows } => {
            let mut tape = tape(*deviation);
            tape.play(first * row, sink)?;
            sink.write(rows)?;
            tape.play(len - first * row - rows.len(), sink)
        }
    }
}

fn encoded(tensor: &Tensor, values: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(tensor.quant, values, &mut bytes);
    bytes
}

/// A pool, over and over.
struct Tape {
    pool: Vec<u8>,
    at: usize,
}

impl Tape {
    fn new(pool: Vec<u8>, tensor: &Tensor, place: Place) -> Self {
        let block = tensor.quant.block_bytes();
        let n_blocks = (pool.len() / block) as u64;
        let start = hash(&[place.seed, Purpose::Start as u64, place.idx]) % n_blocks;
        let at = usize::try_from(start).unwrap_or(0) * block;
        Self { pool, at }
    }

    fn play(&mut self, mut len: usize, sink: &mut Sink) -> io::Result<()> {
        while len > 0 {
            let n = len.min(self.pool.len() - self.at);
            sink.write(&self.pool[self.at..self.at + n])?;
            self.at = (self.at + n) % self.pool.len();
            len -= n;
        }
        Ok(())
    }
}
