//! Words for people, on stderr. A reader that went away is no reason to fail, let alone to panic.

use std::fmt;
use std::io::{self, Write};

/// Writes one line to stderr; nobody minds if it can't be written.
pub(crate) fn line(words: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{words}");
}

/// Writes text to stderr as it is made; nobody minds if it can't be written.
pub(crate) fn piece(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// `say!("...", ...)`: a line on stderr, behind the program's name.
macro_rules! say {
    ($($words:tt)*) => { $crate::say::line(format_args!("forerun: {}", format_args!($($words)*))) };
}
pub(crate) use say;
