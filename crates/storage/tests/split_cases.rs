//! Models in several files: found from any of them, and refused by name when something is wrong.

#![allow(clippy::unwrap_used, reason = "a helper of a test may panic, as the test may")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use support::raw::{I32, U16};
use support::{File, Model, Raw};
use tempfile::TempDir;

use forerun_model::{ExpertKey, ModelShape};
use forerun_storage::{Catalog, Gguf, OpenError, Resident, ResidentMode};

/// A folder with one model in `n` shards of about as many tensors each.
struct Set {
    folder: TempDir,
    n: usize,
}

impl Set {
    fn write(n: usize, order: &[usize]) -> Self {
        Self::write_with(n, order, |_, shard| shard)
    }

    /// Writes the shards (counted from 0) in `order`, after `change` has had its way with each.
    fn write_with(n: usize, order: &[usize], change: impl Fn(usize, File) -> File) -> Self {
        let set = Self { folder: TempDir::new().unwrap(), n };
        let whole = Model::default().file();
        let per_shard = whole.tensors.len().div_ceil(n);
        for &i in order {
            let mut shard = if i == 0 { whole.clone() } else { File::default() };
            let tensors = whole.tensors.iter().skip(i * per_shard).take(per_shard);
            shard.tensors = tensors.cloned().collect();
            let shard = numbered(shard, i, n, whole.tensors.len());
            fs::write(set.path(i), change(i, shard).write()).unwrap();
        }
        set
    }

    fn path(&self, i: usize) -> PathBuf {
        self.folder.path().join(format!("m-{:05}-of-{:05}.gguf", i + 1, self.n))
    }

    fn name(&self, i: usize) -> String {
        format!("m-{:05}-of-{:05}.gguf", i + 1, self.n)
    }
}

fn numbered(file: File, i: usize, n: usize, n_tensors: usize) -> File {
    file.entry(Raw::default().entry("split.no", U16).bytes(&u16::try_from(i).unwrap().to_le_bytes()))
        .entry(Raw::default().entry("split.count", U16).bytes(&u16::try_from(n).unwrap().to_le_bytes()))
        .entry(Raw::default().entry("split.tensors.count", I32).u32(u32::try_from(n_tensors).unwrap()))
}

/// Opens a model and everything in it.
fn load(path: &Path) -> (Gguf, Catalog, Resident) {
    let gguf = Gguf::open(path).unwrap();
    let shape = ModelShape::from_metadata(&gguf.metadata).unwrap();
    let catalog = Catalog::new(&shape, &gguf).unwrap();
    let resident = Resident::load(&shape, &gguf, ResidentMode::Mapped).unwrap();
    (gguf, catalog, resident)
}

#[track_caller]
fn refused(path: &Path, names: &[&str]) -> OpenError {
    let error = Gguf::open(path).expect_err("a broken set must be refused");
    for name in names {
        assert!(error.to_string().contains(name), "{error} should say {name:?}");
    }
    error
}

#[test]
fn a_set_opens_by_any_shard_and_by_its_folder() {
    let set = Set::write(3, &[0, 1, 2]);
    let whole = Model::default();
    for path in [set.path(0), set.path(1), set.path(2), set.folder.path().to_owned()] {
        let (gguf, catalog, resident) = load(&path);
        assert_eq!(gguf.files().files().len(), 3);
        assert_eq!(gguf.tensors().len(), whole.file().tensors.len());
        assert_eq!(resident.unknown(), [""; 0]);
        for tensor in whole.file().tensors {
            let info = gguf.tensor(&tensor.name).unwrap();
            let file = fs::read(set.path(usize::from(info.file))).unwrap();
            let start = usize::try_from(info.offset_bytes).unwrap();
            assert_eq!(file[start..start + tensor.data.len()], tensor.data, "{}", tensor.name);
        }
        assert!(catalog.record(ExpertKey::new(1, 2)).unwrap().parts.iter().all(|part| part.file == 2));
    }
}

#[test]
fn the_order_of_the_folder_does_not_matter() {
    for order in [[1, 0, 2], [2, 1, 0], [1, 2, 0]] {
        let set = Set::write(3, &order);
        for path in [set.folder.path().to_owned(), set.path(2)] {
            let (gguf, ..) = load(&path);
            let paths: Vec<_> = gguf.files().files().iter().map(|file| file.path.clone()).collect();
            assert_eq!(paths, [set.path(0), set.path(1), set.path(2)]);
        }
    }
}

