//! Keeps reports in a folder, a file for each disk and size of records.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::device::Device;
use super::report::{ProbeReport, VERSION};
use crate::OpenError;

/// Disks age, fill up and are moved: older reports are measured anew.
pub const CACHED_SECONDS_MAX: u64 = 30 * 24 * 3600;

/// Longest file that is read: a report has a few kilobytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Reports of earlier probes.
#[derive(Clone, Debug)]
pub struct ProbeCache {
    folder: PathBuf,
}

/// What the cache has.
#[derive(Clone, Debug, PartialEq)]
pub enum Cached {
    /// A report, and how old it is.
    Report {
        /// The report.
        report: Box<ProbeReport>,
        /// Seconds since it was stored.
        age_seconds: u64,
    },
    /// Nothing yet.
    Nothing,
    /// Something that is no use, and why.
    Useless {
        /// Why, in words.
        note: String,
    },
}

/// What a file holds.
#[derive(Deserialize)]
struct Entry {
    unix_seconds: u64,
    report: ProbeReport,
}

#[derive(Serialize)]
struct EntryRef<'a> {
    unix_seconds: u64,
    report: &'a ProbeReport,
}

/// The part of a file that every version has.
#[derive(Deserialize)]
struct AnyEntry {
    report: AnyReport,
}

#[derive(Deserialize)]
struct AnyReport {
    version: u32,
}

impl ProbeCache {
    /// The cache in `folder`, which needs not exist.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// What is known of `device` for records of about `record_bytes`. `unix_seconds` is the time now.
    pub fn load(&self, device: &Device, record_bytes: usize, unix_seconds: u64) -> Cached {
        let Some(path) = self.path(device, record_bytes as u64) else { return Cached::Nothing };
        let useless = |why: &str| Cached::Useless { note: format!("{} is not used: {why}", path.display()) };
        let text = match read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Cached::Nothing,
            Err(error) => return useless(&format!("it can't be read ({error})")),
        };
        let version = serde_json::from_slice(&text).map(|entry: AnyEntry| entry.report.version);
        match version {
            Ok(VERSION) => {}
            Ok(version) => return useless(&format!("it is of version {version}, this is {VERSION}")),
            Err(_) => return useless("it is damaged"),
        }
        let entry: Entry = match serde_json::from_slice(&text) {
            Ok(entry) => entry,
            Err(_) => return useless("it is damaged"),
        };
        if !entry.report.is_sane() || entry.report.device != *device {
            return useless("it is damaged");
        }
        match unix_seconds.checked_sub(entry.unix_seconds) {
            None => useless("it is from the future"),
            Some(age) if age > CACHED_SECONDS_MAX => {
                useless(&format!("it is {} days old", age / (24 * 3600)))
            }
            Some(age_seconds) => Cached::Report { report: Box::new(entry.report), age_seconds },
        }
    }

    /// Keeps `report`, in place of an older one; returns where. `None` when its disk can't be told from others.
    ///
    /// # Errors
    /// [`OpenError::Io`] when the file can't be written; an older one is left as it was.
    pub fn store(&self, report: &ProbeReport, unix_seconds: u64) -> Result<Option<PathBuf>, OpenError> {
        let Some(path) = self.path(&report.device, report.record_bytes) else { return Ok(None) };
        let entry = EntryRef { unix_seconds, report };
        let written = serde_json::to_vec_pretty(&entry).map_err(io::Error::from).and_then(|text| {
            fs::create_dir_all(&self.folder)?;
            replace(&path, &text)
        });
        let refused = |source| OpenError::Io { doing: "write", path: path.clone(), source };
        written.map_err(refused)?;
        Ok(Some(path))
    }

    /// Records up to the next power of two share a file.
    fn path(&self, device: &Device, record_bytes: u64) -> Option<PathBuf> {
        let class = record_bytes.checked_next_power_of_two()?;
        Some(self.folder.join(format!("probe-{}-{class}.json", device.file_name()?)))
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// Writes a file of another name first, so that nobody ever sees half of it.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    // Another name in each process: two may write at once.
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(text)?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&temporary, path));
    if renamed.is_err() {
        // The first failure is the one to tell.
        let _ = fs::remove_file(&temporary);
    }
    renamed
}

#[cfg(test)]
mod tests;
