//! What can keep a server from starting.

use std::io;
use std::net::SocketAddr;

use forerun_decode::DecodeError;

/// A server that can't start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Somebody else listens there.
    #[error("port {} of {} is in use; choose another --port, or 0 for any that is free", address.port(), address.ip())]
    AddressInUse {
        /// Where it was to listen.
        address: SocketAddr,
    },
    /// The system doesn't let us listen there.
    #[error("can't listen on {address}")]
    Bind {
        /// Where it was to listen.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// A name that stands for no address.
    #[error("can't find the address of host `{host}`; write an IP address such as 127.0.0.1")]
    Host {
        /// The name.
        host: String,
        /// The system's reason, if it gave one.
        source: Option<io::Error>,
    },
    /// Everybody in reach could use the model.
    #[error(
        "{address} can be reached from other machines, so an --api-key is needed; --insecure does without, for networks \
         where everybody may use the model"
    )]
    Open {
        /// Where it was to listen.
        address: SocketAddr,
    },
    /// A key that no request can carry.
    #[error("API key {index} {reason}")]
    Key {
        /// Its position in the list, from 1.
        index: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An origin that browsers don't send.
    #[error("`{origin}` is no origin; write for example http://localhost:3000, or * for all")]
    Origin {
        /// What was given.
        origin: String,
    },
    /// An upstream that can't be one.
    #[error("the upstream `{url}` {reason}; write for example http://host:8000/v1")]
    UpstreamUrl {
        /// What was given, without a password.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A rule that says nothing.
    #[error(
        "`{rule}` is no rule; write for example queue>4, when more than 4 wait, or ctx>8192, for prompts of more tokens"
    )]
    UpstreamRule {
        /// What was given.
        rule: String,
    },
    /// An upstream that would never be asked.
    #[error(
        "nothing says when the upstream {url} is asked; write --upstream-when, with for example queue>4 or ctx>8192"
    )]
    UpstreamRules {
        /// Where it is.
        url: String,
    },
    /// A key that no request can carry. It isn't repeated.
    #[error(
        "the upstream's key is empty, or has characters that no header carries; use visible ASCII without spaces"
    )]
    UpstreamKey,
    /// Certificates that nothing can be checked with.
    #[error("the certificates for the upstream can't be used: {reason}")]
    UpstreamRoots {
        /// What is wrong with them.
        reason: String,
    },
    /// Conversations can't be kept where they should be.
    #[error("conversations can't be kept")]
    Prefixes {
        /// Why.
        source: Box<DecodeError>,
    },
    /// The system gives no thread for the engine.
    #[error("can't start the engine's thread")]
    Thread {
        /// The system's reason.
        source: io::Error,
    },
}
