//! Eight clients at once that do everything clients do, good and bad. A few seconds here; ten minutes with
//! `cargo test --release -p forerun-server --test soak -- --ignored`.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::io::Read;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forerun_decode::config::{DraftChoice, SequenceConfig};
use serde_json::{Value, json};
use support::wire::{Request, hang_up};
use support::{Running, Setup, chat_text};

const CHAT: &str = "/v1/chat/completions";
const N_CLIENTS: u64 = 8;
const QUESTIONS: &[&str] = &[
    "What is 27 + 45?",
    "Spell banana.",
    "What is the capital of Japan?",
    "Count from 5 to 12.",
    "What does \"river\" mean?",
];

fn server() -> Running {
    let mut setup = Setup::of("pico-q4_k_m.gguf");
    setup.engine.sequences = SequenceConfig { n: NonZeroUsize::new(3).unwrap(), is_asked: true };
    setup.engine.draft = DraftChoice::Ngram;
    setup.server.limits.body_bytes_max = 100_000;
    setup.start()
}

fn ask(question: &str) -> Value {
    json!({"messages": [{"role": "user", "content": question}], "max_tokens": 30})
}

/// A client with its own chance.
struct Client<'a> {
    server: &'a Running,
    /// The answer to each question, from a server that had nothing else to do.
    alone: &'a [String],
    state: u64,
    n_right: &'a AtomicU64,
}

impl Client<'_> {
    fn chance(&mut self, n: u64) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % n
    }

    fn act(&mut self) {
        let which = usize::try_from(self.chance(QUESTIONS.len() as u64)).unwrap();
        let body = ask(QUESTIONS[which]);
        match self.chance(8) {
            0 | 1 => self.whole(&body, &self.alone[which]),
            2 => self.stream(&body, &self.alone[which]),
            3 => self.leave(body),
            4 => self.dawdle(body),
            5 => self.refused(
                &json!({"messages": [{"role": "user", "content": "word ".repeat(2000)}]}).to_string(),
                400,
            ),
            6 => self.refused(&"x".repeat(200_000), 413),
            _ => self.refused(["{", "[]", "{\"messages\": 5}", "\u{0}"][which % 4], 400),
        }
    }

    fn whole(&self, body: &Value, want: &str) {
        let reply = self.server.post(CHAT, body);
        if reply.status != 429 {
            assert_eq!(reply.status, 200, "{}", reply.text());
            assert_eq!(reply.json()["choices"][0]["message"]["content"], want);
            self.n_right.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn stream(&self, body: &Value, want: &str) {
        let mut body = body.clone();
        body["stream"] = true.into();
        let reply = self.server.post(CHAT, &body);
        if reply.status != 429 {
            let mut events = reply.events();
            assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{}", reply.text());
            let chunks: Vec<Value> = events.iter().map(|data| serde_json::from_str(data).unwrap()).collect();
            assert_eq!(chat_text(&chunks).1, want);
            self.n_right.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asks for a long answer, and goes at once or in its middle.
    fn leave(&mut self, mut body: Value) {
        body["stream"] = (self.chance(2) == 0).into();
        body["temperature"] = 1.5.into();
        body["max_tokens"] = 400.into();
        let mut stream = Request::post(CHAT, &body).open(self.server.address);
        if self.chance(2) == 0 {
            stream.set_read_timeout(Some(Duration::from_millis(30))).unwrap();
            let _ = stream.read(&mut [0; 700]);
        }
        hang_up(&stream);
    }

    /// Reads in small pieces with pauses.
    fn dawdle(&mut self, mut body: Value) {
        body["stream"] = true.into();
        let mut stream = Request::post(CHAT, &body).open(self.server.address);
        let mut piece = [0; 512];
        while stream.read(&mut piece).unwrap() > 0 {
            thread::park_timeout(Duration::from_millis(2));
        }
    }

    fn refused(&self, body: &str, status: u16) {
        let reply = Request::raw("POST", CHAT, body).send(self.server.address);
        assert_eq!(reply.status, status, "{}", reply.text());
    }
}

/// Resident bytes of this process, where the system says.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Lets all clients act for that long; returns memory after the first quarter, and at the end.
fn soak(time: Duration) -> (Option<u64>, Option<u64>) {
    let server = server();
    let answer = |question: &&str| {
        let answer = server.answer(CHAT, &ask(question));
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let alone: Vec<String> = QUESTIONS.iter().map(answer).collect();
    let (n_right, begin) = (AtomicU64::new(0), Instant::now());
    let early = thread::scope(|scope| {
        for seed in 0..N_CLIENTS {
            let mut client = Client { server: &server, alone: &alone, state: seed, n_right: &n_right };
            scope.spawn(move || {
                while begin.elapsed() < time {
                    client.act();
                }
            });
        }
        while begin.elapsed() < time / 4 {
            thread::park_timeout(Duration::from_millis(50));
        }
        resident_bytes()
    });
    server.until_idle();
    let late = resident_bytes();
    let totals = server.desk.status().totals;
    assert_eq!(totals.failed, 0, "{totals:?}");
    assert!(n_right.load(Ordering::Relaxed) > 0 && totals.given_up > 0, "{totals:?}");
    assert_eq!(QUESTIONS.iter().map(answer).collect::<Vec<_>>(), alone);
    (early, late)
}

#[test]
fn everything_at_once_does_no_harm() {
    soak(Duration::from_secs(4));
}

#[test]
#[ignore = "ten minutes"]
fn everything_at_once_for_long_does_no_harm_and_takes_no_memory() {
    let (early, late) = soak(Duration::from_secs(600));
    if let (Some(early), Some(late)) = (early, late) {
        assert!(late <= early + early / 50, "{early} bytes after two minutes and a half, {late} at the end");
    }
}
