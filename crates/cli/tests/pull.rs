//! `pull` against a Hub on this machine: what a user gets, and from which mistakes it recovers.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::fixture;
use support::hub::{COMMIT, Hub, REPO, Reply, sha256};
use tempfile::tempdir;

/// Bytes that look random, and that the seed decides.
fn bytes(n: usize, mut seed: u64) -> Vec<u8> {
    std::iter::repeat_with(|| next(&mut seed).to_le_bytes()[3]).take(n).collect()
}

fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 16
}

fn words(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// The path that a pull prints.
#[track_caller]
fn pulled(mut command: Command) -> PathBuf {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    let path = std::str::from_utf8(&output.stdout).unwrap();
    PathBuf::from(path.strip_suffix('\n').unwrap())
}

/// Files below a folder that aren't locks.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(files_in(&entry));
        } else if entry.extension().is_none_or(|ending| ending != "lock") {
            found.push(entry);
        }
    }
    found.sort();
    found
}

#[test]
fn a_pulled_model_runs() {
    let model = std::fs::read(fixture("tiny-b-q3_k_m.gguf")).unwrap();
    let hub = Hub::right(&[("README.md", b"# A model"), ("m.gguf", &model)]);
    let home = tempdir().unwrap();
    let path = pulled(hub.pull(home.path(), &[REPO]));
    assert_eq!(path, home.path().join("hub/models--owner--name/snapshots").join(COMMIT).join("m.gguf"));
    assert_eq!(
        std::fs::read(home.path().join("hub/models--owner--name/refs/main")).unwrap(),
        COMMIT.as_bytes()
    );
    assert_eq!(
        std::fs::read(home.path().join("hub/models--owner--name/blobs").join(sha256(&model))).unwrap(),
        model
    );
    let report = support::json(&["inspect", "--json", path.to_str().unwrap()]);
    assert_eq!(report["tensors"].as_array().unwrap().len(), 76);

    // The second time there is nothing to do.
    let before = hub.served();
    let output = hub.pull(home.path(), &[REPO]).output().unwrap();
    assert!(
        words(&output).contains("m.gguf of owner/name is there already, and its sha256 is right"),
        "{output:?}"
    );
    assert_eq!(hub.served(), before);
    let quiet = hub.pull(home.path(), &[REPO, "-q", "--revision", "refs/pr/1"]).output().unwrap();
    assert_eq!((quiet.status.code(), words(&quiet)), (Some(0), ""));
}

#[test]
fn plain_files_and_their_report() {
    let shards =
        [("q/m-Q4_K_M-00001-of-00002.gguf", bytes(50, 1)), ("q/m-Q4_K_M-00002-of-00002.gguf", bytes(500, 2))];
    let mut files: Vec<(&str, &[u8])> =
        shards.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    let other = bytes(300, 3);
    files.push(("m-Q8_0.gguf", &other));
    let hub = Hub::right(&files);
    let (home, folder) = (tempdir().unwrap(), tempdir().unwrap());
    let wish = format!("{REPO}:q4_k_m");
    let output =
        hub.pull(home.path(), &[&wish, "--json", "--dir", folder.path().to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["path"], folder.path().join(shards[0].0).to_str().unwrap());
    assert_eq!((&report["bytes"], &report["bytes_pulled"]), (&550.into(), &550.into()));
    assert_eq!(report["commit"], COMMIT);
    assert_eq!(report["files"][1]["hash"], format!("sha256:{}", sha256(&shards[1].1)));
    let want: Vec<_> = shards.iter().map(|(name, _)| folder.path().join(name)).collect();
    assert_eq!(files_in(folder.path()), want, "no partial file is left");
    for (path, (_, bytes)) in want.iter().zip(&shards) {
        assert_eq!(std::fs::read(path).unwrap(), *bytes);
    }
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0, "the cache is left alone");
}

#[test]
fn a_file_that_appears_during_a_pull_stays() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let theirs = path.clone();
    let hub = Hub::new(&[("m.gguf", &bytes(500, 1))], move |ask, reply| {
        if ask.is_file() {
            std::fs::write(&theirs, "mine").unwrap();
        }
        reply
    });
    let output = hub.pull(folder.path(), &[REPO, "--dir", folder.path().to_str().unwrap()]).output().unwrap();
    assert!(output.status.code() == Some(1) && words(&output).contains("move it away"), "{output:?}");
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
}

