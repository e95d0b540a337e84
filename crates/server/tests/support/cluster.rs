//! A cluster that says what a test tells it to, and remembers what it was asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use forerun_server::{UpstreamConfig, UpstreamRule};
use serde_json::{Value, json};

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// `POST /v1/completions`.
    pub(crate) what: String,
    /// Names in small letters.
    headers: Vec<(String, String)>,
    pub(crate) body: Value,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A cluster on a free port, for as long as the test runs.
pub(crate) struct Cluster {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Cluster {
    /// One that answers by `answer`, which writes whole HTTP responses; the connection ends with it.
    pub(crate) fn start(answer: impl Fn(&Asked, &mut TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let (book, answer) = (Arc::clone(&asked), Arc::new(answer));
        let serve = move || {
            for stream in listener.incoming() {
                let (book, answer) = (Arc::clone(&book), Arc::clone(&answer));
                let answer = move || {
                    let mut stream = stream.unwrap();
                    let Some(asked) = read(&stream) else { return };
                    book.lock().unwrap().push(asked.clone());
                    answer(&asked, &mut stream);
                };
                thread::Builder::new().name("connection".into()).spawn(answer).unwrap();
            }
        };
        thread::Builder::new().name("cluster".into()).spawn(serve).unwrap();
        Self { address, asked }
    }

    /// One that answers everything with `status` and `body`, but has no list of models.
    pub(crate) fn saying(status: u16, body: &str) -> Self {
        let body = body.to_owned();
        Self::start(move |_, stream| whole(stream, status, "application/json", &body))
    }

    /// One that streams these pieces, but has no list of models.
    pub(crate) fn streaming(pieces: &'static [&'static str]) -> Self {
        Self::start(move |_, stream| {
            begin_events(stream);
            for part in pieces {
                piece(stream, part);
            }
            end(stream);
        })
    }

    /// How a server forwards to it when `rule` holds. Its model has a name, so that it isn't asked for one.
    pub(crate) fn when(&self, rule: &str) -> UpstreamConfig {
        when(self.address, rule)
    }

    /// All requests so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

/// How a server forwards to `address`.
pub(crate) fn when(address: SocketAddr, rule: &str) -> UpstreamConfig {
    UpstreamConfig {
        url: format!("http://{address}/v1").parse().unwrap(),
        rules: rule.split(',').map(|rule| rule.parse::<UpstreamRule>().unwrap()).collect(),
        key: None,
        model: Some("big".into()),
        roots_pem: None,
        patience: Default::default(),
    }
}

/// A whole response.
pub(crate) fn whole(stream: &mut TcpStream, status: u16, content_type: &str, body: &str) {
    let head = format!(
        "HTTP/1.1 {status} Said\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
         Set-Cookie: a=b\r\nLocation: /elsewhere\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all((head + body).as_bytes());
}

/// The head of a stream.
pub(crate) fn begin_events(stream: &mut TcpStream) {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
    let _ = stream.write_all(head.as_bytes());
}

/// A piece of a stream; whether somebody took it.
pub(crate) fn piece(stream: &mut TcpStream, text: &str) -> bool {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).is_ok()
}

/// The end of a stream.
pub(crate) fn end(stream: &mut TcpStream) {
    let _ = stream.write_all(b"0\r\n\r\n");
}

/// Returns when the other side hung up.
pub(crate) fn until_hung_up(stream: &mut TcpStream) {
    while stream.read(&mut [0; 1024]).is_ok_and(|n| n > 0) {}
}

/// An answer to a chat in OpenAI's shape.
pub(crate) fn chat_answer() -> String {
    json!({
        "id": "chatcmpl-1", "object": "chat.completion", "model": "big",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "far"}, "finish_reason": "stop"}],
    })
    .to_string()
}

fn read(stream: &TcpStream) -> Option<Asked> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let what = line.rsplit_once(" HTTP/1.1")?.0.to_owned();
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let mut body = vec![0; length.map_or(0, |(_, length)| length.parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    Some(Asked { what, headers, body: serde_json::from_slice(&body).unwrap_or_default() })
}
