//! A disk that isn't there: when it would have begun and finished each read. Pure.

use std::num::NonZeroU64;

use forerun_model::Nanos;

use crate::{Priority, Tag};

/// Reads one after the other at a constant rate, demands before guesses, first come first served among equals.
#[derive(Debug)]
pub(super) struct Disk {
    bytes_per_second: NonZeroU64,
    /// When it is done with all that it has begun.
    free_at: Nanos,
    waiting: Vec<Waiting>,
    /// In the order of their completion.
    begun: Vec<Begun>,
}

#[derive(Debug)]
struct Waiting {
    tag: Tag,
    priority: Priority,
    span: Nanos,
}

#[derive(Debug)]
struct Begun {
    tag: Tag,
    due: Nanos,
}

impl Disk {
    pub(super) fn new(bytes_per_second: NonZeroU64) -> Self {
        Self { bytes_per_second, free_at: Nanos(0), waiting: Vec::new(), begun: Vec::new() }
    }

    /// Reads that weren't removed yet.
    pub(super) fn n_reads(&self) -> usize {
        self.waiting.len() + self.begun.len()
    }

    /// Takes a read on at `now`.
    pub(super) fn submit(&mut self, now: Nanos, tag: Tag, priority: Priority, len_bytes: u64) {
        // What was free before decides without it.
        self.advance(now);
        if self.waiting.is_empty() {
            self.free_at = self.free_at.max(now);
        }
        self.waiting.push(Waiting { tag, priority, span: self.span(len_bytes) });
        self.advance(now);
    }

    /// Begins what has begun by `now`: as soon as it is free, it takes the next.
    pub(super) fn advance(&mut self, now: Nanos) {
        while self.free_at <= now && !self.waiting.is_empty() {
            let first = self.waiting.iter().position(|read| read.priority == Priority::Demand).unwrap_or(0);
            let read = self.waiting.remove(first);
            self.free_at = self.free_at + read.span;
            self.begun.push(Begun { tag: read.tag, due: self.free_at });
        }
    }

    /// Whether it has the read and hasn't begun it.
    pub(super) fn is_waiting(&self, tag: Tag) -> bool {
        self.waiting.iter().any(|read| read.tag == tag)
    }

    /// Forgets reads that are over by `now` and that `take` takes, the earliest first; says when the last was over.
    pub(super) fn take_due(&mut self, now: Nanos, mut take: impl FnMut(Tag) -> bool) -> Option<Nanos> {
        let mut last = None;
        self.begun.retain(|read| {
            let taken = read.due <= now && take(read.tag);
            last = if taken { Some(read.due) } else { last };
            !taken
        });
        last
    }

    /// When the first read after `now` is over; never, if none is being read.
    pub(super) fn next_due(&self, now: Nanos) -> Nanos {
        self.begun.iter().map(|read| read.due).find(|&due| due > now).unwrap_or(Nanos::MAX)
    }

    /// Forgets a read that it hasn't begun.
    pub(super) fn withdraw(&mut self, tag: Tag) {
        self.waiting.retain(|read| read.tag != tag);
    }

    /// How long it reads `len_bytes`, rounded up.
    fn span(&self, len_bytes: u64) -> Nanos {
        let nanos = (u128::from(len_bytes) * 1_000_000_000).div_ceil(u128::from(self.bytes_per_second.get()));
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk of a byte a nanosecond. Each word is `time+name length`, a guess if its name is `g…`, or `time-name`, a
    /// read that is taken back if it hasn't begun; expected are the reads in the order of their completion.
    #[track_caller]
    fn check(script: &str, expect: &str) {
        let mut disk = Disk::new(NonZeroU64::new(1_000_000_000).unwrap());
        let mut names = Vec::new();
        for word in script.split_whitespace() {
            let at = word.find(['+', '-']).unwrap();
            let (now, rest) = (Nanos(word[..at].parse().unwrap()), &word[at + 1..]);
            let (name, len) = rest.split_once(':').unwrap_or((rest, ""));
            let tag = tag(names.iter().position(|known| *known == name).unwrap_or(names.len()));
            if word[at..].starts_with('+') {
                let priority = if name.starts_with('g') { Priority::Guess } else { Priority::Demand };
                names.push(name);
                disk.submit(now, tag, priority, len.parse().unwrap());
            } else {
                disk.advance(now);
                disk.withdraw(tag);
            }
        }
        disk.advance(Nanos(1_000_000));
        let name = |of: Tag| names[(0..names.len()).find(|&i| tag(i) == of).unwrap()];
        let over = disk.begun.iter().map(|read| format!("{}@{}", name(read.tag), read.due.0));
        assert_eq!(over.collect::<Vec<_>>().join(" "), expect);
    }

    fn tag(name_idx: usize) -> Tag {
        Tag(name_idx as u64)
    }

    #[test]
    fn reads_queue_up() {
        check("0+a:10 0+b:10 0+c:5", "a@10 b@20 c@25");
        check("0+a:10 7+b:10", "a@10 b@20");
    }

    #[test]
    fn an_idle_disk_saves_nothing_up() {
        check("0+a:10 50+b:10 100+c:10", "a@10 b@60 c@110");
    }

    #[test]
    fn demands_go_before_guesses_that_have_not_begun() {
        check("0+g1:10 0+g2:10 5+a:10", "g1@10 a@20 g2@30");
        check("0+g1:10 0+g2:10 15+a:10", "g1@10 g2@20 a@30");
    }

    #[test]
    fn what_was_free_meanwhile_has_begun_meanwhile() {
        check("0+a:10 0+g1:10 100+b:10", "a@10 g1@20 b@110");
    }

    #[test]
    fn a_read_that_was_taken_back_takes_no_time() {
        check("0+a:10 0+b:10 0+c:10 9-b", "a@10 c@20");
        check("0+a:10 0+b:10 0+c:10 10-b", "a@10 b@20 c@30");
        check("0+a:10 0+b:10 9-b 50+c:10", "a@10 c@60");
    }

    #[test]
    fn nothing_takes_no_time() {
        check("3+a:0 3+b:0", "a@3 b@3");
    }
}
