//! The ways of reading that a probe tries; another one is an entry of [`ways`].

use std::num::NonZeroU64;
use std::sync::Arc;

use forerun_model::Clock;

use super::cold::Chiller;
use super::places::Place;
use super::report::{Access, Method};
use crate::{DirectFiles, FileSet, PreadBackend, PreadConfig, ReadBackend, Throttled};

/// Depths at which direct reads are tried.
const DEPTHS: &[usize] = &[1, 2, 4, 8];

/// The depth at which cached reads are tried: one thread alone gets half of a disk.
const CACHED_DEPTHS: &[usize] = &[4];

/// A way of reading the files.
pub(super) struct Way {
    pub(super) method: Method,
    pub(super) access: Access,
    /// Depths to try, ascending.
    pub(super) depths: &'static [usize],
    /// Opens a backend that keeps so many reads going.
    pub(super) open: Open,
    /// Says, after reads were measured, why they don't count.
    pub(super) objection: Box<dyn Fn() -> Option<String>>,
    /// Keeps the page cache out of it; `None` where it has no part.
    pub(super) chill: Option<Box<dyn Chill>>,
}

pub(super) type Open = Box<dyn Fn(usize) -> Result<Box<dyn ReadBackend>, String>>;

/// Takes places out of the page cache.
pub(super) trait Chill {
    /// Takes `places` out; returns those that are proven to be out, or why nothing can be proven.
    fn chill(&self, places: &[Place]) -> Result<Vec<Place>, String>;

    /// Takes `places` out, if the system likes.
    fn forget(&self, places: &[Place]);
}

/// All ways of this system, those that are refused among them.
pub(super) fn ways(
    files: &FileSet,
    direct: &Result<DirectFiles, String>,
    read_bytes: u64,
    limit: Option<NonZeroU64>,
    clock: &Arc<dyn Clock>,
) -> Vec<Way> {
    let open = |open: Open| limited(open, limit, Arc::clone(clock));
    let past_cache = |method, opened| Way {
        method,
        access: Access::Direct,
        depths: DEPTHS,
        open: open(opened),
        objection: refused_later(direct),
        chill: None,
    };
    vec![
        past_cache(Method::Uring, uring(direct, clock)),
        past_cache(Method::Pread, pread(files, direct, clock)),
        Way {
            method: Method::Pread,
            access: Access::Cached,
            depths: CACHED_DEPTHS,
            open: open(cached(files, clock)),
            objection: Box::new(|| None),
            chill: Some(Box::new(Pages(Chiller::open(files), read_bytes))),
        },
    ]
}

#[cfg(target_os = "linux")]
fn uring(direct: &Result<DirectFiles, String>, clock: &Arc<dyn Clock>) -> Open {
    use crate::{UringBackend, UringConfig};
    let (direct, clock) = (direct.clone(), Arc::clone(clock));
    Box::new(move |depth| {
        let config = UringConfig { device_depth: depth, depth };
        let backend = UringBackend::new(direct.clone()?, config, None, Arc::clone(&clock));
        Ok(Box::new(backend.map_err(|error| error.to_string())?))
    })
}

#[cfg(not(target_os = "linux"))]
fn uring(_direct: &Result<DirectFiles, String>, _clock: &Arc<dyn Clock>) -> Open {
    Box::new(|_| Err("only Linux has it".to_owned()))
}

fn pread(files: &FileSet, direct: &Result<DirectFiles, String>, clock: &Arc<dyn Clock>) -> Open {
    let (files, direct, clock) = (files.clone(), direct.clone(), Arc::clone(clock));
    Box::new(move |depth| {
        let config = PreadConfig { n_threads: depth, depth };
        let backend = PreadBackend::direct(&files, direct.clone()?, config, Arc::clone(&clock));
        Ok(Box::new(backend.map_err(|error| error.to_string())?))
    })
}

fn cached(files: &FileSet, clock: &Arc<dyn Clock>) -> Open {
    let (files, clock) = (files.clone(), Arc::clone(clock));
    Box::new(move |depth| {
        let config = PreadConfig { n_threads: depth, depth };
        let backend = PreadBackend::new(&files, config, Arc::clone(&clock));
        Ok(Box::new(backend.map_err(|error| error.to_string())?))
    })
}

/// A system that takes direct reads at first may refuse them later; those are made through the page cache.
fn refused_later(direct: &Result<DirectFiles, String>) -> Box<dyn Fn() -> Option<String>> {
    let direct = direct.clone();
    Box::new(move || {
        let was_refused = direct.as_ref().is_ok_and(DirectFiles::was_refused);
        was_refused.then(|| "the file system took direct reads at first and refused some later".to_owned())
    })
}

/// The same, no faster than `limit`.
fn limited(open: Open, limit: Option<NonZeroU64>, clock: Arc<dyn Clock>) -> Open {
    let Some(limit) = limit else { return open };
    Box::new(move |depth| Ok(Box::new(Throttled::new(open(depth)?, limit, Arc::clone(&clock)))))
}

/// All of the files that can be had, and the length of a place.
struct Pages(Result<Chiller, String>, u64);

impl Chill for Pages {
    fn chill(&self, places: &[Place]) -> Result<Vec<Place>, String> {
        self.0.as_ref().map_err(String::clone)?.chill(places, self.1)
    }

    fn forget(&self, places: &[Place]) {
        if let Ok(chiller) = &self.0 {
            chiller.forget(places, self.1);
        }
    }
}
