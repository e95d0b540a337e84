//! Progress bars, on stderr, only on a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// What a bar counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    Bytes,
    Tokens,
    Windows,
    Passes,
    Tensors,
}

/// A bar that is gone when it is dropped; invisible where nobody watches.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// A bar of `total`, after `title`.
    pub(crate) fn new(title: &'static str, unit: Unit, total: u64, quiet: bool) -> Self {
        let visible = !quiet && std::io::stderr().is_terminal();
        let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        let template = match unit {
            Unit::Bytes => {
                "{msg} {wide_bar} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}"
            }
            Unit::Windows => "{msg} {wide_bar} {pos}/{len} windows {eta}",
            Unit::Passes => "{msg} {wide_bar} {pos}/{len} passes {eta}",
            Unit::Tensors => "{msg} {wide_bar} {pos}/{len} tensors {eta}",
            Unit::Tokens => "{msg} {wide_bar} {pos}/{len} tokens {per_sec} {eta}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(title);
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// Moves the bar.
    pub(crate) fn set(&self, done: u64) {
        self.0.set_position(done);
    }

    /// Changes what stands before the bar.
    pub(crate) fn say(&self, words: String) {
        self.0.set_message(words);
    }

    /// Moves the bar by work that an earlier run did, which says nothing of this one's rate.
    pub(crate) fn start_at(&self, done: u64) {
        self.0.set_position(done);
        self.0.reset_eta();
    }

    /// Runs `words`, which writes lines to stderr, above the bar.
    pub(crate) fn above(&self, words: impl FnOnce()) {
        self.0.suspend(words);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
