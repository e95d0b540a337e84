//! Answers as they are made, in any API's frames.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use serde_json::Value;
use tokio::time::{Instant, Sleep, sleep};

use crate::answer::{Answer, Delta};
use crate::refusal::Refusal;

/// How an API shows what happens. Each method appends whole frames to `out`.
pub(crate) trait Renderer: Send + Unpin + 'static {
    /// The media type of the frames.
    const CONTENT_TYPE: &'static str = "text/event-stream";
    /// A frame that says nothing; empty where there is none.
    const KEEP_ALIVE: &'static str = ": keep-alive\n\n";

    /// Before anything happened.
    fn begin(&mut self, out: &mut String);
    /// Something happened to an answer.
    fn delta(&mut self, choice: usize, delta: Delta, out: &mut String);
    /// All answers are over.
    fn end(&mut self, out: &mut String);
    /// There will be no more.
    fn failed(&mut self, refusal: &Refusal, out: &mut String);
}

/// A frame of server-sent events.
pub(crate) fn frame(data: &Value, out: &mut String) {
    out.push_str("data: ");
    out.push_str(&data.to_string());
    out.push_str("\n\n");
}

/// The same with a name.
pub(crate) fn named_frame(name: &str, data: &Value, out: &mut String) {
    out.push_str("event: ");
    out.push_str(name);
    out.push('\n');
    frame(data, out);
}

/// The response that streams `answer`.
pub(crate) fn response<R: Renderer>(answer: Answer, renderer: R, keep_alive: Duration) -> Response {
    let frames = Frames {
        answer: Some(answer),
        renderer,
        has_begun: false,
        keep_alive,
        silence: Box::pin(sleep(keep_alive)),
    };
    let headers = [
        (header::CONTENT_TYPE, R::CONTENT_TYPE),
        (header::CACHE_CONTROL, "no-cache"),
        // Proxies that gather answers would make a stream one lump.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(frames)).into_response()
}

struct Frames<R> {
    /// `None` when all is said.
    answer: Option<Answer>,
    renderer: R,
    has_begun: bool,
    keep_alive: Duration,
    silence: Pin<Box<Sleep>>,
}

impl<R: Renderer> Frames<R> {
    /// Takes all that is there, so that a slow reader gets fewer and longer pieces.
    fn gather(&mut self, context: &mut Context<'_>, out: &mut String) {
        while let Some(answer) = &mut self.answer {
            match answer.poll_next(context) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok((choice, delta)))) => self.renderer.delta(choice, delta, out),
                Poll::Ready(Some(Err(refusal))) => {
                    self.renderer.failed(&refusal, out);
                    self.answer = None;
                }
                Poll::Ready(None) => {
                    self.renderer.end(out);
                    self.answer = None;
                }
            }
        }
    }
}

impl<R: Renderer> Stream for Frames<R> {
    type Item = Result<String, Infallible>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let mut out = String::new();
        if !std::mem::replace(&mut this.has_begun, true) {
            this.renderer.begin(&mut out);
        }
        this.gather(context, &mut out);
        if out.is_empty() && this.silence.as_mut().poll(context).is_ready() {
            out.push_str(R::KEEP_ALIVE);
            // The timer must be asked once to wake us again.
            this.silence.as_mut().reset(Instant::now() + this.keep_alive);
            let _ = this.silence.as_mut().poll(context);
        }
        if !out.is_empty() {
            this.silence.as_mut().reset(Instant::now() + this.keep_alive);
            return Poll::Ready(Some(Ok(out)));
        }
        if this.answer.is_none() { Poll::Ready(None) } else { Poll::Pending }
    }
}
