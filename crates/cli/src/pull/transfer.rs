//! One file: from the server to its place, whatever happens between.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use indicatif::BinaryBytes;

use super::error::PullError;
use super::hash::Hasher;
use super::http::{Client, Head, Request};
use super::layout::Target;
use super::partial::{Content, Partial};
use super::stream::{Part, Stream, pause};
use super::tries::Tries;
use crate::interrupt::Interrupt;
use crate::progress::Bar;
use crate::say::say;

/// What all files of a pull share.
pub(crate) struct Transfer {
    pub(crate) client: Arc<Client>,
    pub(crate) interrupt: Interrupt,
    pub(crate) bar: Bar,
    pub(crate) tries: u32,
    pub(crate) quiet: bool,
}

/// What to do with an answer.
#[derive(Debug, PartialEq, Eq)]
enum Use {
    /// Its bytes go on where ours end.
    Append,
    /// Its bytes begin at the beginning.
    Restart,
    /// It is about another file than our bytes: ask again, for all.
    AskForAll,
    /// Its size is not the file's.
    WrongSize(u64),
    /// It makes no sense.
    Nonsense,
}

impl Transfer {
    /// Brings `content` from `url` to `target`, and says how many bytes came. `before` bytes of other files are done.
    ///
    /// # Errors
    /// Every [`PullError`]. The bytes so far stay, unless they are wrong.
    pub(crate) fn pull(
        &self,
        content: &Content,
        url: &str,
        target: &Target,
        before: u64,
    ) -> Result<u64, PullError> {
        let subject = &content.subject;
        let _lock = target.lock(subject)?;
        if target.path.try_exists().map_err(PullError::io("finding", &target.path))? {
            if self.is_right(&target.path, content, before)? {
                self.say(format_args!("{subject} is there already, and its {} is right", content.oid.kind()));
                target.point()?;
                return Ok(0);
            }
            if !target.may_replace() {
                return Err(PullError::Occupied { subject: subject.clone(), path: target.path.clone() });
            }
            self.say(format_args!("{subject} is there, but its bytes are wrong: it is pulled again"));
        }
        let seen = |done| self.see(before, done);
        let mut partial = Partial::open(target, content, seen)?;
        if partial.have() > 0 {
            self.say(format_args!("{subject}: going on at {}", BinaryBytes(partial.have())));
        }
        self.bar.start_at(before + partial.have());
        let brought = self.bring(&mut partial, content, url, before);
        if let Err(PullError::Interrupted) = brought {
            let (have, path) = (BinaryBytes(partial.have()), target.partial.display());
            self.say(format_args!(
                "{subject}: stopped at {have}; the same command goes on from there ({path})"
            ));
        }
        let n_bytes = brought?;
        partial.finish()?;
        target.point()?;
        Ok(n_bytes)
    }

    /// Asks until all bytes are there, and says how many came.
    fn bring(
        &self,
        partial: &mut Partial<'_>,
        content: &Content,
        url: &str,
        before: u64,
    ) -> Result<u64, PullError> {
        let (mut tries, mut n_bytes) = (Tries::new(self.tries), 0);
        while let Err(error) = self.attempt(partial, content, url, before, &mut n_bytes) {
            let words = crate::chain(&error);
            let wait = tries.after(error, partial.have())?;
            let have = BinaryBytes(partial.have());
            self.say(format_args!("{words}; trying again at {have} in {:.1} s", wait.as_secs_f64()));
            pause(wait, &self.interrupt)?;
        }
        Ok(n_bytes)
    }

