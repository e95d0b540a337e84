//! Requests beyond this machine: an OpenAI-shaped cluster answers them, and the answers say so.
//!
//! A request is checked and tokenised here first, so errors are this server's. Then the rules decide; before anything of an
//! answer has reached the client, whatever goes wrong there means that the request is answered here, if it fits here.
//!
//! Never here: the client's own keys, redirects, a second hop.

mod body;
mod config;
mod fault;
mod lines;
mod relay;
mod wire;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::answer::Answer;
use crate::ask::{Ask, Prepared, prepare};
use crate::desk::Refused;
use crate::error::ServerError;
use crate::http::App;
use crate::refusal::{Kind, Refusal};
use config::Load;
pub use config::{Patience, UpstreamConfig, UpstreamKey, UpstreamRule, UpstreamUrl};
use fault::Fault;
pub(crate) use wire::HOP;
use wire::Wire;

/// The upstream, and what came of it.
pub(crate) struct Upstream {
    wire: Wire,
    counts: Counts,
    /// The model that it lists, if it lists one only; `None` before it was asked.
    listed: Mutex<Option<Option<String>>>,
    /// Requests on their way.
    n_flying: watch::Sender<usize>,
    /// Whether the server can't wait for them any more.
    is_closed: watch::Sender<bool>,
}

/// What came of requests since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    requests: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
}

impl Counts {
    /// Requests that were sent there, those of them that failed, and bytes of answers.
    pub(crate) fn look(&self) -> [u64; 3] {
        [&self.requests, &self.failed, &self.bytes].map(|count| count.load(Ordering::Relaxed))
    }

    fn add_bytes(&self, n: usize) {
        self.bytes.fetch_add(n as u64, Ordering::Relaxed);
    }
}

/// A request that may be forwarded, as it came.
pub(crate) struct Forwardable {
    /// Such as `chat/completions`.
    pub(crate) endpoint: &'static str,
    /// `None`: it may not.
    pub(crate) body: Option<Bytes>,
    pub(crate) is_streamed: bool,
}

/// Who answers.
pub(crate) enum Answered {
    /// This machine, with what is to come.
    Here(Answer),
    /// The upstream, with all that the client is told.
    There(Response),
}

