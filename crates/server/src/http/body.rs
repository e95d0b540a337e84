//! A request's body: bounded in size and time, and a JSON object.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use axum::response::Response;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;
use tokio::time::timeout;

use super::{App, error};
use crate::config::Limits;
use crate::fields::Fields;
use crate::refusal::{Kind, Refusal};

/// The fields of a request's JSON object.
pub(crate) struct Object(pub(crate) Fields);

impl FromRequest<Arc<App>> for Object {
    type Rejection = Response;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Self::Rejection> {
        let path = request.uri().path().to_owned();
        let fields = read(request, &app.config.limits).await;
        fields.map(Self).map_err(|refusal| error::response(&refusal, &path))
    }
}

/// Most values of a body.
const VALUES_MAX: usize = 1 << 20;

async fn read(request: Request, limits: &Limits) -> Result<Fields, Refusal> {
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limits.body_bytes_max as u64) {
        return Err(too_large(limits));
    }
    let bytes = timeout(limits.body_timeout, bytes(request.into_body(), limits)).await;
    let bytes = bytes.map_err(|_| {
        let words = format!("the request's body didn't arrive within {} s", limits.body_timeout.as_secs());
        Refusal::new(Kind::Slow, words)
    })??;
    if bytes.trim_ascii().is_empty() {
        return Err(Refusal::new(Kind::Invalid, "the request has no body; it must be a JSON object"));
    }
    check_values(&bytes)?;
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|error| Refusal::new(Kind::Invalid, format!("the request is not JSON: {error}")))?;
    Fields::of(value, "")
}

async fn bytes(body: Body, limits: &Limits) -> Result<Vec<u8>, Refusal> {
    match Limited::new(body, limits.body_bytes_max).collect().await {
        Ok(collected) => Ok(collected.to_bytes().into()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large(limits)),
        Err(error) => Err(Refusal::new(Kind::Invalid, format!("the request's body can't be read: {error}"))),
    }
}

/// Refuses a body of so many values that they would take far more memory than its bytes: about 72 each.
fn check_values(bytes: &[u8]) -> Result<(), Refusal> {
    let n_values = bytes.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
    if n_values <= VALUES_MAX {
        return Ok(());
    }
    let words = format!("the request's body has more than {VALUES_MAX} values, or commas and brackets");
    Err(Refusal::new(Kind::TooLarge, words))
}

fn too_large(limits: &Limits) -> Refusal {
    let words = format!("the request's body is larger than {} bytes", limits.body_bytes_max);
    Refusal::new(Kind::TooLarge, words)
}
