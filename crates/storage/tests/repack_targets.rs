//! What happens to targets, to what others do with them meanwhile, and to what an earlier run left.

#![allow(clippy::unwrap_used, reason = "a helper of a test may panic, as the test may")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use forerun_storage::repack::{Comparison, Existing, Job, Settings, pack};
use forerun_storage::{Gguf, PackError};
use support::{Experts, Model};

#[cfg(unix)]
const N_LAYERS: usize = 2;

/// A model of two layers of three experts as a file in `folder`.
fn model_in(folder: &Path) -> (PathBuf, Gguf) {
    let path = folder.join("source.gguf");
    fs::write(&path, Model::default().file().write()).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    (path, gguf)
}

/// Steps and checkpoints so small that there are several.
fn small() -> Settings {
    Settings { step_bytes: 4096, checkpoint_bytes: 1, ..Settings::default() }
}

#[cfg(unix)]
fn reversed() -> Settings {
    let order = forerun_storage::repack::Order::Given(vec![vec![2, 1, 0]; N_LAYERS]);
    Settings { order, ..small() }
}

fn finished(job: Job<'_>) -> Vec<u8> {
    fs::read(job.finish().unwrap().target).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_target_that_appears_meanwhile_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (_, source) = model_in(folder.path());
    let target = folder.path().join("t.gguf");
    let job = pack(&source, &target, &small()).unwrap();
    fs::write(&target, "mine").unwrap();
    assert!(matches!(job.finish(), Err(PackError::TargetExists { .. })));
    assert_eq!(fs::read(&target).unwrap(), b"mine");
    let replace = Settings { existing: Existing::Replace, ..small() };
    assert_ne!(finished(pack(&source, &target, &replace).unwrap()), b"mine");
    assert_eq!(names(folder.path()), ["source.gguf", "t.gguf"]);
}

#[cfg(unix)]
#[test]
fn only_an_ordinary_file_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (_, source) = model_in(folder.path());
    let paths = ["socket", "dangling", "link", "file"].map(|name| folder.path().join(name));
    let [socket, dangling, link, file] = &paths;
    let _listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
    std::os::unix::fs::symlink("nowhere", dangling).unwrap();
    std::os::unix::fs::symlink("file", link).unwrap();
    fs::write(file, "mine").unwrap();
    for existing in [Existing::Replace, Existing::Refuse] {
        for target in [socket, dangling, Path::new("/dev/null")] {
            let error = pack(&source, target, &Settings { existing, ..small() }).err().unwrap();
            assert!(matches!(error, PackError::TargetKind { .. }), "{error}");
        }
    }
    assert_eq!(names(folder.path()), ["dangling", "file", "link", "socket", "source.gguf"]);
    let replace = Settings { existing: Existing::Replace, ..small() };
    finished(pack(&source, link, &replace).unwrap());
    assert_eq!(fs::read(file).unwrap(), b"mine", "the link was replaced, not what it leads to");
}