impl Upstream {
    /// # Errors
    /// [`ServerError::UpstreamRules`], [`ServerError::UpstreamRoots`].
    pub(crate) fn new(config: UpstreamConfig) -> Result<Self, ServerError> {
        if config.rules.is_empty() {
            return Err(ServerError::UpstreamRules { url: config.url.to_string() });
        }
        Ok(Self {
            wire: Wire::new(config)?,
            counts: Counts::default(),
            listed: Mutex::default(),
            n_flying: watch::Sender::new(0),
            is_closed: watch::Sender::new(false),
        })
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Lets requests on their way end within `grace`, and gives up the others.
    pub(crate) async fn shut_down(&self, grace: Duration) {
        let mut n_flying = self.n_flying.subscribe();
        if timeout(grace, n_flying.wait_for(|n| *n == 0)).await.is_err() {
            self.is_closed.send_replace(true);
        }
    }

    /// Ready when the server can't wait any longer.
    async fn closed(&self) {
        // The sender lives as long as `self`.
        let _ = self.is_closed.subscribe().wait_for(|is_closed| *is_closed).await;
    }

    fn host(&self) -> &str {
        self.wire.config().url.authority()
    }

    fn holds(&self, load: Load) -> bool {
        self.wire.config().rules.iter().any(|rule| rule.holds(load))
    }

    /// Counts a failure and says it, without anybody's words; `here` is why this machine doesn't answer instead.
    fn failed(&self, fault: &Fault, here: Option<Refusal>) -> Refusal {
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!("the upstream {} {fault}", self.host());
        fault.refusal(self.host(), here)
    }

    /// The response that the upstream gives.
    ///
    /// # Errors
    /// [`Fault`]: nothing of it has reached the client.
    async fn ask(self: &Arc<Self>, request: &Forwardable, body: &[u8]) -> Result<Response, Fault> {
        let flight = Flight::new(self);
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        let model = self.model().await?;
        let body = body::outgoing(body, model.as_deref())?;
        let patience = self.wire.config().patience;
        let limit = if request.is_streamed { patience.stream } else { patience.whole };
        let begin = async {
            let mut received = self.wire.send(Method::POST, request.endpoint, body).await?;
            self.check(received.response.status(), model.is_some())?;
            if !request.is_streamed || !received.response.status().is_success() {
                return Ok((received, None));
            }
            if !received.is_events() {
                return Err(Fault::NotEvents);
            }
            let first = received.piece(self).await?.ok_or(Fault::Cut)?;
            Ok((received, Some(first)))
        };
        let (received, first) = timeout(limit, begin).await.map_err(|_| Fault::Slow(limit))??;
        if let Some(first) = first {
            return Ok(relay::stream(first, received, flight));
        }
        let status = received.response.status();
        relay::whole(status, &received.whole(self).await?, self.host())
    }

    /// Whether an answer is one for the client. What this server got wrong itself isn't: its key, its address, its name of the
    /// model.
    fn check(&self, status: StatusCode, has_named_model: bool) -> Result<(), Fault> {
        match status {
            status if status.is_success() => Ok(()),
            StatusCode::NOT_FOUND if has_named_model => {
                // Another model may be there since it was asked.
                *self.listed() = None;
                Err(Fault::Ours(status))
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::METHOD_NOT_ALLOWED => {
                Err(Fault::Ours(status))
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => Err(Fault::Status(status)),
            status if status.is_client_error() => Ok(()),
            status if status.is_redirection() => Err(Fault::Redirect(status)),
            status => Err(Fault::Status(status)),
        }
    }

    /// The model's name there; `None`: what the request says.
    async fn model(&self) -> Result<Option<String>, Fault> {
        if let Some(model) = &self.wire.config().model {
            return Ok(Some(model.clone()));
        }
        if let Some(listed) = &*self.listed() {
            return Ok(listed.clone());
        }
        let limit = self.wire.config().patience.idle;
        let list = async {
            let received = self.wire.send(Method::GET, "models", Bytes::new()).await?;
            let status = received.response.status();
            match self.check(status, false) {
                Ok(()) if status.is_success() => Ok(body::only_model(&received.whole(self).await?)),
                // Not every cluster has a list.
                Ok(()) | Err(Fault::Ours(StatusCode::METHOD_NOT_ALLOWED)) => Ok(None),
                Err(fault) => Err(fault),
            }
        };
        let model = timeout(limit, list).await.map_err(|_| Fault::Slow(limit))??;
        *self.listed() = Some(model.clone());
        Ok(model)
    }

    fn listed(&self) -> std::sync::MutexGuard<'_, Option<Option<String>>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request on its way, for the count.
struct Flight {
    upstream: Arc<Upstream>,
}

impl Flight {
    fn new(upstream: &Arc<Upstream>) -> Self {
        upstream.n_flying.send_modify(|n| *n += 1);
        Self { upstream: Arc::clone(upstream) }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.upstream.n_flying.send_modify(|n| *n -= 1);
    }
}

impl App {
    /// As [`App::answer`], but the upstream answers what is beyond this machine.
    ///
    /// # Errors
    /// A refusal that names what is wrong: with the request, or with the upstream and why this machine can't answer either.
    pub(crate) async fn answer_or_forward(
        self: &Arc<Self>,
        ask: Ask,
        mut request: Forwardable,
    ) -> Result<Answered, Refusal> {
        let body = request.body.take().filter(|_| is_portable(&ask));
        let Some((upstream, body)) = self.upstream.as_ref().zip(body) else {
            return self.answer(ask).await.map(Answered::Here);
        };
        let prepared = self.prepared(move |desk| prepare(ask, desk.facts())).await;
        let start = |prepared: Prepared| Answer::start(&self.desk, prepared).map(Answered::Here);
        if !self.is_beyond(upstream, &prepared) {
            drop(body);
            return prepared.and_then(start);
        }
        let asked = tokio::select! {
            () = upstream.closed() => return Err(Refused::ShuttingDown.into()),
            asked = upstream.ask(&request, &body) => asked,
        };
        let fault = match asked {
            Ok(response) => return Ok(Answered::There(response)),
            Err(fault) => fault,
        };
        match prepared.and_then(start) {
            Ok(answered) => {
                upstream.failed(&fault, None);
                Ok(answered)
            }
            Err(here) if here.kind == Kind::Unavailable => {
                upstream.failed(&fault, None);
                Err(here)
            }
            Err(here) => Err(upstream.failed(&fault, Some(here))),
        }
    }

    /// Whether a rule says that the upstream is to answer. A request that is wrong, or comes too late, isn't forwarded.
    fn is_beyond(&self, upstream: &Upstream, prepared: &Result<Prepared, Refusal>) -> bool {
        let prompt_tokens = match prepared {
            Ok(prepared) => prepared.jobs.iter().map(|job| job.prompt.len()).max(),
            Err(refusal) => refusal.prompt_tokens,
        };
        let status = self.desk.status();
        let n_free = status.slots.saturating_sub(status.active);
        let n_waiting = status.queued.saturating_sub(n_free);
        let load = prompt_tokens.map(|prompt_tokens| Load { n_waiting, prompt_tokens });
        status.is_open && load.is_some_and(|load| upstream.holds(load))
    }
}

/// Whether a cluster understands what binds the answer: of all forms, only those of OpenAI's `response_format` mean the same
/// everywhere. A cluster passes over the others, and an answer without its form is a wrong one.
fn is_portable(ask: &Ask) -> bool {
    ask.form.as_ref().is_none_or(|form| {
        form.param == "response_format.type" || form.param.starts_with("response_format.json_schema")
    })
}
