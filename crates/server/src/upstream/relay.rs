//! An upstream's answer on its way to the client: whole, or piece by piece as fast as the client takes it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use http_body_util::BodyExt;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::fault::Fault;
use super::lines::Lines;
use super::wire::Received;
use super::{Flight, Upstream, body};
use crate::desk::Refused;
use crate::http::streaming::frame;
use crate::openai;
use crate::refusal::Refusal;

/// Says who answered.
pub(crate) const MARK: HeaderName = HeaderName::from_static("x-forerun-upstream");
/// Most bytes of an answer in one piece.
pub(super) const WHOLE_BYTES_MAX: usize = 16 << 20;
/// Pieces of a stream that wait for the client.
const PIECES_MAX: usize = 4;

impl Received {
    /// The next bytes; `None` behind the last.
    ///
    /// # Errors
    /// [`Fault`]: a broken connection, or one that is silent for too long.
    pub(super) async fn piece(&mut self, upstream: &Upstream) -> Result<Option<Bytes>, Fault> {
        let idle = upstream.wire.config().patience.idle;
        loop {
            let next =
                timeout(idle, self.response.body_mut().frame()).await.map_err(|_| Fault::Idle(idle))?;
            let Some(frame) = next.transpose()? else { return Ok(None) };
            // Trailers say nothing of the answer.
            if let Ok(piece) = frame.into_data()
                && !piece.is_empty()
            {
                upstream.counts.add_bytes(piece.len());
                return Ok(Some(piece));
            }
        }
    }

    /// All bytes.
    ///
    /// # Errors
    /// [`Fault`]: also more than [`WHOLE_BYTES_MAX`].
    pub(super) async fn whole(mut self, upstream: &Upstream) -> Result<Vec<u8>, Fault> {
        let mut whole = Vec::new();
        while let Some(piece) = self.piece(upstream).await? {
            if whole.len() + piece.len() > WHOLE_BYTES_MAX {
                return Err(Fault::TooLarge(WHOLE_BYTES_MAX));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole)
    }

    /// Whether the answer is a stream of events.
    pub(super) fn is_events(&self) -> bool {
        let content_type = self.response.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        media_type.eq_ignore_ascii_case("text/event-stream")
    }
}

/// An answer in one piece, or a refusal of the upstream's.
///
/// # Errors
/// [`Fault::NotJson`] for an answer; a refusal that is no JSON gets words of ours.
pub(super) fn whole(status: StatusCode, answer: &[u8], host: &str) -> Result<Response, Fault> {
    let body = match body::marked(answer, host) {
        Some(body) => body,
        None if status.is_success() => return Err(Fault::NotJson),
        None => {
            let words = format!("the upstream {host} answered {status}");
            let error =
                json!({"message": words, "type": "invalid_request_error", "param": null, "code": null});
            json!({"error": error, "upstream": host}).to_string().into()
        }
    };
    Ok((status, [(header::CONTENT_TYPE, "application/json")], mark(host), body).into_response())
}

fn mark(host: &str) -> [(HeaderName, HeaderValue); 1] {
    // An authority is visible ASCII.
    [(MARK, HeaderValue::from_str(host).unwrap_or(HeaderValue::from_static("unnamed")))]
}

/// A stream whose first piece has come.
pub(super) fn stream(first: Bytes, received: Received, flight: Flight) -> Response {
    let host = flight.upstream.host().to_owned();
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    tokio::spawn(pass_on(first, received, flight, sender));
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        // Proxies that gather answers would make a stream one lump.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, mark(&host), Body::from_stream(Pieces(pieces))).into_response()
}

/// Passes pieces on until the stream ends, the client goes away, or the server stops.
async fn pass_on(first: Bytes, mut received: Received, flight: Flight, client: mpsc::Sender<Bytes>) {
    let upstream = Arc::clone(&flight.upstream);
    let comment = format!(": upstream {}\n\n", upstream.host());
    let refusal = tokio::select! {
        () = client.closed() => return,
        () = upstream.closed() => Refused::ShuttingDown.into(),
        passed = all(comment.into(), first, &mut received, &upstream, &client) => match passed {
            Ok(()) => return,
            Err(fault) => upstream.failed(&fault, None),
        },
    };
    let _ = client.send(last_words(&refusal)).await;
}

/// Passes all on, each piece before the next is asked for.
async fn all(
    comment: Bytes,
    first: Bytes,
    received: &mut Received,
    upstream: &Upstream,
    client: &mpsc::Sender<Bytes>,
) -> Result<(), Fault> {
    let mut lines = Lines::default();
    let mut next = Some(first);
    if client.send(comment).await.is_err() {
        return Ok(());
    }
    while let Some(piece) = next {
        let whole = lines.push(piece)?;
        if !whole.is_empty() && client.send(whole).await.is_err() {
            return Ok(());
        }
        next = match received.piece(upstream).await {
            // All was said before it broke.
            Err(_) if lines.is_done() => None,
            piece => piece?,
        };
    }
    if lines.is_done() { Ok(()) } else { Err(Fault::Cut) }
}

/// An error in the middle, as the server's own streams have them. An event may be open, so it is closed first.
fn last_words(refusal: &Refusal) -> Bytes {
    let mut words = String::from("\n");
    frame(&openai::error::body(refusal), &mut words);
    words.into()
}

struct Pieces(mpsc::Receiver<Bytes>);

impl Stream for Pieces {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|piece| piece.map(Ok))
    }
}