    /// One request, or two if the first answer is about another file.
    fn attempt(
        &self,
        partial: &mut Partial<'_>,
        content: &Content,
        url: &str,
        before: u64,
        n_bytes: &mut u64,
    ) -> Result<(), PullError> {
        let (subject, size) = (content.subject.clone(), content.size);
        while partial.have() < size {
            if partial.etag().is_none() {
                partial.restart(None)?;
            }
            let from = (partial.have() > 0).then(|| partial.have());
            let request = Request { subject: subject.clone(), url: url.to_owned(), from };
            let mut stream = Stream::open(&self.client, request);
            let Some(Part::Head(head)) = stream.next(&self.interrupt)? else {
                return Err(PullError::Dropped { subject, got: partial.have(), expected: size });
            };
            match judge(&head, from, partial.etag(), size) {
                Use::Append => {}
                Use::Restart => partial.restart(head.etag.as_deref())?,
                Use::AskForAll => {
                    self.say(format_args!("{subject} is another one than before: pulled from its beginning"));
                    partial.restart(None)?;
                    continue;
                }
                // Nothing of it was written: what is there may be right all the same, and stays.
                Use::WrongSize(got) => return Err(PullError::OtherSize { subject, got, expected: size }),
                Use::Nonsense => {
                    let what = format!("status {} with a range that wasn't asked for", head.status);
                    return Err(PullError::Answer { subject, what });
                }
            }
            while let Some(part) = stream.next(&self.interrupt)? {
                if let Part::Bytes(bytes) = part {
                    partial.append(&bytes)?;
                    *n_bytes += bytes.len() as u64;
                    self.bar.set(before + partial.have());
                }
            }
            if partial.have() < size {
                return Err(PullError::Dropped { subject, got: partial.have(), expected: size });
            }
        }
        Ok(())
    }

    fn is_right(&self, path: &Path, content: &Content, before: u64) -> Result<bool, PullError> {
        let file = File::open(path).map_err(PullError::io("opening", path))?;
        if file.metadata().map_err(PullError::io("measuring", path))?.len() != content.size {
            return Ok(false);
        }
        let mut hasher = Hasher::new(&content.oid, content.size);
        let seen = |done| self.see(before, done);
        if !hasher.read(file, seen).map_err(PullError::io("reading", path))? {
            return Err(PullError::Interrupted);
        }
        Ok(hasher.finish() == content.oid.hex())
    }

    /// Moves the bar; `false` if the user wants to stop.
    fn see(&self, before: u64, done: u64) -> bool {
        self.bar.set(before + done);
        !self.interrupt.is_set()
    }

    fn say(&self, words: std::fmt::Arguments<'_>) {
        if !self.quiet {
            self.bar.above(|| say!("{words}"));
        }
    }
}

/// Decides what an answer is good for: `from` was asked for, and the bytes there have the `ETag` `etag`.
fn judge(head: &Head, from: Option<u64>, etag: Option<&str>, size: u64) -> Use {
    match (head.status, head.range, from) {
        (416, _, Some(_)) => Use::AskForAll,
        (206, Some(range), Some(from)) => match range.total {
            _ if head.etag.is_none() || head.etag.as_deref() != etag => Use::AskForAll,
            Some(total) if total != size => Use::WrongSize(total),
            _ if range.first != from => Use::Nonsense,
            _ => Use::Append,
        },
        (200, ..) => match head.len {
            Some(len) if len != size => Use::WrongSize(len),
            _ => Use::Restart,
        },
        _ => Use::Nonsense,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pull::http::ContentRange;

    /// An answer to a request from byte 4 of 10 for a file that had the `ETag` `a`.
    #[track_caller]
    fn check(status: u16, etag: &str, range: Option<(u64, u64)>, len: u64, expect: Use) {
        let range = range.map(|(first, total)| ContentRange { first, total: Some(total) });
        let etag = (!etag.is_empty()).then(|| etag.to_owned());
        assert_eq!(judge(&Head { status, etag, len: Some(len), range }, Some(4), Some("a"), 10), expect);
    }

    #[test]
    fn only_the_same_file_is_gone_on_with() {
        check(206, "a", Some((4, 10)), 6, Use::Append);
        check(206, "b", Some((4, 10)), 6, Use::AskForAll);
        check(206, "", Some((4, 10)), 6, Use::AskForAll);
        check(416, "a", None, 0, Use::AskForAll);
    }

    #[test]
    fn a_server_that_knows_no_ranges_begins_again() {
        check(200, "a", None, 10, Use::Restart);
        check(200, "b", None, 10, Use::Restart);
        check(200, "a", None, 1 << 60, Use::WrongSize(1 << 60));
    }

    #[test]
    fn a_range_must_be_the_one_that_was_asked_for() {
        check(206, "a", Some((3, 10)), 7, Use::Nonsense);
        check(206, "a", Some((4, 11)), 7, Use::WrongSize(11));
        check(206, "a", None, 6, Use::Nonsense);
        let head = Head { status: 206, etag: None, len: None, range: None };
        assert_eq!(judge(&head, None, None, 10), Use::Nonsense);
    }
}