#[test]
fn several_models_are_listed() {
    let hub = Hub::right(&[("m-Q4_0.gguf", &bytes(2048, 1)), ("m-Q8_0.gguf", &bytes(4096, 2))]);
    let home = tempdir().unwrap();
    let output = hub.pull(home.path(), &[REPO]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        words(&output).contains("\n  m-Q4_0.gguf, 2.00 KiB\n  m-Q8_0.gguf, 4.00 KiB\n"),
        "{}",
        words(&output)
    );
    let usage = hub.pull(home.path(), &["../up"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
}

#[test]
fn dropped_connections_lose_no_byte() {
    const SIZE: usize = 300_000;
    for seed in 0..12_u64 {
        let model = bytes(SIZE, seed);
        let mut chance = seed + 100;
        let cuts: Vec<usize> =
            (0..next(&mut chance) % 5).map(|_| usize::try_from(next(&mut chance)).unwrap() % SIZE).collect();
        let n_cuts = cuts.len();
        let hub = Hub::new(&[("m.gguf", &model)], move |ask, reply| match cuts.get(ask.n) {
            Some(cut) if ask.is_file() => {
                let cut = cut % reply.body.len();
                reply.cut(cut)
            }
            _ => reply,
        });
        let home = tempdir().unwrap();
        let path = pulled(hub.pull(home.path(), &[REPO]));
        assert_eq!(std::fs::read(path).unwrap(), model, "seed {seed}");
        let asks = hub.file_asks();
        assert_eq!(asks.len(), n_cuts + 1, "seed {seed}");
        assert_eq!(hub.served(), SIZE as u64, "seed {seed}: nothing is sent twice");
    }
}

#[test]
fn a_server_that_knows_no_ranges_begins_again() {
    let model = bytes(100_000, 1);
    let whole = model.clone();
    let hub = Hub::new(&[("m.gguf", &model)], move |ask, reply| match (ask.is_file(), ask.n) {
        (true, 0) => reply.cut(70_000),
        (true, _) => Reply::new(200, whole.clone()).with("ETag", format!("\"{}\"", sha256(&whole))),
        _ => reply,
    });
    let home = tempdir().unwrap();
    assert_eq!(std::fs::read(pulled(hub.pull(home.path(), &[REPO]))).unwrap(), model);
    assert_eq!(hub.served(), 170_000);
}

#[test]
fn a_file_that_changed_meanwhile_is_pulled_from_its_beginning() {
    let model = bytes(100_000, 1);
    let hub = Hub::new(&[("m.gguf", &model)], |ask, mut reply| match (ask.is_file(), ask.n) {
        (true, 0) => {
            reply.body = bytes(100_000, 2);
            reply.with("ETag", "\"older\"").cut(70_000)
        }
        _ => reply,
    });
    let home = tempdir().unwrap();
    assert_eq!(std::fs::read(pulled(hub.pull(home.path(), &[REPO]))).unwrap(), model);
    let asked: Vec<_> = hub.file_asks().iter().map(|ask| ask.from()).collect();
    assert_eq!(asked, [None, Some(70_000), None]);
}

#[test]
fn another_process_goes_on_where_one_gave_up() {
    for place in [&[][..], &["--dir", "plain"]] {
        let model = bytes(100_000, 1);
        let hub = Hub::new(&[("m.gguf", &model)], |ask, reply| match (ask.is_file(), ask.n) {
            (true, 0) => reply.cut(40_000),
            _ => reply,
        });
        let home = tempdir().unwrap();
        let pull = || {
            let mut command = hub.pull(home.path(), &[REPO, "--tries", "1"]);
            command.args(place).current_dir(home.path());
            command
        };
        let output = pull().output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(words(&output).contains("m.gguf of owner/name: the connection failed"), "{}", words(&output));
        let path = home.path().join(pulled(pull()));
        assert_eq!(std::fs::read(path).unwrap(), model);
        assert_eq!((hub.served(), hub.file_asks()[1].from()), (100_000, Some(40_000)), "{place:?}");
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_the_bytes_and_a_second_process_is_refused() {
    use std::process::Stdio;
    use std::time::Duration;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    let model = bytes(100_000, 1);
    let hub = Hub::new(&[("m.gguf", &model)], |ask, reply| match (ask.is_file(), ask.n) {
        (true, 0) => reply.stalled(40_000),
        _ => reply,
    });
    let home = tempdir().unwrap();
    let mut first = hub.pull(home.path(), &[REPO]);
    let first = first.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let partial =
        home.path().join("hub/models--owner--name/blobs").join(format!("{}.incomplete", sha256(&model)));
    while partial.metadata().map_or(0, |metadata| metadata.len()) < 40_000 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let second = hub.pull(home.path(), &[REPO]).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(words(&second).contains("another process pulls it"), "{}", words(&second));

    kill(Pid::from_raw(first.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let first = first.wait_with_output().unwrap();
    assert_eq!((first.status.code(), first.stdout.len()), (Some(130), 0));
    assert!(
        words(&first).contains("m.gguf of owner/name: stopped at 39.06 KiB; the same command goes on"),
        "{}",
        words(&first)
    );
    assert_eq!(std::fs::read(pulled(hub.pull(home.path(), &[REPO]))).unwrap(), model);
    assert_eq!(hub.served(), 100_000);
}
