//! One request on a connection of its own, which ends with it: who gives up the answer hangs up.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::{HeaderName, Method, Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::config::UpstreamConfig;
use super::fault::Fault;
use crate::error::ServerError;

/// Marks what was forwarded once: it is never forwarded again.
pub(crate) const HOP: HeaderName = HeaderName::from_static("x-forerun-upstream-hop");

/// How upstreams are reached.
pub(super) struct Wire {
    config: UpstreamConfig,
    tls: Option<TlsConnector>,
}

/// An answer that begins. Its connection ends when this is dropped.
pub(super) struct Received {
    pub(super) response: Response<Incoming>,
    _connection: Connection,
}

/// The task that drives a connection.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Wire {
    /// # Errors
    /// [`ServerError::UpstreamRoots`].
    pub(super) fn new(config: UpstreamConfig) -> Result<Self, ServerError> {
        let tls = if config.url.is_tls { Some(connector(config.roots_pem.as_deref())?) } else { None };
        Ok(Self { config, tls })
    }

    pub(super) fn config(&self) -> &UpstreamConfig {
        &self.config
    }

    /// Sends a request; waits for the head of its answer as long as the caller does.
    ///
    /// # Errors
    /// [`Fault`]: no connection, or a broken one.
    pub(super) async fn send(&self, method: Method, endpoint: &str, body: Bytes) -> Result<Received, Fault> {
        let limit = self.config.patience.connect;
        let connected = timeout(limit, self.connect()).await;
        let (mut sender, connection) = connected.map_err(|_| Fault::ConnectSlow(limit))??;
        let url = &self.config.url;
        let mut request = Request::builder()
            .method(method)
            .uri(url.path_of(endpoint))
            .header(header::HOST, url.authority())
            .header(header::CONNECTION, "close")
            .header(header::USER_AGENT, concat!("forerun/", env!("CARGO_PKG_VERSION")))
            .header(HOP, "1");
        if let Some(key) = &self.config.key {
            request = request.header(header::AUTHORIZATION, key.header());
        }
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let response = sender.send_request(request.body(Full::new(body))?).await?;
        Ok(Received { response, _connection: connection })
    }

    async fn connect(&self) -> Result<(SendRequest<Full<Bytes>>, Connection), Fault> {
        let url = &self.config.url;
        let stream = TcpStream::connect((url.host.as_str(), url.port)).await.map_err(Fault::Connect)?;
        // Requests and tokens are small and should leave at once.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else { return open(TokioIo::new(stream)).await };
        let name = ServerName::try_from(url.host.clone())
            .map_err(|wrong| Fault::Tls(std::io::Error::other(wrong)))?;
        let stream = tls.connect(name, stream).await.map_err(Fault::Tls)?;
        open(TokioIo::new(stream)).await
    }
}

async fn open<T: Read + Write + Send + Unpin + 'static>(
    io: T,
) -> Result<(SendRequest<Full<Bytes>>, Connection), Fault> {
    let (sender, connection) = handshake(io).await?;
    let task = tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!("a connection to the upstream ended: {error}");
        }
    });
    Ok((sender, Connection(task)))
}

/// Encryption that trusts the public web's authorities, or those of `roots_pem`.
fn connector(roots_pem: Option<&[u8]>) -> Result<TlsConnector, ServerError> {
    let wrong = |reason: String| ServerError::UpstreamRoots { reason };
    let mut roots = RootCertStore::empty();
    match roots_pem {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|source| wrong(source.to_string()))?;
                roots.add(certificate).map_err(|source| wrong(source.to_string()))?;
            }
        }
    }
    if roots.is_empty() {
        return Err(wrong("there is none in PEM form".into()));
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder =
        builder.with_safe_default_protocol_versions().map_err(|source| wrong(source.to_string()))?;
    let config = builder.with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_that_are_none_are_refused() {
        assert!(connector(None).is_ok());
        for wrong in ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
        {
            assert!(
                matches!(connector(Some(wrong.as_bytes())), Err(ServerError::UpstreamRoots { .. })),
                "{wrong}"
            );
        }
    }
}
