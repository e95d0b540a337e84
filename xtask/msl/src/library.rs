//! The kernels in a shared library, and calls of them on checked copies of their buffers.

#![expect(unsafe_code, reason = "kernels are functions of a foreign library that take pointers")]

use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::MslError;
use crate::fibers::{Order, Stop, Threads, barrier, shuffle_xor};
use crate::host::{HostBuffer, check};
use crate::launch::{LANES, Launch};

type Pointer = *mut u64;
/// A kernel of a number of buffers, shape included, then threadgroup, lane and simdgroup.
macro_rules! kernel {
    ($($buffer:ident)*) => { unsafe extern "C" fn($($buffer,)* u32, u32, u32) };
}
type Kernel4 = kernel!(Pointer Pointer Pointer Pointer);
type Kernel5 = kernel!(Pointer Pointer Pointer Pointer Pointer);
type Kernel6 = kernel!(Pointer Pointer Pointer Pointer Pointer Pointer);
type Kernel7 = kernel!(Pointer Pointer Pointer Pointer Pointer Pointer Pointer);

/// Tells the library what barriers and shuffles do.
type Host = unsafe extern "C" fn(extern "C" fn(), extern "C" fn(f32, u32) -> f32);

/// Kernels, compiled for this machine by `cargo xtask msl`.
pub struct Library {
    library: libloading::Library,
    /// Threadgroup memory is a variable of the library, so threadgroups run one at a time; so do libraries, since one that is opened
    /// twice is one.
    threads: Mutex<Threads>,
}

/// Of all libraries of this process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Library")
    }
}

impl Library {
    /// Loads the library at `path`.
    ///
    /// # Errors
    /// [`MslError::Load`] and [`MslError::Function`].
    pub fn open(path: &Path) -> Result<Self, MslError> {
        let load = |source| MslError::Load { path: path.to_path_buf(), source };
        // SAFETY: the library is what `cargo xtask msl` has made of the project's sources: it has no initialisers.
        let library = unsafe { libloading::Library::new(path) }.map_err(load)?;
        // SAFETY: `runtime.c` declares `msl_host` so.
        let host = unsafe { library.get::<Host>(b"msl_host\0") };
        let host = *host.map_err(|source| MslError::Function { name: "msl_host".to_owned(), source })?;
        // SAFETY: it keeps the two functions, which live as long as the process.
        unsafe { host(barrier, shuffle_xor) };
        Ok(Self { library, threads: Mutex::default() })
    }

