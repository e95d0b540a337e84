//! Another engine over the same file and tokens: llama.cpp, built from its Python package's sources for this machine.
//!
//! Nothing of it is kept in the checkout but the script that calls it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::args::Args;
use crate::error::BenchError;
use crate::programs::{Programs, succeed};

/// The package, with the version that is measured.
pub(crate) const PACKAGE: &str = "llama-cpp-python==0.3.36";

/// Ways in which it keeps weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// As it comes: mapped, and matrices whose types have kernels for it are copied in another order.
    Usual,
    /// Mapped and nothing copied, which is what its options for experts on the CPU come to.
    Mapped,
}

/// It, where it was asked for.
#[derive(Debug)]
pub(crate) struct Peer {
    python: PathBuf,
    script: PathBuf,
}

impl Peer {
    /// Builds it beside the output unless it is there; `None` where nobody asked for it.
    ///
    /// # Errors
    /// [`BenchError`] when Python or a compiler is missing, or the build fails.
    pub(crate) fn prepare(args: &Args, programs: &Programs) -> Result<Option<Self>, BenchError> {
        if !args.peers {
            return Ok(None);
        }
        let folder = args.peers_folder.join(PACKAGE.replace("==", "-"));
        let python = folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" });
        let knows = |python: &Path| {
            let output = Command::new(python).args(["-c", "import llama_cpp"]).output();
            output.is_ok_and(|output| output.status.success())
        };
        if !knows(&python) {
            let system = env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
            succeed(Command::new(system).args(["-m", "venv"]).arg(&folder))?;
            let mut install = Command::new(&python);
            install.args(["-m", "pip", "install", "--no-binary", "llama-cpp-python", PACKAGE]);
            // What talks HTTP and sees pictures isn't needed.
            install.env("CMAKE_ARGS", "-DGGML_NATIVE=ON -DLLAMA_BUILD_TOOLS=OFF -DMTMD_BUILD=OFF");
            succeed(&mut install)?;
        }
        Ok(Some(Self { python, script: programs.root().join("xtask/bench/src/peers/llama.py") }))
    }

    /// Computes on `threads`, or one per core; reads `prompt`, then `said` one by one, and prints figures as JSON.
    pub(crate) fn command(
        &self,
        model: &Path,
        keeping: Keeping,
        threads: Option<u16>,
        prompt: &str,
        said: &[u32],
    ) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(&self.script).arg(model).arg(if keeping == Keeping::Mapped { "mapped" } else { "usual" });
        let threads =
            threads.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
        command.arg(threads.to_string()).arg(prompt);
        command.arg(said.iter().map(ToString::to_string).collect::<Vec<_>>().join(","));
        command
    }
}
