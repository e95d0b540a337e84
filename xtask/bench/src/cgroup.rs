//! A control group whose memory is bounded, page cache and all, for the run of one program (Linux).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

use crate::error::BenchError;

/// A group; removed when it is dropped, by when its program has ended.
#[derive(Debug)]
pub(crate) struct Cgroup {
    folder: PathBuf,
}

impl Cgroup {
    /// A group of `bytes`.
    ///
    /// # Errors
    /// [`BenchError::Cgroup`] where the system has none that this user may make.
    pub(crate) fn new(bytes: u64) -> Result<Self, BenchError> {
        let roots = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        // The second is that of version 2, whose root has no limit of its own.
        let is_there = |(root, limit): &&(&str, &str)| {
            Path::new(root).join(limit).exists() || Path::new(root).join("cgroup.controllers").exists()
        };
        let (root, limit) =
            roots.iter().find(is_there).ok_or_else(|| BenchError::Cgroup("this system has none".into()))?;
        let folder = Path::new(root).join(format!("forerun-bench-{}", process::id()));
        let explain = |source: std::io::Error| {
            BenchError::Cgroup(format!(
                "{}: {source}; run as root, with the memory controller",
                folder.display()
            ))
        };
        fs::create_dir_all(&folder).map_err(explain)?;
        let group = Self { folder: folder.clone() };
        fs::write(folder.join(limit), bytes.to_string()).map_err(explain)?;
        Ok(group)
    }

    /// `command`, which joins the group before it begins.
    pub(crate) fn around(&self, command: &Command) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.folder.join("cgroup.procs"));
        shell.arg(command.get_program()).args(command.get_args());
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // An empty folder that stays harms nobody.
        let _ = fs::remove_dir(&self.folder);
    }
}