/// A journal removed under a run lets another one in, as a file system without locks would.
#[cfg(unix)]
#[test]
fn a_run_gives_no_name_to_what_another_one_wrote() {
    let folder = tempfile::tempdir().unwrap();
    let (_, source) = model_in(folder.path());
    let [target, journal] = ["t.gguf", "t.gguf.forerun-journal"].map(|name| folder.path().join(name));
    let want = finished(pack(&source, &folder.path().join("w.gguf"), &reversed()).unwrap());

    // The other one is at work still.
    let first = pack(&source, &target, &small()).unwrap();
    fs::remove_file(&journal).unwrap();
    let second = pack(&source, &target, &reversed()).unwrap();
    assert!(matches!(first.finish(), Err(PackError::Busy { .. })));
    assert!(!target.exists());
    assert!(finished(second) == want);
    fs::remove_file(&target).unwrap();

    // The other one is done.
    let first = pack(&source, &target, &small()).unwrap();
    fs::remove_file(&journal).unwrap();
    assert!(finished(pack(&source, &target, &reversed()).unwrap()) == want);
    assert!(matches!(first.finish(), Err(PackError::Busy { .. })));
    assert!(fs::read(&target).unwrap() == want);
    fs::remove_file(&target).unwrap();

    // What a run throws away is its own only.
    let changing_folder = folder.path().join("changing");
    fs::create_dir(&changing_folder).unwrap();
    let (path, changing) = model_in(&changing_folder);
    let first = pack(&changing, &target, &small()).unwrap();
    fs::remove_file(&journal).unwrap();
    let second = pack(&source, &target, &reversed()).unwrap();
    fs::OpenOptions::new().append(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    assert!(matches!(first.finish(), Err(PackError::SourceChanged { .. })));
    assert!(finished(second) == want);
}

#[test]
fn a_source_that_changed_between_two_runs_is_copied_afresh() {
    let folder = tempfile::tempdir().unwrap();
    let (path, before) = model_in(folder.path());
    let target = folder.path().join("t.gguf");
    let pause = || {
        let mut job = pack(&before, &target, &small()).unwrap();
        assert!(job.step().unwrap() && job.step().unwrap());
        job.pause().unwrap();
    };
    pause();
    assert!(pack(&before, &target, &small()).unwrap().progress().resumed_bytes > 0);

    // A weight of what is done already; neither header nor length tell.
    let tensor = &before.tensors()[0];
    let mut bytes = fs::read(&path).unwrap();
    bytes[usize::try_from(tensor.offset_bytes).unwrap()] ^= 1;
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, &bytes).unwrap();
    // However coarse the file system's times are.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_modified(modified + std::time::Duration::from_secs(3)).unwrap();
    let after = Gguf::open(&path).unwrap();
    let job = pack(&after, &target, &small()).unwrap();
    assert_eq!(job.progress().resumed_bytes, 0);
    let found = finished(job);
    assert!(found == finished(pack(&after, &folder.path().join("w.gguf"), &small()).unwrap()));
}

#[test]
fn a_step_of_no_bytes_is_one_of_some() {
    let folder = tempfile::tempdir().unwrap();
    let (_, source) = model_in(folder.path());
    let want = finished(pack(&source, &folder.path().join("w.gguf"), &small()).unwrap());
    let none = Settings { step_bytes: 0, checkpoint_bytes: 0, ..Settings::default() };
    assert!(finished(pack(&source, &folder.path().join("t.gguf"), &none).unwrap()) == want);
}

/// Tensors that are named like experts but that nobody reads as such are compared like any other.
#[test]
fn tensors_that_no_expert_is_read_from_are_compared_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model { experts: Experts::Fused, ..Model::default() }.file();
    let plain = Gguf::open_bytes("plain.gguf", model.write().into()).unwrap();
    let strays = ["blk.0.ffn_gate_exps.weight", "blk.1.ffn_up.0.weight"];
    let of = |values: [u8; 2]| {
        let [gate, up] = [0, 1].map(|i| (strays[i], vec![values[i]; 512]));
        let file = model.clone().tensor(gate.0, &[128], gate.1).tensor(up.0, &[128], up.1);
        Gguf::open_bytes("model.gguf", file.write().into()).unwrap()
    };
    let source = of([1, 2]);
    let target = folder.path().join("p.gguf");
    finished(pack(&source, &target, &Settings::default()).unwrap());
    let packed = Gguf::open(&target).unwrap();
    let differing = |file: &Gguf, other: &Gguf| {
        let mut comparison = Comparison::new(file, other);
        while comparison.step().unwrap() {}
        let found = &comparison.checked().differences;
        found.iter().map(|difference| difference.name.clone()).collect::<Vec<_>>()
    };
    for file in [&source, &packed] {
        for (other, expect) in [([1, 2], vec![]), ([3, 2], vec![strays[0]]), ([1, 3], vec![strays[1]])] {
            let expect: Vec<_> = expect.into_iter().map(|name| format!("tensor {name}")).collect();
            assert_eq!(differing(file, &of(other)), expect);
            assert_eq!(differing(&of(other), file), expect);
        }
        assert_eq!(differing(file, &plain), strays.map(|name| format!("tensor {name}")));
        assert_eq!(differing(&plain, file), strays.map(|name| format!("tensor {name}")));
    }
}
