//! An answer as it comes, read by a thread of its own so that Ctrl-C needs not wait for the network.

use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use super::error::PullError;
use super::http::{Client, Head, Request};
use crate::interrupt::Interrupt;

/// Parts that may wait for whoever writes them to disk.
const PARTS_MAX: usize = 16;
const PART_BYTES_MAX: usize = 128 << 10;
/// How often an interruption is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// The head first, then bytes.
pub(crate) enum Part {
    Head(Head),
    Bytes(Vec<u8>),
}

/// An answer. Dropping it ends its thread at the next byte.
pub(crate) struct Stream(Receiver<Result<Part, PullError>>);

impl Stream {
    /// Sends a request.
    pub(crate) fn open(client: &Arc<Client>, request: Request) -> Self {
        let (sender, receiver) = sync_channel(PARTS_MAX);
        let client = Arc::clone(client);
        thread::spawn(move || {
            if let Err(error) = read(&client, &request, &sender) {
                // Nobody listens after an interruption.
                let _ = sender.send(Err(error));
            }
        });
        Self(receiver)
    }

    /// The next part; `None` at the end.
    ///
    /// # Errors
    /// [`PullError::Interrupted`], and whatever ended the answer.
    pub(crate) fn next(&mut self, interrupt: &Interrupt) -> Result<Option<Part>, PullError> {
        loop {
            if interrupt.is_set() {
                return Err(PullError::Interrupted);
            }
            match self.0.recv_timeout(LOOK) {
                Ok(part) => return part.map(Some),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }
}

/// Sleeps, unless interrupted.
pub(crate) fn pause(time: Duration, interrupt: &Interrupt) -> Result<(), PullError> {
    let mut left = time;
    while !left.is_zero() {
        if interrupt.is_set() {
            return Err(PullError::Interrupted);
        }
        let step = left.min(LOOK);
        thread::sleep(step);
        left -= step;
    }
    Ok(())
}

fn read(
    client: &Client,
    request: &Request,
    sender: &SyncSender<Result<Part, PullError>>,
) -> Result<(), PullError> {
    let (head, body) = client.get(request)?;
    let mut body = body.into_reader();
    let mut buffer = vec![0; PART_BYTES_MAX];
    let mut part = Part::Head(head);
    while sender.send(Ok(part)).is_ok() {
        let n = loop {
            match body.read(&mut buffer) {
                Ok(n) => break n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let source = Box::new(ureq::Error::from(error));
                    return Err(PullError::Connection { subject: request.subject.clone(), source });
                }
            }
        };
        if n == 0 {
            break;
        }
        part = Part::Bytes(buffer[..n].to_vec());
    }
    Ok(())
}
