//! What is known of each file without reading it: hashes of its beginnings.

use std::path::PathBuf;

use forerun_model::TokenId;

use crate::prefix::format::Header;
use crate::prefix::source::usable;

/// What a file's name ends with.
const ENDING: &str = ".prefix";
/// Ending of a file that isn't whole yet.
pub(super) const UNFINISHED: &str = ".unfinished";
/// No folder has seen so many uses.
const USES_MAX: u64 = 1 << 62;
/// A model that can be cut back anywhere is asked every so many tokens.
const EVERY: usize = 64;

/// A file of the folder.
#[derive(Debug)]
pub(super) struct Indexed {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    /// The number of its last use.
    pub(super) used: u64,
    /// What it has, if it can be used here.
    pub(super) known: Option<Known>,
}

/// Hashes of a file's beginnings.
#[derive(Debug)]
pub(super) struct Known {
    /// Length and hash, ascending; the last is that of all tokens.
    marks: Vec<(usize, u64)>,
    /// After how many tokens it can be gone on from.
    lens: Vec<usize>,
    is_recurrent: bool,
}

impl Known {
    pub(super) fn new(header: &Header, is_recurrent: bool) -> Self {
        let hashes = hashes(&header.tokens);
        let n = header.tokens.len();
        let every = (1..).map(|i| i * EVERY).take_while(|len| *len < n);
        let mut lens: Vec<usize> = header.lens.iter().copied().chain(every).chain([n]).collect();
        lens.sort_unstable();
        lens.dedup();
        let marks = lens.into_iter().map(|len| (len, hashes[len])).collect();
        Self { marks, lens: header.lens.clone(), is_recurrent }
    }

    /// Tokens.
    pub(super) fn len(&self) -> usize {
        self.marks.last().map_or(0, |(len, _)| *len)
    }

    /// How many tokens can probably be used for a prompt with such hashes.
    pub(super) fn usable(&self, prompt: &[u64]) -> usize {
        let common = self.marks.iter().take_while(|(len, hash)| prompt.get(*len) == Some(hash));
        let common = common.last().map_or(0, |(len, _)| *len);
        usable(common, self.lens.iter().copied(), self.is_recurrent)
    }

    /// Whether a text with such hashes begins with all of it.
    pub(super) fn begins(&self, text: &[u64]) -> bool {
        self.marks.last().is_some_and(|(len, hash)| text.get(*len) == Some(hash))
    }
}

/// FNV-1a over the ids: a hash for each number of tokens, that of none first. Two texts may share one, so what is read by
/// it is compared.
pub(super) fn hashes(tokens: &[TokenId]) -> Vec<u64> {
    let mut hashes = Vec::with_capacity(tokens.len() + 1);
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    hashes.push(hash);
    for token in tokens {
        for byte in token.0.to_le_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        hashes.push(hash);
    }
    hashes
}

/// The name of a file whose last use is `used`, and whose name was, or is to end with, `rest`.
pub(super) fn file_name(used: u64, rest: &str) -> String {
    let rest = rest.strip_suffix(ENDING).unwrap_or(rest);
    let rest = rest.rsplit('-').next().unwrap_or(rest);
    format!("{used:016x}-{rest}{ENDING}")
}

/// The number of the last use; `None` when the name isn't one of ours.
pub(super) fn read_name(name: &str) -> Option<u64> {
    let (used, rest) = name.strip_suffix(ENDING)?.split_once('-')?;
    let is_ours = used.len() == 16 && rest.len() == 16 && rest.bytes().all(|b| b.is_ascii_hexdigit());
    u64::from_str_radix(used, 16).ok().filter(|used| is_ours && *used < USES_MAX)
}

/// Whether a name is that of a file of ours that isn't whole.
pub(super) fn is_unfinished(name: &str) -> bool {
    let whole = name.get(..33).map(|name| format!("{name}{ENDING}"));
    name.ends_with(UNFINISHED) && whole.is_some_and(|name| read_name(&name).is_some())
}
