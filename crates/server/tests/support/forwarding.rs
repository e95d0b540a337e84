//! Requests to a server that has an upstream, and how to see who answered.

use forerun_server::UpstreamConfig;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::wire::Reply;
use super::{Running, Setup};

pub(crate) const PLAIN: &str = "/v1/completions";
pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const MARK: &str = "x-forerun-upstream";
/// Prompts of more than so many tokens go away in most tests.
pub(crate) const BEYOND: &str = "ctx>20";

pub(crate) fn server(upstream: UpstreamConfig) -> Running {
    let mut setup = Setup::of("pico-q4_k_m.gguf");
    setup.server.upstream = Some(upstream);
    setup.start()
}

/// A prompt of `n` tokens.
pub(crate) fn prompt(n: usize) -> Value {
    json!({"prompt": vec![100; n], "max_tokens": 2})
}

/// A chat that is beyond, and fits here.
pub(crate) fn chat() -> Value {
    json!({"messages": [{"role": "user", "content": "one two three four five six seven ".repeat(5)}], "max_tokens": 2})
}

pub(crate) fn streamed(mut body: Value) -> Value {
    body["stream"] = true.into();
    body
}

#[track_caller]
pub(crate) fn is_forwarded(reply: &Reply, cluster: &Cluster) {
    assert_eq!(reply.header(MARK), Some(cluster.address.to_string().as_str()), "{}", reply.text());
}

#[track_caller]
pub(crate) fn is_answered_here(reply: &Reply) {
    assert_eq!((reply.status, reply.header(MARK)), (200, None), "{}", reply.text());
    assert!(!reply.text().contains("upstream"), "{}", reply.text());
}

/// Requests that were forwarded, and those that failed, as `/metrics` has them.
pub(crate) fn counts(server: &Running) -> (u64, u64) {
    let text = server.get("/metrics").text();
    let count = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("forerun_upstream_{name} ")));
        line.unwrap().parse().unwrap()
    };
    (count("requests_total"), count("failed_total"))
}
