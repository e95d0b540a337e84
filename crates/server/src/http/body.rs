//! A request's body: bounded in size and time, and a JSON object.
//!
//! Bodies of all requests share one room, which the memory plan has a line for. A body that finds none is refused; what it
//! takes is given back when the request is answered, or its answer begins to stream.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::{App, error};
use crate::config::Limits;
use crate::fields::Fields;
use crate::refusal::{Kind, Refusal};
use crate::upstream::HOP;

/// The fields of a request's JSON object.
pub(crate) struct Object(pub(crate) Fields);

impl FromRequest<Arc<App>> for Object {
    type Rejection = Response;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Self::Rejection> {
        let path = request.uri().path().to_owned();
        let read = read(request, &app.config.limits, &app.bodies).await;
        read.map(|(fields, _)| Self(fields)).map_err(|refusal| error::response(&refusal, &path))
    }
}

/// The same with the bytes, if the request may be forwarded: there is somewhere to, and it wasn't before.
pub(crate) struct Forwarding(pub(crate) Fields, pub(crate) Option<Bytes>);

impl FromRequest<Arc<App>> for Forwarding {
    type Rejection = Response;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Self::Rejection> {
        let path = request.uri().path().to_owned();
        let may_forward = app.upstream.is_some() && !request.headers().contains_key(HOP);
        let read = read(request, &app.config.limits, &app.bodies).await;
        let read = read.map(|(fields, bytes)| Self(fields, may_forward.then(|| bytes.into())));
        read.map_err(|refusal| error::response(&refusal, &path))
    }
}

/// Bytes that a value of a body takes once it is read, beside its text.
const VALUE_BYTES: usize = 72;
/// How often the bytes of a body are there at once: as they came, and as text of values.
const COPIES: usize = 2;
/// Seconds after which a request may come again that found no room.
const RETRY_S: u64 = 1;

/// The share of the room that a request holds.
#[derive(Clone, Default)]
struct Share(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl Share {
    /// Takes so many bytes more.
    fn grow(&self, room: &Arc<Semaphore>, bytes: usize) -> Result<(), Refusal> {
        let full = || Refusal {
            retry_after_s: Some(RETRY_S),
            ..Refusal::new(
                Kind::QueueFull,
                "the bodies of other requests take all the memory there is for them; try again",
            )
            .with_code("no_room")
        };
        let n = u32::try_from(bytes).map_err(|_| full())?;
        let more = Arc::clone(room).try_acquire_many_owned(n).map_err(|_| full())?;
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match held.as_mut() {
            Some(held) => held.merge(more),
            None => *held = Some(more),
        }
        Ok(())
    }
}

/// Keeps what a request's body takes until there is a response to it.
pub(super) async fn hold(mut request: Request, next: Next) -> Response {
    let share = Share::default();
    request.extensions_mut().insert(share.clone());
    let response = next.run(request).await;
    drop(share);
    response
}

async fn read(
    request: Request,
    limits: &Limits,
    room: &Arc<Semaphore>,
) -> Result<(Fields, Vec<u8>), Refusal> {
    let share = request.extensions().get::<Share>().cloned().unwrap_or_default();
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limits.body_bytes_max as u64) {
        return Err(too_large(limits));
    }
    let grow = |n_bytes: usize| share.grow(room, COPIES * n_bytes);
    let bytes = timeout(limits.body_timeout, bytes(request.into_body(), limits, grow)).await;
    let bytes = bytes.map_err(|_| {
        let words = format!("the request's body didn't arrive within {} s", limits.body_timeout.as_secs());
        Refusal::new(Kind::Slow, words)
    })??;
    if bytes.trim_ascii().is_empty() {
        return Err(Refusal::new(Kind::Invalid, "the request has no body; it must be a JSON object"));
    }
    share.grow(room, values_bytes(&bytes, limits)?)?;
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|error| Refusal::new(Kind::Invalid, format!("the request is not JSON: {error}")))?;
    Ok((Fields::of(value, "")?, bytes))
}

async fn bytes(
    body: Body,
    limits: &Limits,
    grow: impl Fn(usize) -> Result<(), Refusal>,
) -> Result<Vec<u8>, Refusal> {
    let mut body = Limited::new(body, limits.body_bytes_max);
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                let data = frame.into_data().unwrap_or_default();
                grow(data.len())?;
                bytes.extend_from_slice(&data);
            }
            Err(error) if error.is::<LengthLimitError>() => return Err(too_large(limits)),
            Err(error) => {
                let words = format!("the request's body can't be read: {error}");
                return Err(Refusal::new(Kind::Invalid, words));
            }
        }
    }
    Ok(bytes)
}

/// Bytes that a body's values take beside their text. Refuses a body of so many that they would take more than the text of the
/// largest.
fn values_bytes(bytes: &[u8], limits: &Limits) -> Result<usize, Refusal> {
    let n_values = bytes.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
    let n_max = limits.body_bytes_max / VALUE_BYTES;
    if n_values <= n_max {
        return Ok(n_values * VALUE_BYTES);
    }
    let words = format!("the request's body has more than {n_max} values, or commas and brackets");
    Err(Refusal::new(Kind::TooLarge, words))
}

fn too_large(limits: &Limits) -> Refusal {
    let words = format!("the request's body is larger than {} bytes", limits.body_bytes_max);
    Refusal::new(Kind::TooLarge, words)
}
