//! Reads that haven't begun: demands before guesses, first come first served among equals.

use std::collections::VecDeque;

use super::{Priority, Read, Tag};

/// Two queues in one.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    demands: VecDeque<Read>,
    guesses: VecDeque<Read>,
}

impl Waiting {
    pub(crate) fn push(&mut self, read: Read) {
        match read.priority {
            Priority::Demand => self.demands.push_back(read),
            Priority::Guess => self.guesses.push_back(read),
        }
    }

    /// What should begin next.
    pub(crate) fn pop(&mut self) -> Option<Read> {
        self.demands.pop_front().or_else(|| self.guesses.pop_front())
    }

    pub(crate) fn withdraw(&mut self, tag: Tag) -> Option<Read> {
        [&mut self.guesses, &mut self.demands].into_iter().find_map(|queue| {
            let at = queue.iter().position(|read| read.tag == tag)?;
            queue.remove(at)
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.demands.len() + self.guesses.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn clear(&mut self) {
        self.demands.clear();
        self.guesses.clear();
    }
}