#[test]
fn a_missing_shard_is_named() {
    for missing in 0..3 {
        let set = Set::write(3, &[0, 1, 2]);
        fs::remove_file(set.path(missing)).unwrap();
        for i in (0..3).filter(|&i| i != missing) {
            let error = refused(&set.path(i), &[&set.name(missing), "3 files"]);
            assert!(matches!(error, OpenError::MissingShard { n_shards: 3, .. }));
        }
        refused(set.folder.path(), &[&set.name(missing)]);
    }
}

#[test]
fn one_shard_of_two_is_not_a_model() {
    let set = Set::write(2, &[0]);
    refused(&set.path(0), &[&set.name(1), "missing"]);
}

#[test]
fn shards_joined_into_one_file_are_refused() {
    let set = Set::write(2, &[0, 1]);
    let joined = [fs::read(set.path(0)).unwrap(), fs::read(set.path(1)).unwrap()].concat();
    let elsewhere = TempDir::new().unwrap();
    let path = elsewhere.path().join("x.gguf");
    fs::write(&path, &joined).unwrap();
    refused(&path, &["x.gguf", "shard 1 of 2", "concatenation"]);
    let path = elsewhere.path().join("x-00001-of-00001.gguf");
    fs::write(&path, &joined).unwrap();
    refused(&path, &["split.count", "is 2", "must be 1"]);
    fs::remove_file(set.path(1)).unwrap();
    fs::write(set.path(0), &joined).unwrap();
    refused(&set.path(0), &[&set.name(1), "missing"]);
}

#[test]
fn a_renamed_shard_is_refused() {
    let set = Set::write(3, &[0, 1, 2]);
    let alone = TempDir::new().unwrap();
    fs::copy(set.path(1), alone.path().join("model.gguf")).unwrap();
    refused(alone.path(), &["model.gguf", "shard 2 of 3"]);
    let (one, two) = (fs::read(set.path(1)).unwrap(), fs::read(set.path(2)).unwrap());
    fs::write(set.path(1), two).unwrap();
    fs::write(set.path(2), one).unwrap();
    refused(set.folder.path(), &[&set.name(1), "split.no", "is 2", "must be 1"]);
}

#[test]
fn shards_that_contradict_each_other_are_refused() {
    let set = Set::write_with(3, &[0, 1, 2], |i, mut shard| {
        if i == 2 {
            shard.tensors.pop();
        }
        shard
    });
    refused(set.folder.path(), &["split.tensors.count"]);
    let set = Set::write_with(2, &[0, 1], |i, mut shard| {
        if i == 1 {
            shard.entries.clear();
        }
        shard
    });
    refused(set.folder.path(), &[&set.name(1), "split.count", "absent"]);
    let set = Set::write_with(2, &[0, 1], |i, mut shard| {
        if i == 1 {
            shard.tensors[0].name = "token_embd.weight".into();
        }
        shard
    });
    refused(set.folder.path(), &["token_embd.weight", &set.name(0), &set.name(1)]);
}

#[test]
fn a_set_of_one_is_a_model() {
    let set = Set::write(1, &[0]);
    load(&set.path(0));
    load(set.folder.path());
    let set = Set::write_with(1, &[0], |_, shard| {
        let n = shard.entries.len() - 3;
        File { entries: shard.entries[..n].to_vec(), ..shard }
    });
    load(&set.path(0));
}

#[test]
fn impossible_numbers_in_names_are_refused() {
    let folder = TempDir::new().unwrap();
    for name in ["m-00000-of-00002.gguf", "m-00003-of-00002.gguf", "m-00001-of-00000.gguf"] {
        let path = folder.path().join(name);
        fs::write(&path, b"GGUF").unwrap();
        refused(&path, &[name, "impossible"]);
    }
    let path = folder.path().join("m-00001-of-99999.gguf");
    fs::write(&path, b"GGUF").unwrap();
    refused(&path, &["99999", "impossible"]);
}

