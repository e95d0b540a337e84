//! A small Hub on 127.0.0.1: right by itself, and as wrong as a test wants it.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::forerun;

/// Every revision is at this commit.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The one repository.
pub(crate) const REPO: &str = "owner/name";
/// Files from this size on are large ones, with a sha256.
const LARGE: usize = 100;

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    /// Requests for files before this one.
    pub(crate) n: usize,
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Bytes after which the connection ends.
    pub(crate) cut: Option<usize>,
    /// How long the connection stays silent after that.
    pub(crate) stall: Duration,
}

/// Changes a right answer.
type Fault = dyn Fn(&Ask, Reply) -> Reply + Send + Sync;

pub(crate) struct Hub {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    files: Vec<(String, Vec<u8>)>,
    fault: Box<Fault>,
    asks: Mutex<Vec<Ask>>,
    served: AtomicU64,
}

impl Ask {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str())
    }

    pub(crate) fn is_file(&self) -> bool {
        self.path.contains("/resolve/")
    }

    /// Where the bytes that are asked for begin.
    pub(crate) fn from(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into(), cut: None, stall: Duration::ZERO }
    }

    pub(crate) fn json(value: &Value) -> Self {
        Self::new(200, value.to_string()).with("Content-Type", "application/json")
    }

    pub(crate) fn redirect(to: impl Into<String>) -> Self {
        Self::new(302, "").with("Location", to)
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.retain(|header| header.0 != name);
        self.headers.push((name.into(), value.into()));
        self
    }

    pub(crate) fn cut(self, bytes: usize) -> Self {
        Self { cut: Some(bytes), ..self }
    }

    pub(crate) fn stalled(self, bytes: usize) -> Self {
        Self { cut: Some(bytes), stall: Duration::from_secs(60), ..self }
    }
}

impl Hub {
    /// A Hub that makes no mistake.
    pub(crate) fn right(files: &[(&str, &[u8])]) -> Self {
        Self::new(files, |_, reply| reply)
    }

    /// A Hub whose answers `fault` changes.
    pub(crate) fn new(
        files: &[(&str, &[u8])],
        fault: impl Fn(&Ask, Reply) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        let (asks, served) = (Mutex::default(), AtomicU64::new(0));
        let shared = Arc::new(Shared { files, fault: Box::new(fault), asks, served });
        let at_work = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&at_work);
                thread::spawn(move || shared.serve(stream));
            }
        });
        Self { port, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// All requests so far.
    pub(crate) fn asks(&self) -> Vec<Ask> {
        self.shared.asks.lock().unwrap().clone()
    }

    /// Requests for files so far.
    pub(crate) fn file_asks(&self) -> Vec<Ask> {
        self.asks().into_iter().filter(Ask::is_file).collect()
    }

    /// Bytes of files that were sent so far.
    pub(crate) fn served(&self) -> u64 {
        self.shared.served.load(Ordering::SeqCst)
    }

    /// `forerun pull` of this Hub, with a home of its own.
    pub(crate) fn pull(&self, home: &Path, args: &[&str]) -> Command {
        let mut command = forerun(&["pull"]);
        for name in ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"] {
            command.env_remove(name);
        }
        for name in ["http_proxy", "https_proxy", "all_proxy"] {
            command.env_remove(name).env_remove(name.to_uppercase());
        }
        command.env("HF_ENDPOINT", self.url()).env("HF_HOME", home).args(args);
        command
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let Some(path) = lines.next().and_then(|line| line.split(' ').nth(1).map(str::to_owned)) else {
            return;
        };
        let headers = lines.take_while(|line| !line.is_empty());
        let headers = headers.filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        });
        let mut ask = Ask { path, headers: headers.collect(), n: 0 };
        {
            let mut asks = self.asks.lock().unwrap();
            ask.n = asks.iter().filter(|ask| ask.is_file()).count();
            asks.push(ask.clone());
        }
        let reply = (self.fault)(&ask, self.right(&ask));
        // The program may go away at any byte.
        let _ = self.send(&mut stream, &ask, &reply);
    }

    fn right(&self, ask: &Ask) -> Reply {
        if ask.path.starts_with(&format!("/api/models/{REPO}/revision/")) {
            return Reply::json(&listing(&self.files));
        }
        let name = ask.path.strip_prefix(&format!("/{REPO}/resolve/{COMMIT}/"));
        match self.files.iter().find(|file| name == Some(&file.0)) {
            Some((_, bytes)) => file(bytes, ask.from()),
            None => Reply::new(404, "Entry not found"),
        }
    }

    fn send(&self, stream: &mut TcpStream, ask: &Ask, reply: &Reply) -> std::io::Result<()> {
        let mut head = format!("HTTP/1.1 {} Status\r\nConnection: close\r\n", reply.status);
        if !reply.headers.iter().any(|header| header.0 == "Content-Length") {
            let _ = write!(head, "Content-Length: {}\r\n", reply.body.len());
        }
        for (name, value) in &reply.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes())?;
        for part in reply.body[..reply.cut.unwrap_or(reply.body.len())].chunks(4096) {
            stream.write_all(part)?;
            if ask.is_file() {
                self.served.fetch_add(part.len() as u64, Ordering::SeqCst);
            }
        }
        thread::sleep(reply.stall);
        Ok(())
    }
}

/// The answer to a request for a file's bytes.
fn file(bytes: &[u8], from: Option<usize>) -> Reply {
    let reply = match from {
        Some(from) if from >= bytes.len() => Reply::new(416, ""),
        Some(from) => {
            let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
            Reply::new(206, &bytes[from..]).with("Content-Range", range)
        }
        None => Reply::new(200, bytes),
    };
    let name = if bytes.len() < LARGE { blob_id(bytes) } else { sha256(bytes) };
    reply.with("ETag", format!("\"{name}\""))
}

/// What the Hub says of a revision.
pub(crate) fn listing(files: &[(String, Vec<u8>)]) -> Value {
    let siblings = files.iter().map(|(name, bytes)| {
        let mut sibling = json!({ "rfilename": name, "size": bytes.len(), "blobId": blob_id(bytes) });
        if bytes.len() >= LARGE {
            sibling["lfs"] = json!({ "sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 130 });
        }
        sibling
    });
    json!({ "id": REPO, "sha": COMMIT, "siblings": siblings.collect::<Vec<_>>() })
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn blob_id(bytes: &[u8]) -> String {
    hex(&Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
