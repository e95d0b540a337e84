//! Every run that was made, kept at once: an interrupted measurement goes on where it ended.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::run::Outcome;

/// Which run it is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Key {
    pub(crate) regime: String,
    pub(crate) row: String,
    pub(crate) round: u32,
    /// The disk that was stood for, in bytes a second.
    pub(crate) limit: Option<u64>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Line {
    key: Key,
    outcome: Outcome,
}

/// The first line: what all runs have in common.
#[derive(Debug, Deserialize, Serialize)]
struct Head {
    settings: String,
}

/// Runs so far, on disk as well.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    lines: Vec<Line>,
    file: File,
}

impl Journal {
    /// Opens the journal at `path`, or begins one. A last line that was cut off by an interruption is dropped.
    ///
    /// # Errors
    /// [`BenchError`] for one of other settings, or a file that isn't one.
    pub(crate) fn open(path: &Path, settings: &str, is_fresh: bool) -> Result<Self, BenchError> {
        let io = |doing| move |source| BenchError::io(doing, path, source);
        let bytes =
            if is_fresh || !path.exists() { Vec::new() } else { fs::read(path).map_err(io("read"))? };
        // An interruption may have cut the last line off, in a character even.
        let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        let whole = String::from_utf8_lossy(&bytes[..end]);
        let mut lines = whole.lines().enumerate();
        let wrong = |line, source| BenchError::Journal { line, path: path.to_owned(), source };
        if let Some((_, head)) = lines.next() {
            let head: Head = serde_json::from_str(head).map_err(|source| wrong(1, source))?;
            if head.settings != settings {
                return Err(BenchError::Settings { path: path.to_owned(), found: head.settings });
            }
        }
        let lines = lines.map(|(i, line)| serde_json::from_str(line).map_err(|source| wrong(i + 1, source)));
        let lines = lines.collect::<Result<Vec<Line>, _>>()?;
        let mut file =
            OpenOptions::new().create(true).write(true).truncate(false).open(path).map_err(io("open"))?;
        file.set_len(end as u64).map_err(io("write"))?;
        std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).map_err(io("write"))?;
        let mut journal = Self { path: path.to_owned(), lines, file };
        if whole.is_empty() {
            journal.write(&Head { settings: settings.to_owned() })?;
        }
        Ok(journal)
    }

    /// What came of the run of `key`, if it was made.
    pub(crate) fn get(&self, key: &Key) -> Option<&Outcome> {
        self.lines.iter().find(|line| line.key == *key).map(|line| &line.outcome)
    }

    /// What came of the runs of a row, in their order.
    pub(crate) fn of<'a>(&'a self, regime: &'a str, row: &'a str) -> impl Iterator<Item = &'a Outcome> {
        let is_it = move |line: &&Line| line.key.regime == regime && line.key.row == row;
        self.lines.iter().filter(is_it).map(|line| &line.outcome)
    }

    /// The disk that a regime's runs stood for.
    pub(crate) fn limit(&self, regime: &str) -> Option<u64> {
        self.lines.iter().find(|line| line.key.regime == regime).and_then(|line| line.key.limit)
    }

    /// Keeps a run.
    ///
    /// # Errors
    /// [`BenchError::Io`].
    pub(crate) fn add(&mut self, key: Key, outcome: &Outcome) -> Result<(), BenchError> {
        let line = Line { key, outcome: outcome.clone() };
        self.write(&line)?;
        self.lines.push(line);
        Ok(())
    }

    fn write(&mut self, line: &impl Serialize) -> Result<(), BenchError> {
        let mut text = serde_json::to_string(line).map_err(|source| BenchError::Write { source })?;
        text.push('\n');
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(|source| BenchError::io("write", &self.path, source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Memory, Sample};

    fn done(rate: f64) -> Outcome {
        let memory = Memory { peak: Some(1) };
        Outcome::Done(Sample {
            prompt_tokens: 16,
            prompt_ms: 8.0,
            decode_tokens: 64,
            tokens_per_second: rate,
            bytes_demand: 800,
            bytes_guess: 0,
            bytes_wasted: 0,
            bytes_decode: 500,
            bytes_decode_used: 400,
            hit_rate: Some(0.5),
            overlap_efficiency: None,
            disk_rate: None,
            tokens_per_step: 1.0,
            memory,
            note: None,
            tokens: vec![1, 2],
            command: "forerun run --prompt=é".into(),
        })
    }

    fn key(round: u32) -> Key {
        Key { regime: "cpu".into(), row: "on demand".into(), round, limit: Some(5) }
    }

    #[test]
    fn what_was_run_is_found_again_and_a_cut_line_isnt() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.jsonl");
        let mut journal = Journal::open(&path, "a", false).unwrap();
        journal.add(key(0), &done(2.0)).unwrap();
        journal.add(key(1), &done(3.0)).unwrap();
        drop(journal);
        let bytes = fs::read(&path).unwrap();
        let in_a_character = bytes.iter().rposition(|&byte| byte == "é".as_bytes()[1]).unwrap();
        fs::write(&path, &bytes[..in_a_character]).unwrap();
        let mut journal = Journal::open(&path, "a", false).unwrap();
        assert_eq!(journal.get(&key(0)), Some(&done(2.0)));
        assert_eq!(journal.get(&key(1)), None);
        journal.add(key(1), &done(4.0)).unwrap();
        let again = Journal::open(&path, "a", false).unwrap();
        let outcomes: Vec<_> = again.of("cpu", "on demand").cloned().collect();
        assert_eq!((outcomes, again.limit("cpu")), (vec![done(2.0), done(4.0)], Some(5)));
    }

    #[test]
    fn other_settings_are_refused_until_one_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.jsonl");
        Journal::open(&path, "a", false).unwrap().add(key(0), &done(2.0)).unwrap();
        let error = Journal::open(&path, "b", false).unwrap_err().to_string();
        assert!(error.contains("other settings (a)") && error.contains("--fresh"), "{error}");
        assert_eq!(Journal::open(&path, "b", true).unwrap().get(&key(0)), None);
    }
}
