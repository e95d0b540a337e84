//! `serve` as a user starts and stops it. What it answers is tested in the server's own crate.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::{failure, fixture, forerun};

/// A server in a process of its own.
struct Serving {
    child: Child,
    stderr: BufReader<ChildStderr>,
    address: String,
    /// What it said before it listened.
    words: String,
}

impl Serving {
    fn start(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut words = String::new();
        let address = loop {
            let mut line = String::new();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "it ended before it listened: {words}");
            if let Some((_, address)) = line.trim().split_once("listens on http://") {
                break address.to_owned();
            }
            words += &line;
        };
        Self { child, stderr, address, words }
    }

    fn get(&self, path: &str) -> Value {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_embedded_model_is_served_and_decisions_are_said() {
    let server = Serving::start(forerun(&["serve", "--port", "0"]));
    assert!(server.words.contains("forerun: thinking: off ("), "{}", server.words);
    assert_eq!(server.get("/v1/models")["data"][0]["id"], "pico");
    assert_eq!(server.get("/health")["status"], "ok");
}

#[test]
fn flags_count_before_variables_and_those_before_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("serve.toml");
    std::fs::write(&file, "port = 0\nalias = 'of the file'\nqueue = 5\nctx = 100\nquiet = true\n").unwrap();
    let mut command = forerun(&["serve", "--ctx", "120"]);
    command.env("FORERUN_CONFIG", &file).env("FORERUN_QUEUE", "6").env("FORERUN_CTX", "110");
    let server = Serving::start(command);
    assert_eq!(server.words, "", "quiet");
    let model = &server.get("/v1/models")["data"][0];
    assert_eq!((model["id"].as_str(), model["context_length"].as_u64()), (Some("of the file"), Some(120)));
    assert_eq!(server.get("/health")["queue_max"], 6);
}

#[test]
fn a_file_of_flags_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("serve.toml");
    let path = file.to_str().unwrap();
    for (text, words) in
        [("prot = 1", "`prot`, which is no flag"), ("port = 'x'", "--port"), ("=", "is not TOML")]
    {
        std::fs::write(&file, text).unwrap();
        let (code, error) = failure(&["serve", "--config", path]);
        assert_eq!(code, 2, "{error}");
        assert!(error.contains(words) && error.contains("serve.toml"), "{error}");
    }
    let (code, error) = failure(&["serve", "--config", "nowhere.toml"]);
    assert!(code == 2 && error.contains("can't read the configuration nowhere.toml"), "{error}");
}

#[test]
fn what_cannot_be_is_said_before_it_listens() {
    let (code, error) = failure(&["serve", "-q", "--host", "0.0.0.0", "--port", "0"]);
    assert!(code == 1 && error.contains("an --api-key is needed"), "{error}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, error) = failure(&["serve", "-q", "--port", &port]);
    assert!(code == 1 && error.contains(&format!("port {port} of 127.0.0.1 is in use")), "{error}");
    let model = fixture("tiny-a-f32.gguf");
    let (code, error) = failure(&["serve", "-m", model.to_str().unwrap(), "--memory", "1MiB", "--port", "0"]);
    assert!(
        code == 1 && error.contains("memory budget of 1.00MiB is too small") && error.contains("dense"),
        "{error}"
    );
    let (code, error) = failure(&["serve", "--ctx", "0"]);
    assert!(code == 2 && error.contains("--ctx"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_request_to_end_leaves_with_0() {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut server = Serving::start(forerun(&["serve", "-q", "--port", "0"]));
        kill(Pid::from_raw(server.child.id().try_into().unwrap()), signal).unwrap();
        let status = server.child.wait().unwrap();
        let mut rest = String::new();
        server.stderr.read_to_string(&mut rest).unwrap();
        assert_eq!(status.code(), Some(0), "{signal}: {rest}");
    }
}
