//! Why an upstream gave no answer. What it said is not repeated: that may be the client's words.

use std::io;
use std::time::Duration;

use axum::http::StatusCode;

use crate::refusal::{Kind, Refusal};

/// Why an upstream gave no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("can't be reached: {0}")]
    Connect(io::Error),
    #[error("can't be reached within {} s", .0.as_secs())]
    ConnectSlow(Duration),
    #[error("can't be reached safely: {0}")]
    Tls(io::Error),
    #[error("broke the connection: {0}")]
    Broken(#[from] hyper::Error),
    #[error("didn't begin to answer within {} s", .0.as_secs())]
    Slow(Duration),
    #[error("fell silent in its answer for {} s", .0.as_secs())]
    Idle(Duration),
    #[error("answered {0}")]
    Status(StatusCode),
    #[error("answered {0}, and redirects are not followed")]
    Redirect(StatusCode),
    #[error("answered {0}: the key or the address that this server has for it is wrong")]
    Ours(StatusCode),
    #[error("answered with more than {0} bytes")]
    TooLarge(usize),
    #[error("answered with something that is no JSON object")]
    NotJson,
    #[error("answered with something that is no stream of events")]
    NotEvents,
    #[error("ended its answer before the answer's end")]
    Cut,
    #[error("can't be sent the request: {0}")]
    Request(#[from] serde_json::Error),
    #[error("can't be sent the request: {0}")]
    Head(#[from] axum::http::Error),
}

impl Fault {
    /// The refusal that tells a client of it; `here` says why this machine doesn't answer instead.
    pub(super) fn refusal(&self, host: &str, here: Option<Refusal>) -> Refusal {
        let mut words = format!("the upstream {host} {self}");
        let mut retry_after_s = None;
        if let Some(here) = here {
            words = format!("{words}; and here it doesn't fit: {}", here.message);
            retry_after_s = here.retry_after_s;
        }
        Refusal { retry_after_s, ..Refusal::new(Kind::Upstream, words).with_code("upstream_failed") }
    }
}
