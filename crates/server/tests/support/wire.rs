//! HTTP/1.1 as it lies on the wire, so that tests can also break it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longest wait for a reply.
const PATIENCE: Duration = Duration::from_secs(120);

/// A request.
pub(crate) struct Request {
    method: &'static str,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    pub(crate) fn get(path: &str) -> Self {
        Self { method: "GET", path: path.into(), headers: Vec::new(), body: Vec::new() }
    }

    pub(crate) fn post(path: &str, body: &Value) -> Self {
        Self::raw("POST", path, body.to_string())
    }

    pub(crate) fn raw(method: &'static str, path: &str, body: impl Into<Vec<u8>>) -> Self {
        Self { method, path: path.into(), headers: Vec::new(), body: body.into() }
    }

    /// With another header; `Host` takes the place of the usual one.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sends it on a connection of its own.
    pub(crate) fn open(&self, address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        // A server that has heard enough may close before it has heard all.
        let _ = stream.write_all(&self.bytes(address));
        stream
    }

    /// Sends it, and reads the reply to its end.
    #[track_caller]
    pub(crate) fn send(&self, address: SocketAddr) -> Reply {
        read(&mut self.open(address))
    }

    fn bytes(&self, address: SocketAddr) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\nConnection: close\r\n", self.method, self.path);
        if !self.headers.iter().any(|(name, _)| name == "Host") {
            head += &format!("Host: {address}\r\n");
        }
        if !self.body.is_empty() {
            head += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", self.body.len());
        }
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        let mut bytes = (head + "\r\n").into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

/// A reply.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The data of server-sent events.
    pub(crate) fn events(&self) -> Vec<String> {
        let text = self.text();
        let frames = text.split("\n\n").filter_map(|frame| frame.strip_prefix("data: "));
        frames.map(str::to_owned).collect()
    }

    /// Names and data of server-sent events that have names.
    #[track_caller]
    pub(crate) fn named_events(&self) -> Vec<(String, Value)> {
        let text = self.text();
        let frames = text.split("\n\n").filter_map(|frame| frame.strip_prefix("event: "));
        let frames = frames.map(|frame| {
            let (name, data) = frame.split_once("\ndata: ").unwrap();
            (name.to_owned(), serde_json::from_str(data).unwrap())
        });
        frames.collect()
    }

    /// The values of a reply that has one in each line.
    #[track_caller]
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Reads a reply to the end of the connection.
#[track_caller]
pub(crate) fn read(stream: &mut TcpStream) -> Reply {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert!(!bytes.is_empty(), "no reply: {error}");
    }
    parse(&bytes)
}

/// Reads until the reply holds `words`; the connection stays open.
#[track_caller]
pub(crate) fn read_until(stream: &mut TcpStream, words: &str) -> String {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    while !String::from_utf8_lossy(&bytes).contains(words) {
        let n = stream.read(&mut piece).unwrap();
        assert!(n > 0, "no {words:?} in {}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&piece[..n]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Hangs up.
pub(crate) fn hang_up(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}

#[track_caller]
fn parse(bytes: &[u8]) -> Reply {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no head: {:?}", String::from_utf8_lossy(bytes)));
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines.map(|line| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_ascii_lowercase(), value.trim().to_owned())
    });
    let headers: Vec<_> = headers.collect();
    let is_chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = &bytes[end + 4..];
    let body = if is_chunked { dechunked(body) } else { body.to_vec() };
    Reply { status, headers, body }
}

fn dechunked(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") {
        let len = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap().trim(), 16).unwrap();
        if len == 0 {
            break;
        }
        body.extend_from_slice(&bytes[end + 2..end + 2 + len]);
        bytes = &bytes[end + 4 + len..];
    }
    body
}
