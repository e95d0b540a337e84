//! What a server adds to a token, and how soon the first byte of an answer to a kept prompt comes. Unit of work: tokens.
//!
//! Both sides compute alike, in one process, round about: an answer is pulled out of the engine, as `forerun run` does, and then
//! streamed over a connection of this machine to a client that does nothing but look at the clock.

#![expect(clippy::print_stdout, reason = "a benchmark says what it found")]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::thread;
use std::time::{Duration, Instant};

use forerun_decode::config::{CheckpointConfig, SequenceConfig};
use forerun_decode::prefix::PrefixConfig;
use forerun_decode::{
    Engine, EngineConfig, Event, Generation, GenerationConfig, ModelSource, SamplerConfig, Session,
};
use forerun_server::{Defaults, Desk, DeskConfig, Server, ServerConfig};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/pico-q4_k_m.gguf");
const PROMPT: &str = "Once upon a time";

/// How much is measured: little where it only must not rot.
struct Size {
    n_rounds: usize,
    n_tokens: usize,
    n_firsts: usize,
}

fn main() {
    let size = if std::env::args().any(|arg| arg == "--bench") {
        Size { n_rounds: 15, n_tokens: 300, n_firsts: 100 }
    } else {
        Size { n_rounds: 1, n_tokens: 4, n_firsts: 1 }
    };
    let mut engine = Engine::open(&config()).expect("the fixture opens");
    let address = serve();
    let mut differences = Vec::new();
    for round in 0..size.n_rounds {
        let alone = median(&gaps(&pulled(&mut engine, size.n_tokens)));
        let (_, times) = streamed(address, size.n_tokens);
        let served = median(&gaps(&times));
        println!("round {round}: {alone:.1} us a token alone, {served:.1} served");
        differences.push(served - alone);
    }
    println!("a server adds {:.1} us to a token (median of rounds)", median(&differences));
    let firsts: Vec<f64> = (0..size.n_firsts).map(|_| 1e3 * streamed(address, 1).0).collect();
    let worst = firsts.iter().copied().fold(0.0, f64::max);
    println!("first byte of a kept prompt: {:.2} ms (median), {worst:.2} ms at most", median(&firsts));
}

fn config() -> EngineConfig {
    let mut config = EngineConfig::new(ModelSource::Path(MODEL.into()));
    config.context = Some(1024);
    config
}

/// Starts a server as `forerun serve` would be, which ends with the process.
fn serve() -> SocketAddr {
    let mut engine = config();
    engine.sequences = SequenceConfig { n: NonZeroUsize::new(4).expect("not zero"), is_asked: true };
    engine.checkpoints = CheckpointConfig { n_max: 1, ..CheckpointConfig::default() };
    let desk = DeskConfig {
        model_id: "pico".into(),
        aliases: Vec::new(),
        queue_max: 8,
        prefixes: PrefixConfig::default(),
        defaults: Defaults { sampler: SamplerConfig::greedy(), ..Defaults::default() },
        decisions: Vec::new(),
        created: 1,
    };
    let desk = Desk::start(Engine::open(&engine).expect("the fixture opens"), desk).expect("threads start");
    let (told, address) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("threads start").block_on(async {
            let config = ServerConfig { port: 0, ..ServerConfig::default() };
            let server = Server::bind(desk, config).await.expect("a port is free");
            told.send(server.address()).expect("somebody asks");
            server.run(std::future::pending::<()>()).await;
        });
    });
    address.recv().expect("the server starts")
}

/// When each token of an answer was there.
fn pulled(engine: &mut Engine, n_tokens: usize) -> Vec<Instant> {
    let how = GenerationConfig {
        sampler: SamplerConfig::greedy(),
        max_tokens: Some(n_tokens),
        ..GenerationConfig::default()
    };
    let prompt = engine.tokenizer().encode_plain(PROMPT).expect("text");
    let mut session = Session::new();
    let mut answer = Generation::new(engine, &mut session, prompt, &how).expect("the prompt fits");
    let mut times = Vec::with_capacity(n_tokens);
    while let Some(event) = answer.next().expect("the disk is there") {
        if matches!(event, Event::Text(_)) {
            times.push(Instant::now());
        }
    }
    times
}

/// Seconds until the first byte of an answer's text, and when each of its events was there.
fn streamed(address: SocketAddr, n_tokens: usize) -> (f64, Vec<Instant>) {
    let body =
        format!(r#"{{"prompt": "{PROMPT}", "max_tokens": {n_tokens}, "temperature": 0, "stream": true}}"#);
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_nodelay(true).expect("a socket");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
    let asked = Instant::now();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .expect("the server listens");
    let mut times = Vec::with_capacity(n_tokens);
    for line in BufReader::new(stream).lines() {
        if line.expect("the server answers").starts_with("data: {") {
            times.push(Instant::now());
        }
    }
    assert!(times.len() >= n_tokens.min(2), "an answer has events");
    ((times[0] - asked).as_secs_f64(), times)
}

/// Microseconds between one and the next.
fn gaps(times: &[Instant]) -> Vec<f64> {
    times.windows(2).map(|pair| 1e6 * (pair[1] - pair[0]).as_secs_f64()).collect()
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
