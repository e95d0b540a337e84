//! What the control groups around this process leave it (Linux).

use std::fs;
use std::path::Path;

/// Where groups are mounted, and what says in which this process is.
const ROOT: &str = "/sys/fs/cgroup";
const OWN: &str = "/proc/self/cgroup";

/// Files of a group's limit, of what is used, and names of used bytes in `memory.stat` that the system takes back when they
/// are wanted: the page cache.
struct Files {
    limit: &'static str,
    used: &'static str,
    cache: [&'static str; 2],
}

const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cache: ["total_inactive_file ", "total_active_file "],
};
const V2: Files =
    Files { limit: "memory.max", used: "memory.current", cache: ["inactive_file ", "active_file "] };

/// The least that any of them leaves; `None` where none has a limit.
pub(crate) fn left_bytes() -> Option<u64> {
    left_in(Path::new(ROOT), &fs::read_to_string(OWN).ok()?)
}

/// The same of groups mounted at `root`, for a process whose `/proc/self/cgroup` is `own`.
fn left_in(root: &Path, own: &str) -> Option<u64> {
    let lefts = own.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let (files, base) = match controllers {
            "" => (&V2, root.to_path_buf()),
            _ if controllers.split(',').any(|name| name == "memory") => (&V1, root.join("memory")),
            _ => return None,
        };
        // A container sees its own group as the root, and may know it by a path that isn't there.
        let group = base.join(path.trim_start_matches('/'));
        group
            .ancestors()
            .take_while(|folder| folder.starts_with(&base))
            .filter_map(|group| left(group, files))
            .min()
    });
    lefts.min()
}

/// What one group leaves, if it has a limit.
fn left(group: &Path, files: &Files) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    // No limit is `max`, or a number that no machine has.
    let limit = number(files.limit).filter(|&limit| limit < 1 << 60)?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cached =
        |name: &&str| stat.lines().find_map(|line| line.strip_prefix(*name)?.trim().parse::<u64>().ok());
    let cache: u64 = files.cache.iter().filter_map(cached).sum();
    Some(limit.saturating_sub(number(files.used)?.saturating_sub(cache)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group with files.
    fn group(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
    }

    #[test]
    fn the_tightest_group_counts_and_page_cache_does_not() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        group(
            &at("user"),
            &[
                ("memory.max", "1000\n"),
                ("memory.current", "900\n"),
                ("memory.stat", "anon 100\nactive_file 500\ninactive_file 300\n"),
            ],
        );
        group(&at("user/app"), &[("memory.max", "max\n"), ("memory.current", "10\n")]);
        assert_eq!(left_in(root.path(), "0::/user/app\n"), Some(900));
        assert_eq!(left_in(root.path(), "0::/\n"), None);
        assert_eq!(left_in(root.path(), ""), None);
        group(&at("user/app"), &[("memory.max", "400\n")]);
        assert_eq!(left_in(root.path(), "0::/user/app\n"), Some(390));
    }

    #[test]
    fn the_older_groups_are_known_and_so_is_a_container_that_names_its_host() {
        let root = tempfile::tempdir().unwrap();
        let files = [
            ("memory.limit_in_bytes", "5000"),
            ("memory.usage_in_bytes", "4000"),
            ("memory.stat", "cache 1\ntotal_inactive_file 1500\n"),
        ];
        group(&root.path().join("memory"), &files);
        assert_eq!(left_in(root.path(), "3:cpu,cpuacct:/a\n2:memory:/docker/abc\n"), Some(2500));
        group(
            &root.path().join("memory/docker/abc"),
            &[("memory.limit_in_bytes", "9223372036854771712"), ("memory.usage_in_bytes", "1")],
        );
        assert_eq!(left_in(root.path(), "2:memory:/docker/abc\n"), Some(2500));
    }
}
