//! What was measured on.

use std::process::Command;

use serde::Serialize;

/// A machine, as far as figures hang on it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory: u64,
    pub(crate) system: String,
    pub(crate) compiler: String,
    /// The commit of the checkout, with `+` if files differ from it.
    pub(crate) commit: String,
}

impl Machine {
    pub(crate) fn describe() -> Self {
        let unknown = || "unknown".to_owned();
        let system = sysinfo::System::new_with_specifics(
            sysinfo::RefreshKind::nothing()
                .with_cpu(sysinfo::CpuRefreshKind::nothing())
                .with_memory(sysinfo::MemoryRefreshKind::nothing().with_ram()),
        );
        let system = system.ok();
        let first = system.as_ref().and_then(|system| system.cpus().first());
        let processor = first.map_or_else(unknown, |cpu| cpu.brand().trim().to_owned());
        let changed = said("git", &["status", "--porcelain"]).is_some_and(|text| !text.is_empty());
        let commit = said("git", &["rev-parse", "--short", "HEAD"]).unwrap_or_else(unknown);
        Self {
            processor,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory: system.as_ref().map_or(0, sysinfo::System::total_memory),
            system: sysinfo::System::long_os_version().unwrap_or_else(|_| unknown()),
            compiler: said("rustc", &["--version"]).unwrap_or_else(unknown),
            commit: if changed { commit + "+" } else { commit },
        }
    }
}

/// What a program prints, if it runs.
fn said(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
