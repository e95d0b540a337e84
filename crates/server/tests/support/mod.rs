//! A server on a free port of this machine, and a client that speaks plain HTTP.

#![allow(dead_code, reason = "every test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

pub(crate) mod cluster;
pub(crate) mod forwarding;
pub(crate) mod wire;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use forerun_decode::config::{CheckpointConfig, GrammarRoom};
use forerun_decode::prefix::PrefixConfig;
use forerun_decode::text::Thinking;
use forerun_decode::{Engine, EngineConfig, ModelSource, SamplerConfig};
use forerun_server::{Defaults, Desk, DeskConfig, Server, ServerConfig};
use serde_json::Value;
use tokio::sync::oneshot;

use wire::{Reply, Request};

/// The context of most servers here.
pub(crate) const CONTEXT: usize = 512;

/// A file of the project's fixtures.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

/// How a server is to be.
pub(crate) struct Setup {
    pub(crate) engine: EngineConfig,
    pub(crate) desk: DeskConfig,
    pub(crate) server: ServerConfig,
}

impl Setup {
    /// A small server of a fixture: greedy, without thoughts, one answer at a time.
    pub(crate) fn of(model: &str) -> Self {
        let mut engine = EngineConfig::new(ModelSource::Path(fixture(model)));
        engine.context = Some(CONTEXT);
        engine.n_threads = Some(1);
        engine.grammars = GrammarRoom::On;
        engine.checkpoints = CheckpointConfig { n_max: 1, ..CheckpointConfig::default() };
        let defaults =
            Defaults { sampler: SamplerConfig::greedy(), thinking: Thinking::Off, ..Defaults::default() };
        let desk = DeskConfig {
            model_id: "pico".into(),
            aliases: vec![model.into()],
            queue_max: 8,
            prefixes: PrefixConfig::default(),
            defaults,
            decisions: Vec::new(),
            created: 1,
        };
        let server = ServerConfig { port: 0, ..ServerConfig::default() };
        Self { engine, desk, server }
    }

    /// Starts it.
    pub(crate) fn start(self) -> Running {
        let Self { engine, desk, server } = self;
        let desk = Desk::start(Engine::open(&engine).unwrap(), desk).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (told, address) = std::sync::mpsc::channel();
        let theirs = desk.clone();
        let thread = thread::Builder::new().name("server".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            runtime.unwrap().block_on(async {
                let server = Server::bind(theirs, server).await.unwrap();
                told.send(server.address()).unwrap();
                server.run(async { stopped.await.unwrap_or_default() }).await;
            });
        });
        let address = address.recv().unwrap();
        Running { address, desk, stop: Some(stop), thread: Some(thread.unwrap()) }
    }
}

/// A server that runs until it is dropped.
pub(crate) struct Running {
    pub(crate) address: std::net::SocketAddr,
    pub(crate) desk: Desk,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Running {
    /// One of pico that all tests of a file may share.
    pub(crate) fn shared() -> &'static Arc<Self> {
        static SHARED: OnceLock<Arc<Running>> = OnceLock::new();
        SHARED.get_or_init(|| Arc::new(Setup::of("pico-q4_k_m.gguf").start()))
    }

    /// The same with room for descriptions of tools.
    pub(crate) fn roomy() -> &'static Arc<Self> {
        static SHARED: OnceLock<Arc<Running>> = OnceLock::new();
        SHARED.get_or_init(|| {
            let mut setup = Setup::of("pico-q4_k_m.gguf");
            setup.engine.context = Some(4 * CONTEXT);
            Arc::new(setup.start())
        })
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        Request::get(path).send(self.address)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        Request::post(path, body).send(self.address)
    }

    /// The JSON of a request that is answered.
    #[track_caller]
    pub(crate) fn answer(&self, path: &str, body: &Value) -> Value {
        let reply = self.post(path, body);
        assert_eq!(reply.status, 200, "{body}: {}", reply.text());
        reply.json()
    }

    /// The error of a request that isn't.
    #[track_caller]
    pub(crate) fn refusal(&self, path: &str, body: &Value) -> (u16, Value) {
        let reply = self.post(path, body);
        assert!(reply.status >= 400, "{body}: {}", reply.text());
        (reply.status, reply.json()["error"].clone())
    }

    /// The chunks of a streamed answer, without the closing `[DONE]`, which must be there.
    #[track_caller]
    pub(crate) fn chunks(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut body = body.clone();
        body["stream"] = true.into();
        let reply = self.post(path, &body);
        assert_eq!(reply.status, 200, "{body}: {}", reply.text());
        assert_eq!(reply.header("content-type"), Some("text/event-stream"));
        let mut data = reply.events();
        assert_eq!(data.pop().as_deref(), Some("[DONE]"), "{}", reply.text());
        data.iter().map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    /// Names and data of the events of a streamed answer.
    #[track_caller]
    pub(crate) fn named_events(&self, path: &str, body: &Value) -> Vec<(String, Value)> {
        let mut body = body.clone();
        body["stream"] = true.into();
        let reply = self.post(path, &body);
        assert_eq!(reply.status, 200, "{body}: {}", reply.text());
        assert_eq!(reply.header("content-type"), Some("text/event-stream"));
        reply.named_events()
    }

    /// Waits until nothing is done and nothing waits.
    #[track_caller]
    pub(crate) fn until_idle(&self) {
        let begin = Instant::now();
        loop {
            let status = self.desk.status();
            if status.active == 0 && status.queued == 0 {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "still busy: {status:?}");
            thread::yield_now();
        }
    }

    /// Stops it and waits for its end.
    pub(crate) fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// Asks it to stop, and doesn't wait.
    pub(crate) fn ask_to_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// All text of streamed chat chunks: thoughts and answer.
pub(crate) fn chat_text(chunks: &[Value]) -> (String, String) {
    let field = |name: &str| {
        let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
        choices.filter_map(|choice| choice["delta"][name].as_str()).collect()
    };
    (field("reasoning_content"), field("content"))
}

/// All text of streamed completion chunks.
pub(crate) fn plain_text(chunks: &[Value]) -> String {
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    choices.filter_map(|choice| choice["text"].as_str()).collect()
}