    /// Runs one call, threadgroup after threadgroup. Buffers are copied, so that what is written beside one is seen.
    ///
    /// # Errors
    /// [`MslError`] when the buffers aren't what `launch` wants, or threads wait in vain.
    pub fn run(&self, launch: &Launch, buffers: &mut [HostBuffer<'_>], order: Order) -> Result<(), MslError> {
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let kernel = self.kernel(launch)?;
        check(launch, buffers).map_err(MslError::Mismatch)?;
        let mut copies: Vec<_> = buffers.iter().map(Guarded::new).collect();
        copies.push(Guarded::new(&HostBuffer::Bytes(&launch.shape)));
        let mut pointers = [std::ptr::null_mut(); BUFFERS_MAX];
        for (pointer, copy) in pointers.iter_mut().zip(&mut copies) {
            *pointer = copy.start();
        }
        for group in 0..launch.groups {
            let group = u32::try_from(group).unwrap_or(u32::MAX);
            let body = move |thread: usize| {
                let [lane, simdgroup] =
                    [thread % LANES, thread / LANES].map(|i| u32::try_from(i).unwrap_or(0));
                // SAFETY: the kernel takes as many pointers as `kernel` counted; each has the bytes that `check` compared, at an
                // address that suits any type, and lives in `copies` until all threadgroups have ended.
                unsafe { kernel.call(pointers, [group, lane, simdgroup]) };
            };
            threads.run(launch.simdgroups, order, body).map_err(|stop| match stop {
                Stop::Stack(source) => MslError::Stack(source),
                Stop::Divergence(how) => MslError::Divergence { kernel: launch.kernel, how },
            })?;
        }
        if let Some(index) = copies.iter().position(|copy| !copy.is_whole()) {
            return Err(MslError::Beside { kernel: launch.kernel, index });
        }
        for (copy, buffer) in copies.iter().zip(buffers) {
            buffer.fill(copy.bytes());
        }
        Ok(())
    }

    fn kernel(&self, launch: &Launch) -> Result<Kernel, MslError> {
        let name = format!("{}\0", launch.kernel);
        let missing = |source| MslError::Function { name: launch.kernel.to_owned(), source };
        // SAFETY: kernels take their buffers, then the shape, then three numbers; `Launch` lists the buffers, in their order.
        unsafe {
            Ok(match launch.buffers.len() + 1 {
                4 => Kernel::Four(*self.library.get(name.as_bytes()).map_err(missing)?),
                5 => Kernel::Five(*self.library.get(name.as_bytes()).map_err(missing)?),
                6 => Kernel::Six(*self.library.get(name.as_bytes()).map_err(missing)?),
                7 => Kernel::Seven(*self.library.get(name.as_bytes()).map_err(missing)?),
                found => return Err(MslError::Arity { kernel: launch.kernel, found }),
            })
        }
    }
}

/// Most buffers of a kernel, shape included.
const BUFFERS_MAX: usize = 7;

#[derive(Clone, Copy)]
enum Kernel {
    Four(Kernel4),
    Five(Kernel5),
    Six(Kernel6),
    Seven(Kernel7),
}

impl Kernel {
    /// # Safety
    /// The first pointers are what the kernel takes, and hold what it reads and writes.
    unsafe fn call(self, [a, b, c, d, e, f, g]: [Pointer; BUFFERS_MAX], [group, lane, simd]: [u32; 3]) {
        // SAFETY: the caller answers for the pointers.
        unsafe {
            match self {
                Self::Four(kernel) => kernel(a, b, c, d, group, lane, simd),
                Self::Five(kernel) => kernel(a, b, c, d, e, group, lane, simd),
                Self::Six(kernel) => kernel(a, b, c, d, e, f, group, lane, simd),
                Self::Seven(kernel) => kernel(a, b, c, d, e, f, g, group, lane, simd),
            }
        }
    }
}

/// A copy of a buffer between two fences.
struct Guarded {
    words: Vec<u64>,
    bytes: usize,
}

/// Words of a fence, and what they hold.
const FENCE_WORDS: usize = 64;
const FENCE: u64 = 0x7FF8_DEAD_7FC1_BEEF;

impl Guarded {
    fn new(buffer: &HostBuffer<'_>) -> Self {
        let mut bytes = buffer.to_vec();
        let n_bytes = bytes.len();
        // The last word belongs to the buffer as far as the buffer goes.
        let fence = FENCE.to_ne_bytes();
        bytes.extend((n_bytes..n_bytes.next_multiple_of(8)).map(|i| fence[i % 8]));
        let inner = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        let words = [FENCE; FENCE_WORDS].into_iter().chain(inner).chain([FENCE; FENCE_WORDS]).collect();
        Self { words, bytes: n_bytes }
    }

    fn start(&mut self) -> Pointer {
        self.words[FENCE_WORDS..].as_mut_ptr()
    }

    /// Whether nothing was written beside the buffer.
    fn is_whole(&self) -> bool {
        let (before, rest) = self.words.split_at(FENCE_WORDS);
        let (inner, after) = rest.split_at(self.bytes.div_ceil(8));
        let used = self.bytes % 8;
        let last = inner.last().filter(|_| used > 0).map_or(FENCE, |word| *word);
        before.iter().chain(after).all(|word| *word == FENCE)
            && last.to_ne_bytes()[used..] == FENCE.to_ne_bytes()[used..]
    }

    /// The bytes of the buffer.
    fn bytes(&self) -> impl Iterator<Item = u8> {
        self.words[FENCE_WORDS..].iter().flat_map(|word| word.to_ne_bytes()).take(self.bytes)
    }
}
