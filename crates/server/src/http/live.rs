//! `/forerun/live`: what the machine does, as it does it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::{Value, json};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::App;
use crate::desk::{Facts, Watching};

/// Time from one look to the next.
const EVERY: Duration = Duration::from_millis(250);
/// Looks without news before one is sent all the same.
const IDLE_LOOKS: u32 = 4;

/// Shows the machine until the caller goes away.
pub(super) async fn live(State(app): State<Arc<App>>) -> Response {
    let mut every = interval(EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let shape = frame("shape", &shape(app.desk.facts()));
    let frames = Frames {
        view: app.desk.watch(),
        every,
        shape: Some(shape),
        n_seen: 0,
        n_idle: IDLE_LOOKS,
        decisions: Value::Null,
    };
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(frames)).into_response()
}

/// What doesn't change while the server runs.
fn shape(facts: &Facts) -> Value {
    let lines: Vec<_> =
        facts.plan.lines().into_iter().map(|(name, bytes)| json!({"name": name, "bytes": bytes})).collect();
    json!({
        "model": facts.model_id(),
        "layers": facts.n_layers,
        "experts": facts.n_experts,
        "top_k": facts.top_k,
        "context": facts.context,
        "memory": {"budget": facts.plan.budget, "lines": lines},
        "decisions": facts.decisions,
    })
}

fn frame(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

struct Frames {
    view: Watching,
    every: Interval,
    shape: Option<String>,
    /// The number of the tick that was sent last.
    n_seen: u64,
    /// Looks since then.
    n_idle: u32,
    decisions: Value,
}

impl Frames {
    /// The next frame, if there is news or it is time for a sign of life.
    fn look(&mut self) -> Option<String> {
        let (number, tick) = self.view.look();
        let is_new = number != self.n_seen;
        if !is_new && self.n_idle < IDLE_LOOKS {
            self.n_idle += 1;
            return None;
        }
        (self.n_seen, self.n_idle) = (number, 1);
        let mut data = serde_json::to_value(&*tick?).unwrap_or_default();
        data["queued"] = self.view.n_queued().into();
        if !is_new {
            // Nothing has happened since.
            for rate in ["hit_rate", "stall_share", "tokens_per_second", "prompt_tokens_per_second"] {
                data[rate] = Value::Null;
            }
            data["bytes_per_second"] = 0.into();
        }
        if data["decisions"] == self.decisions {
            data.as_object_mut()?.remove("decisions");
        } else {
            self.decisions = data["decisions"].clone();
        }
        Some(frame("tick", &data))
    }
}

impl Stream for Frames {
    type Item = Result<String, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(shape) = self.shape.take() {
            return Poll::Ready(Some(Ok(shape)));
        }
        loop {
            ready!(self.every.poll_tick(context));
            if let Some(frame) = self.look() {
                return Poll::Ready(Some(Ok(frame)));
            }
        }
    }
}
