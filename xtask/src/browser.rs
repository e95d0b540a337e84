//! Drives the server's page in headless Chromium.
//!
//! The steps are a Node program in `xtask/browser`; its one package lies in the target folder. Chromium is the system's. What
//! can't be had, since there is no network for instance, lets the chore be skipped: no other check waits for it.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use crate::error::ChoreError;
use crate::process::{cargo, output, root, run as run_command, target_dir, works};

/// Names that Chromium has, the preferred one first.
const CHROMIUMS: &[&str] = &["chromium", "chromium-browser", "google-chrome"];
/// With letters to draw: a bare system has none.
const DEBIAN_PACKAGES: &[&str] = &["chromium", "fonts-dejavu-core"];
/// What the packages of the steps are, and which versions.
const MANIFESTS: &[&str] = &["package.json", "package-lock.json"];
/// The embedded model, with so few slots and so slow a disk that there is something to see.
const SERVER_ARGS: &[&str] = &["serve", "--port", "0", "--slots", "8", "--disk-limit", "20MB/s"];

/// The chore: `browser [--pictures]`.
///
/// # Errors
/// [`ChoreError::Usage`], [`ChoreError::Failed`] for a step that failed, [`ChoreError::Io`].
pub(crate) fn run(args: &[String]) -> Result<(), ChoreError> {
    let makes_pictures = match args {
        [] => false,
        [flag] if flag == "--pictures" => true,
        _ => return Err(ChoreError::Usage("`browser` takes --pictures, or nothing".into())),
    };
    let folder = target_dir().join("browser");
    let chromium = match tools(&folder)? {
        Ok(chromium) => chromium,
        Err(lack) => {
            eprintln!("skipped: {lack}");
            return Ok(());
        }
    };
    run_command(&mut cargo(&["build", "--release", "--package", "forerun"]))?;
    let program = target_dir().join("release").join(format!("forerun{}", env::consts::EXE_SUFFIX));
    let server = Server::start(&program)?;
    let docs = if makes_pictures { root().join("docs") } else { folder.clone() };
    let mut steps = Command::new("node");
    steps.arg(root().join("xtask/browser/run.mjs")).args(["--url", &server.url]);
    steps.arg("--modules").arg(&folder).arg("--chromium").arg(chromium).arg("--docs").arg(docs);
    run_command(&mut steps)
}

/// Chromium, with the packages in `folder`; or what can't be had.
fn tools(folder: &Path) -> Result<Result<PathBuf, &'static str>, ChoreError> {
    if !works(Command::new("node").arg("--version")) || !works(Command::new("npm").arg("--version")) {
        return Ok(Err("this needs Node.js and npm, which aren't installed"));
    }
    if !install_packages(folder)? {
        return Ok(Err("npm can't fetch the packages of xtask/browser; is there a network?"));
    }
    Ok(chromium()
        .or_else(install_chromium)
        .ok_or("this needs Chromium, which isn't installed and can't be had"))
}

/// Puts the packages into `folder`, unless they are there; whether they are then.
fn install_packages(folder: &Path) -> Result<bool, ChoreError> {
    fs::create_dir_all(folder).map_err(|source| io("make", folder, source))?;
    let mut is_current = folder.join("node_modules").is_dir();
    for name in MANIFESTS {
        let (from, to) = (root().join("xtask/browser").join(name), folder.join(name));
        let wanted = fs::read(&from).map_err(|source| io("read", &from, source))?;
        if fs::read(&to).is_ok_and(|found| found == wanted) {
            continue;
        }
        is_current = false;
        fs::write(&to, wanted).map_err(|source| io("write", &to, source))?;
    }
    if is_current {
        return Ok(true);
    }
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(folder);
    if run_command(&mut npm).is_ok() {
        return Ok(true);
    }
    // The next call must not take half a folder for a whole one.
    let half = folder.join("node_modules");
    if half.is_dir() {
        fs::remove_dir_all(&half).map_err(|source| io("remove", &half, source))?;
    }
    Ok(false)
}

/// The system's Chromium.
fn chromium() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let folders: Vec<_> = env::split_paths(&path).collect();
    let mut files = CHROMIUMS.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    files.find(|file| file.is_file())
}

/// Debian's Chromium; only root can install it.
fn install_chromium() -> Option<PathBuf> {
    let user = output(Command::new("id").arg("-u")).ok()?;
    if user.trim_ascii() != b"0" || !works(Command::new("apt-get").arg("--version")) {
        return None;
    }
    run_command(Command::new("apt-get").args(["update", "-qq"])).ok()?;
    let mut install = Command::new("apt-get");
    install.env("DEBIAN_FRONTEND", "noninteractive");
    install.args(["install", "-y", "-qq", "--no-install-recommends"]).args(DEBIAN_PACKAGES);
    run_command(&mut install).ok()?;
    chromium()
}

fn io(doing: &'static str, path: &Path, source: std::io::Error) -> ChoreError {
    ChoreError::Io { doing, path: path.to_path_buf(), source }
}

/// A server of the embedded model, which ends with this.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    /// Waits until it listens, and shows what it says.
    fn start(program: &Path) -> Result<Self, ChoreError> {
        let command = || format!("forerun {}", SERVER_ARGS.join(" "));
        let not_started = |source| ChoreError::NotStarted { command: command(), source };
        let mut server = Command::new(program);
        server.args(SERVER_ARGS).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        eprintln!("== {}", command());
        let child = server.spawn().map_err(not_started)?;
        let mut server = Self { child, url: String::new() };
        let stderr = server.child.stderr.take();
        let lines = stderr.into_iter().flat_map(|stderr| BufReader::new(stderr).lines());
        let mut lines = lines.map_while(Result::ok).inspect(|line| eprintln!("{line}"));
        match lines.find_map(|line| url_in(&line)) {
            Some(url) => server.url = url,
            None => {
                let status = server.child.wait().map_err(not_started)?;
                return Err(ChoreError::Failed { command: command(), status });
            }
        }
        // A pipe that nobody empties would stop it.
        thread::spawn(move || lines.for_each(drop));
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where a server says that it listens.
fn url_in(line: &str) -> Option<String> {
    let (_, url) = line.split_once("listens on ")?;
    url.starts_with("http://").then(|| url.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_what_the_server_says() {
        assert_eq!(url_in("pico listens on http://127.0.0.1:4321").as_deref(), Some("http://127.0.0.1:4321"));
        assert_eq!(url_in("slots: 8, as was asked for"), None);
        assert_eq!(url_in("nobody listens on port 0"), None);
    }

    #[test]
    fn the_package_is_pinned_and_locked() {
        let read = |name: &str| fs::read_to_string(root().join("xtask/browser").join(name)).unwrap();
        let [manifest, lock] = ["package.json", "package-lock.json"]
            .map(|name| serde_json::from_str::<serde_json::Value>(&read(name)).unwrap());
        let wanted = manifest["dependencies"].as_object().unwrap();
        assert!(!wanted.is_empty());
        for (name, version) in wanted {
            assert!(
                version.as_str().unwrap().starts_with(|first: char| first.is_ascii_digit()),
                "{name} {version}"
            );
            let locked = &lock["packages"][format!("node_modules/{name}")];
            assert_eq!(&locked["version"], version, "{name}");
            assert!(locked["integrity"].is_string(), "{name}");
        }
    }

    #[test]
    fn other_arguments_are_refused() {
        assert!(matches!(run(&["--picture".to_owned()]), Err(ChoreError::Usage(_))));
    }
}
