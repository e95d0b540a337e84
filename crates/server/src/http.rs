//! Routes, and what every request passes before it reaches one.

pub(crate) mod body;
mod clients;
pub(crate) mod error;
mod guard;
mod live;
pub(crate) mod streaming;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderValue, Method, Uri, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::Semaphore;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::answer::Answer;
use crate::ask::{Ask, prepare};
use crate::config::ServerConfig;
use crate::desk::Desk;
use crate::error::ServerError;
use crate::refusal::{Kind, Refusal};
use crate::upstream::Upstream;
use crate::{anthropic, health, metrics, ollama, openai, page};
use clients::Clients;
use guard::Guard;

/// Prompts that are rendered and tokenised at once: each takes some copies of its text.
const PREPARING_MAX: usize = 4;

/// The client's address, put into each request by the one who accepted its connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// What every handler sees.
pub(crate) struct App {
    pub(crate) desk: Desk,
    pub(crate) config: ServerConfig,
    pub(crate) upstream: Option<Arc<Upstream>>,
    preparing: Arc<Semaphore>,
    /// Room for bodies, in bytes.
    bodies: Arc<Semaphore>,
    clients: Clients,
    guard: Guard,
}

impl App {
    pub(crate) fn new(
        desk: Desk,
        config: ServerConfig,
        is_loopback: bool,
        upstream: Option<Arc<Upstream>>,
    ) -> Self {
        Self {
            desk,
            upstream,
            preparing: Arc::new(Semaphore::new(PREPARING_MAX)),
            bodies: Arc::new(Semaphore::new(config.limits.bodies_bytes_max())),
            clients: Clients::new(config.keys.clone(), config.limits.per_minute),
            guard: Guard::new(&config, is_loopback),
            config,
        }
    }

    /// Makes jobs of what is asked, away from tokio's threads, and queues them.
    ///
    /// # Errors
    /// A refusal that names what is wrong, or that there are too many.
    pub(crate) async fn answer(self: &Arc<Self>, ask: Ask) -> Result<Answer, Refusal> {
        let prepared = self.prepared(move |desk| prepare(ask, desk.facts())).await?;
        Answer::start(&self.desk, prepared)
    }

    /// Does what takes time away from tokio's threads.
    ///
    /// # Errors
    /// Those of `work`.
    pub(crate) async fn prepared<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Desk) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let broken = |_| Refusal::new(Kind::Internal, "the prompt could not be prepared, by a fault of ours");
        let permit = Arc::clone(&self.preparing).acquire_owned().await;
        let desk = self.desk.clone();
        let work = move || {
            // Held to the end of the work, also when nobody waits for it any more.
            let _permit = permit;
            work(&desk)
        };
        tokio::task::spawn_blocking(work).await.map_err(broken)?
    }

    /// Refuses a request for another model, if that is wished.
    ///
    /// # Errors
    /// A refusal that names both.
    pub(crate) fn check_model(&self, name: Option<&str>) -> Result<(), Refusal> {
        let facts = self.desk.facts();
        match name {
            Some(name) if self.config.is_strict && !name.is_empty() && !facts.is_called(name) => {
                Err(unknown_model(name, facts.model_id()))
            }
            _ => Ok(()),
        }
    }
}

pub(crate) fn unknown_model(name: &str, ours: &str) -> Refusal {
    let shown: String = name.chars().take(100).collect();
    let words = format!("there is no model `{shown}` here; the model is `{ours}`");
    Refusal {
        param: Some("model".into()),
        ..Refusal::new(Kind::NotFound, words).with_code("model_not_found")
    }
}

/// All routes, behind all checks.
pub(crate) fn router(app: App) -> Router {
    let cors = cors(&app.config.cors);
    let app = Arc::new(app);
    let router = Router::new()
        .merge(openai::routes())
        .merge(page::routes())
        .merge(anthropic::routes())
        .merge(ollama::routes())
        .route("/health", get(health::health))
        .route("/v1/health", get(health::health))
        .route("/metrics", get(metrics::metrics))
        .route("/forerun/live", get(live::live))
        .route("/openapi.json", get(openapi))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn(body::hold))
        .layer(from_fn_with_state(Arc::clone(&app), clients::check))
        .layer(from_fn_with_state(Arc::clone(&app), guard::check))
        .with_state(app)
        .layer(from_fn(harden));
    match cors {
        Some(cors) => router.layer(cors),
        None => router,
    }
}

/// Routes of an API are registered with this, so that all take the same state.
pub(crate) type Routes = Router<Arc<App>>;

async fn openapi() -> Response {
    let document = include_str!("openapi.json");
    ([(header::CONTENT_TYPE, "application/json")], document).into_response()
}

/// Paths of other servers for what isn't offered here.
const ELSEWHERE: &[(&str, &str)] = &[
    ("embed", "this server makes text; embeddings aren't offered"),
    ("rerank", "this server makes text; rankings aren't offered"),
    ("lora", "adapters aren't applied; merge them into the model"),
    ("infill", "text can't be filled in before another"),
    ("images", "this server reads and makes text only"),
    ("audio", "this server reads and makes text only"),
];

async fn not_found(method: Method, uri: Uri) -> Response {
    let path: String = uri.path().chars().take(100).collect();
    let elsewhere = ELSEWHERE.iter().find(|(part, _)| path.contains(part)).map(|(_, why)| *why);
    let why = elsewhere.unwrap_or("/openapi.json lists what is");
    let words = format!("there is no {method} {path} here; {why}");
    error::response(&Refusal::new(Kind::NotFound, words), uri.path())
}

async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    let words = format!("{method} is not possible on {}", uri.path());
    error::response(&Refusal::new(Kind::MethodNotAllowed, words), uri.path())
}

/// What is said here is for the one who asked, and is nothing but what it says it is. Logs tell of routes, not of what was asked.
async fn harden(request: Request, next: Next) -> Response {
    let begin = Instant::now();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let mut response = next.run(request).await;
    let (status, ms) = (response.status().as_u16(), begin.elapsed().as_millis());
    tracing::info!("{method} {route}: {status} after {ms} ms");
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Refuses what no browser sends as an origin.
///
/// # Errors
/// [`ServerError::Origin`].
pub(crate) fn check_origins(origins: &[String]) -> Result<(), ServerError> {
    let is_right = |origin: &&String| {
        *origin == "*" || guard::origin_host(origin).is_some() && HeaderValue::from_str(origin).is_ok()
    };
    match origins.iter().find(|origin| !is_right(origin)) {
        None => Ok(()),
        Some(origin) => Err(ServerError::Origin { origin: origin.clone() }),
    }
}

fn cors(origins: &[String]) -> Option<CorsLayer> {
    if origins.is_empty() {
        return None;
    }
    let allowed = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
    };
    let methods = [Method::GET, Method::POST, Method::OPTIONS];
    let cors = CorsLayer::new().allow_origin(allowed).allow_methods(methods);
    Some(cors.allow_headers(AllowHeaders::mirror_request()))
}