#[test]
fn a_folder_of_several_models_lists_them() {
    let set = Set::write(2, &[1, 0]);
    fs::write(set.folder.path().join("other.gguf"), b"GGUF").unwrap();
    fs::write(set.folder.path().join("readme.md"), b"#").unwrap();
    let error = refused(set.folder.path(), &["several models", &set.name(0), "other.gguf"]);
    assert!(!error.to_string().contains(&set.name(1)), "{error}");
    let empty = TempDir::new().unwrap();
    assert!(matches!(Gguf::open(empty.path()), Err(OpenError::EmptyFolder { .. })));
    assert!(matches!(Gguf::open(&empty.path().join("no.gguf")), Err(OpenError::Io { .. })));
}

#[cfg(unix)]
#[test]
fn a_shard_that_cannot_be_looked_for_says_why() {
    let set = Set::write(2, &[0]);
    // A link to itself: neither there nor absent.
    std::os::unix::fs::symlink(set.name(1), set.path(1)).unwrap();
    let error = refused(&set.path(0), &["find", &set.name(1)]);
    assert!(matches!(error, OpenError::Io { doing: "find", .. }), "{error:?}");
}

/// Other systems refuse to make such a file.
#[cfg(target_os = "linux")]
#[test]
fn names_that_are_not_utf_8_are_listed_and_opened() {
    use std::os::unix::ffi::OsStrExt as _;
    let folder = TempDir::new().unwrap();
    let odd = folder.path().join(std::ffi::OsStr::from_bytes(b"odd-\xff.gguf"));
    fs::write(&odd, Model::default().file().write()).unwrap();
    load(folder.path());
    fs::write(folder.path().join("other.gguf"), b"GGUF").unwrap();
    refused(folder.path(), &["several models", "odd-\u{fffd}.gguf", "other.gguf"]);
}

#[cfg(unix)]
#[test]
fn a_device_is_not_a_model() {
    assert!(matches!(Gguf::open(Path::new("/dev/zero")), Err(OpenError::NotAFile { .. })));
}

#[test]
fn the_head_may_be_in_the_last_shard() {
    let set = Set::write_with(3, &[0, 1, 2], |i, mut shard| {
        let head = |name: &str| matches!(name, "output.weight" | "output_norm.weight");
        let whole = Model::default().file();
        shard.tensors.retain(|tensor| !head(&tensor.name));
        if i == 2 {
            shard.tensors.extend(whole.tensors.into_iter().filter(|tensor| head(&tensor.name)));
        }
        shard
    });
    let (gguf, _, resident) = load(&set.path(0));
    assert_eq!(gguf.tensor("output_norm.weight").unwrap().file, 2);
    assert_eq!(resident.get("output_norm.weight").unwrap().bytes.len(), 4 * 32);
}

#[test]
fn unknown_tensors_are_a_warning_and_missing_ones_an_error() {
    let mut file = Model::default().file();
    for i in 0..10 {
        file = file.tensor(&format!("extra.{i}.weight"), &[4], vec![0; 16]);
    }
    for name in ["v.patch_embd.weight", "mm.0.weight", "mtp.fc.weight"] {
        file = file.tensor(name, &[4], vec![0; 16]);
    }
    let shape = Model::default().shape();
    let gguf = Gguf::open_bytes("memory", file.write().into()).unwrap();
    let resident = Resident::load(&shape, &gguf, ResidentMode::Mapped).unwrap();
    assert_eq!(resident.unknown().len(), 10);
    assert!(resident.unknown().iter().all(|name| name.starts_with("extra.")));

    for i in 0..file.tensors.len() {
        let mut file = Model::default().file();
        if i >= file.tensors.len() || file.tensors[i].name == "output.weight" {
            continue;
        }
        let name = file.tensors.remove(i).name;
        let gguf = Gguf::open_bytes("memory", file.write().into()).unwrap();
        let loaded = Catalog::new(&shape, &gguf).map(|_| ());
        let loaded = loaded.and_then(|()| Resident::load(&shape, &gguf, ResidentMode::Mapped).map(|_| ()));
        // The separate projections of attention may be absent, since a fused one may stand in; biases are the file's choice.
        let may_lack = [".attn_q.", ".attn_k.", ".attn_v.", ".attn_qkv.bias"];
        let may_lack = may_lack.iter().any(|part| name.contains(part));
        match loaded {
            Ok(()) => assert!(may_lack, "{name} is missing and nobody said so"),
            Err(error) => assert!(error.to_string().contains(&name), "{error} should name {name}"),
        }
    }
}
