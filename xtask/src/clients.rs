//! Official clients, and a tester of OpenAPI documents, against a server of ours.
//!
//! Each chore makes a virtual environment of its own from pinned requirements, and starts the program on the embedded
//! model. Where there is no network for the requirements, a chore says so and is over.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use crate::error::ChoreError;
use crate::process::{cargo, root, run as run_command, target_dir, works};

/// The key that one of the servers asks for.
const KEY: &str = "tour-key";
/// What the program says when it listens, before its address.
const LISTENS: &str = " listens on ";
/// What pip says when it reaches nobody.
const NO_NETWORK: &[&str] = &[
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
    "NewConnectionError",
    "ConnectTimeoutError",
    "NameResolutionError",
    "Network is unreachable",
];
/// How many requests the tester makes for each endpoint, at most, in each of its phases.
const EXAMPLES: &str = "20";

/// The chore `clients`: both official Python clients take a tour.
///
/// # Errors
/// [`ChoreError::Failed`] names the tour; it has said which stop failed.
pub(crate) fn run(_: &[String]) -> Result<(), ChoreError> {
    let Some(python) = environment("clients", "requirements.txt")? else { return Ok(()) };
    let program = build()?;
    let open = Serving::start(&program, &["--parallel", "2"])?;
    let tour = |name: &str, keyed: &Serving| {
        let script = folder().join(name);
        run_command(Command::new(&python).arg(script).args([&open.url, &keyed.url]).arg(KEY))
    };
    let mut results = Vec::new();
    for name in ["tour_openai.py", "tour_anthropic.py"] {
        // A server of its own, since what a key may ask in a minute is what it counts.
        let keyed = Serving::start(&program, &["--api-key", KEY, "--rate", "4/min"])?;
        results.push(tour(name, &keyed));
    }
    results.into_iter().collect()
}

/// The chore `schemathesis`: no request made from our OpenAPI document is answered by a fault of ours.
///
/// # Errors
/// [`ChoreError::Failed`]; the tester has said which request it was.
pub(crate) fn schemathesis(_: &[String]) -> Result<(), ChoreError> {
    let Some(python) = environment("schemathesis", "requirements-schemathesis.txt")? else { return Ok(()) };
    let program = build()?;
    let serving = Serving::start(&program, &["--parallel", "2", "--ctx", "512", "--max-tokens", "8"])?;
    let tester = python.with_file_name("schemathesis");
    let mut command = Command::new(tester);
    command.arg("run").arg(format!("{}/openapi.json", serving.url));
    command.args(["--checks", "not_a_server_error", "--max-examples", EXAMPLES, "--seed", "1"]);
    command.args(["--phases", "examples,coverage,fuzzing", "--request-timeout", "60", "--no-color"]);
    run_command(command.current_dir(target_dir()))
}

/// Where tours and requirements lie.
fn folder() -> PathBuf {
    root().join("xtask").join("clients")
}

/// The Python of an environment with `requirements`; `None`, with a word, where there is no network to make one.
fn environment(name: &str, requirements: &str) -> Result<Option<PathBuf>, ChoreError> {
    let folder = target_dir().join("python").join(name);
    let python = folder.join("bin").join("python");
    if !works(Command::new(&python).arg("--version")) {
        if !works(Command::new("python3").arg("--version")) {
            return Err(ChoreError::Missing { tool: "python3", remedy: "your system's packages have it" });
        }
        run_command(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    }
    let wish = self::folder().join(requirements);
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]).arg(wish);
    eprintln!("== pip install --requirement {requirements}");
    let output = pip.output();
    let output = output.map_err(|source| ChoreError::NotStarted { command: "pip".into(), source })?;
    if output.status.success() {
        return Ok(Some(python));
    }
    let words = String::from_utf8_lossy(&output.stderr);
    if is_without_network(&words) {
        eprintln!("skipped: there is no network to install {requirements} from");
        return Ok(None);
    }
    eprint!("{words}");
    Err(ChoreError::Failed {
        command: format!("pip install --requirement {requirements}"),
        status: output.status,
    })
}

fn is_without_network(words: &str) -> bool {
    NO_NETWORK.iter().any(|sign| words.contains(sign))
}

/// Builds the program; returns where it is.
fn build() -> Result<PathBuf, ChoreError> {
    run_command(&mut cargo(&["build", "--package", "forerun"]))?;
    Ok(target_dir().join("debug").join("forerun"))
}

/// A server that runs until this is dropped.
struct Serving {
    child: Child,
    url: String,
}

impl Serving {
    fn start(program: &Path, args: &[&str]) -> Result<Self, ChoreError> {
        let mut command = Command::new(program);
        command.args(["serve", "--port", "0"]).args(args).stderr(Stdio::piped());
        let shown = format!("forerun serve {}", args.join(" "));
        eprintln!("== {shown}");
        let child = command.spawn();
        let mut child = child.map_err(|source| ChoreError::NotStarted { command: shown.clone(), source })?;
        let mut lines = child.stderr.take().map(|stderr| BufReader::new(stderr).lines());
        let said = lines.iter_mut().flatten().map_while(Result::ok);
        let url = { said }.find_map(|line| line.split_once(LISTENS).map(|(_, url)| url.trim().to_owned()));
        let Some(url) = url else {
            let status = child.wait();
            return Err(match status {
                Ok(status) => ChoreError::Failed { command: shown, status },
                Err(source) => ChoreError::NotStarted { command: shown, source },
            });
        };
        // What it says from now on is shown, so that it never waits for a reader.
        thread::spawn(move || {
            for line in lines.into_iter().flatten().map_while(Result::ok) {
                eprintln!("{line}");
            }
        });
        Ok(Self { child, url })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_network_is_told_from_a_wrong_requirement() {
        assert!(is_without_network(
            "WARNING: … NewConnectionError('<…>: Failed to establish a new connection"
        ));
        assert!(!is_without_network("ERROR: No matching distribution found for openai==0.0.0"));
    }

    #[test]
    fn every_requirement_is_pinned() {
        for name in ["requirements.txt", "requirements-schemathesis.txt"] {
            let text = std::fs::read_to_string(folder().join(name)).unwrap();
            assert!(text.lines().all(|line| line.contains("==")), "{name}");
        }
    }
}
