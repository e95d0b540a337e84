//! Which disk a model lies on.

use serde::{Deserialize, Serialize};

use crate::{DataFile, FileSet};

/// What tells one disk, and the file system on it, from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// The system's number of it, `major:minor` on Linux; several with `+` between them when the model's files are
    /// apart. Empty where the system has none.
    pub id: String,
    /// The kind of file system, such as `ext4`; empty where the system doesn't say.
    pub file_system: String,
    /// The file system's own number, in hexadecimal; empty where the system doesn't say.
    pub volume: String,
}

impl Device {
    /// Asks the system where `files` lie.
    pub fn of(files: &FileSet) -> Self {
        let mut all = Self { id: String::new(), file_system: String::new(), volume: String::new() };
        let mut seen: Vec<Self> = Vec::new();
        for device in files.files().iter().filter_map(of_file) {
            if !seen.contains(&device) {
                all.add(&device);
                seen.push(device);
            }
        }
        all
    }

    fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.id, &other.id),
            (&mut self.file_system, &other.file_system),
            (&mut self.volume, &other.volume),
        ];
        for (mine, more) in pairs {
            if !mine.is_empty() && !more.is_empty() {
                mine.push('+');
            }
            mine.push_str(more);
        }
    }

    /// A file name for it; `None` when it can't be told from another disk.
    pub(super) fn file_name(&self) -> Option<String> {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let name = format!("{} {} {}", self.id, self.file_system, self.volume);
        let is_known = !self.id.is_empty() && name.len() < 200;
        is_known.then(|| name.chars().map(plain).collect())
    }
}

#[cfg(unix)]
fn of_file(file: &DataFile) -> Option<Device> {
    use std::os::unix::fs::MetadataExt;
    let crate::Content::File(content) = &file.content else { return None };
    let device = content.metadata().ok()?.dev();
    let volume = rustix::fs::fstatvfs(content).map_or(0, |volume| volume.f_fsid);
    let volume = if volume == 0 { String::new() } else { format!("{volume:x}") };
    let id = number(device);
    let file_system = file_system(file, &id).unwrap_or_default();
    Some(Device { id, file_system, volume })
}

#[cfg(not(unix))]
fn of_file(_file: &DataFile) -> Option<Device> {
    None
}

#[cfg(target_os = "linux")]
fn number(device: u64) -> String {
    format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

#[cfg(all(unix, not(target_os = "linux")))]
fn number(device: u64) -> String {
    device.to_string()
}

#[cfg(target_os = "linux")]
fn file_system(file: &DataFile, id: &str) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let path = std::fs::canonicalize(&file.path).unwrap_or_default();
    mounted(&mounts, id, &path)
}

#[cfg(target_vendor = "apple")]
fn file_system(file: &DataFile, _id: &str) -> Option<String> {
    let crate::Content::File(content) = &file.content else { return None };
    let kind = rustix::fs::fstatfs(content).ok()?.f_fstypename;
    let letters = kind.iter().take_while(|&&letter| letter != 0);
    Some(letters.map(|&letter| char::from(letter.to_ne_bytes()[0])).collect())
}

#[cfg(all(unix, not(any(target_os = "linux", target_vendor = "apple"))))]
fn file_system(_file: &DataFile, _id: &str) -> Option<String> {
    None
}

/// The kind of the file system with the number `id`, from the system's list of mounts. Some file systems give their
/// files other numbers than they have: then the one mounted deepest above `path`.
#[cfg(target_os = "linux")]
fn mounted(mounts: &str, id: &str, path: &std::path::Path) -> Option<String> {
    // `mount parent major:minor root point options [fields] - kind source options`
    let mounts = mounts.lines().filter_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut words = place.split(' ').skip(2);
        let (number, point) = (words.next()?, words.nth(1)?);
        Some((number, point, kind.split(' ').next()?))
    });
    let mounts: Vec<_> = mounts.collect();
    let same = mounts.iter().rev().find(|mount| mount.0 == id);
    let above = || mounts.iter().filter(|mount| path.starts_with(mount.1)).max_by_key(|mount| mount.1.len());
    same.or_else(above).map(|mount| mount.2.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(id: &str, file_system: &str, volume: &str) -> Device {
        Device { id: id.into(), file_system: file_system.into(), volume: volume.into() }
    }

    #[test]
    fn file_names_are_plain_and_short() {
        assert_eq!(device("254:0", "ext4", "a1").file_name().unwrap(), "254-0-ext4-a1");
        assert_eq!(device("1:2", "fuse.a/../b", "").file_name().unwrap(), "1-2-fuse-a----b-");
        assert_eq!(device("", "ext4", "a1").file_name(), None);
        assert_eq!(device("1:2", &"x".repeat(300), "").file_name(), None);
    }

    #[test]
    fn files_apart_are_named_apart() {
        let mut all = device("1:2", "ext4", "");
        all.add(&device("3:4", "", "a"));
        assert_eq!(all, device("1:2+3:4", "ext4", "a"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_list_of_mounts_is_read() {
        let mounts = "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                      30 22 0:26 / /dev/shm rw master:3 shared:9 - tmpfs tmpfs rw\n\
                      31 22 0:30 /@home /data rw - btrfs /dev/sdb rw\n";
        let check = |id, path: &str, expect: Option<&str>| {
            assert_eq!(mounted(mounts, id, path.as_ref()).as_deref(), expect, "{id} {path}");
        };
        check("254:0", "/x", Some("ext4"));
        check("0:26", "", Some("tmpfs"));
        check("0:99", "/data/model.gguf", Some("btrfs"));
        check("0:99", "/database", Some("ext4"));
        check("0:99", "", None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_systems_disk_has_a_name() {
        let device = Device::of(&crate::testing::temporary(&["x".into()]));
        assert!(!device.id.is_empty() && device.file_name().is_some(), "{device:?}");
    }
}
