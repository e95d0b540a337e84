//! Conversations outlive the process on disk, and a file that isn't what was written costs no more than reading anew.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::error::Error as _;
use std::fs;
use std::path::{Path, PathBuf};

use forerun_compute::{DeviceName, Rounding};
use forerun_decode::config::{CheckpointConfig, DraftChoice};
use forerun_decode::{
    BackendChoice, Batch, DecodeError, Engine, EngineConfig, PrefixConfig, PrefixDisk, PrefixWarning,
};
use forerun_model::TokenId;
use support::conversations::{alone, how, say, turn};
use support::{config, fixture};

const CANDLE: BackendChoice = BackendChoice::Candle(DeviceName::Cpu);

fn keeping(model: &Path, backend: BackendChoice, prefix_mib: u64) -> EngineConfig {
    let checkpoints = CheckpointConfig { n_max: 1, every: None, is_asked: true };
    EngineConfig { checkpoints, prefix_bytes: prefix_mib << 20, context: Some(200), ..config(model, backend) }
}

fn open(config: &EngineConfig, folder: &Path) -> Batch {
    let disk = PrefixDisk { folder: folder.to_owned(), bytes_max: 64 << 20, write_bytes_max: 256 << 20 };
    Batch::with_prefixes(Engine::open(config).unwrap(), PrefixConfig { disk: Some(disk) }).unwrap()
}

fn file(folder: &Path) -> PathBuf {
    let mut entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.find(|path| path.extension().is_some_and(|ending| ending == "prefix")).unwrap()
}

/// One conversation on disk; the prompt of its next turn.
fn left_behind(config: &EngineConfig, folder: &Path) -> Vec<TokenId> {
    let mut batch = open(config, folder);
    let first = turn(1, 90);
    let said = say(&mut batch, &first, &how(1, 8));
    batch.close();
    assert_eq!(batch.prefix_stats().disk.entries, 1);
    assert_eq!(batch.take_prefix_warnings(), []);
    [&first[..], &said.tokens, &turn(5, 6)].concat()
}

#[test]
fn a_conversation_goes_on_after_a_restart() {
    for (model, backend, draft) in [
        ("tiny-a-f32.gguf", BackendChoice::EXACT, DraftChoice::None),
        ("tiny-b-q3_k_m.gguf", BackendChoice::Cpu, DraftChoice::Ngram),
        ("pico-q4_k_m.gguf", BackendChoice::Cpu, DraftChoice::Ngram),
        ("architectures/qwen3moe-f32.gguf", BackendChoice::EXACT, DraftChoice::None),
        ("tiny-b-q3_k_m.gguf", CANDLE, DraftChoice::None),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let config = EngineConfig { draft, ..keeping(&fixture(model), backend, 8) };
        let second = left_behind(&config, folder.path());
        let mut batch = open(&config, folder.path());
        let found = say(&mut batch, &second, &how(2, 10));
        assert!(found.n_reused >= 97, "{model}: {}", found.n_reused);
        assert_eq!(found.pieces, alone(&config, &second, &how(2, 10)), "{model}");
        // A folder is one process's at a time.
        let disk =
            PrefixDisk { folder: folder.path().to_owned(), bytes_max: 64 << 20, write_bytes_max: 1 << 20 };
        let again = Batch::with_prefixes(Engine::open(&config).unwrap(), PrefixConfig { disk: Some(disk) });
        let words = again.err().map(|error| format!("{error}: {:?}", error.source())).unwrap();
        assert!(words.contains("another process keeps conversations"), "{words}");
        drop(batch);
        // From the end of the first prompt, which is in the same file.
        let mut batch = open(&config, folder.path());
        let other = [&second[..90], &turn(7, 6)].concat();
        let found = say(&mut batch, &other, &how(2, 10));
        assert!((90..92).contains(&found.n_reused), "{model}: {}", found.n_reused);
        assert_eq!(found.pieces, alone(&config, &other, &how(2, 10)), "{model}");
        let stats = batch.prefix_stats();
        assert_eq!((stats.disk.hits, stats.tokens_restored), (1, found.n_reused as u64));
        assert!(stats.disk.bytes_read > 0 && stats.disk.bytes_written == 0);
    }
}

#[test]
fn files_of_another_model_or_arithmetic_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("tiny-b-q3_k_m.gguf");
    let config = keeping(&model, BackendChoice::Cpu, 8);
    let second = left_behind(&config, folder.path());
    let copy = folder.path().join("copy.gguf");
    let mut bytes = fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&copy, bytes).unwrap();
    let kept = folder.path().join("kept");
    fs::create_dir(&kept).unwrap();
    let path = file(folder.path());
    fs::copy(&path, kept.join(path.file_name().unwrap())).unwrap();
    for other in [
        keeping(&model, BackendChoice::EXACT, 8),
        keeping(&model, BackendChoice::Reference(Rounding::LikeQuantised), 8),
        keeping(&model, CANDLE, 8),
        keeping(&copy, BackendChoice::Cpu, 8),
    ] {
        let mut batch = open(&other, &kept);
        let said = batch.take_prefix_warnings();
        assert!(matches!(said[..], [PrefixWarning::Unusable { .. }]), "{said:?}");
        assert_eq!(say(&mut batch, &second, &how(2, 3)).n_reused, 0);
        assert!(batch.prefix_stats().disk.bytes > 0, "it counts");
    }
    assert!(say(&mut open(&config, &kept), &second, &how(2, 3)).n_reused > 0, "and it is still there");
}

#[test]
fn a_damaged_file_costs_reading_anew() {
    let folder = tempfile::tempdir().unwrap();
    let config = keeping(&fixture("tiny-b-q3_k_m.gguf"), BackendChoice::Cpu, 8);
    let second = left_behind(&config, folder.path());
    let path = file(folder.path());
    let whole = fs::read(&path).unwrap();
    let want = alone(&config, &second, &how(2, 6));
    for at in (0..whole.len()).step_by(whole.len() / 24) {
        for truncates in [false, true] {
            // Damaged while it lies there, and after its header was read.
            for late in [false, true] {
                let damage = || {
                    let mut bytes = whole.clone();
                    if truncates {
                        bytes.truncate(at)
                    } else {
                        bytes[at] ^= 0x40
                    }
                    fs::write(&path, bytes).unwrap();
                };
                fs::write(&path, &whole).unwrap();
                if !late {
                    damage();
                }
                let mut batch = open(&config, folder.path());
                if late {
                    damage();
                }
                let found = say(&mut batch, &second, &how(2, 6));
                assert_eq!(found.pieces, want, "byte {at}");
                let said = batch.take_prefix_warnings();
                assert!(found.n_reused > 0 || said.len() == 1, "byte {at}: {said:?}");
                // Rows behind the state, and the other state, aren't looked at.
                assert!(found.n_reused == 0 || !truncates, "byte {at}");
                for entry in fs::read_dir(folder.path()).unwrap() {
                    fs::remove_file(entry.unwrap().path()).unwrap();
                }
            }
        }
    }
}

/// What memory has no room for is found on disk.
#[test]
fn what_memory_gives_up_is_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let config = keeping(&fixture("tiny-b-q3_k_m.gguf"), BackendChoice::Cpu, 5);
    let mut batch = open(&config, folder.path());
    let first = turn(1, 90);
    let said = say(&mut batch, &first, &how(1, 8));
    for i in 2..8 {
        say(&mut batch, &turn(i, 90), &how(1, 3));
    }
    let stats = batch.prefix_stats();
    assert!(stats.entries < 6 && stats.disk.entries > 0, "{stats:?}");
    let second = [&first[..], &said.tokens, &turn(5, 6)].concat();
    let found = say(&mut batch, &second, &how(2, 10));
    assert!(found.n_reused >= 97, "{}", found.n_reused);
    assert_eq!(found.pieces, alone(&config, &second, &how(2, 10)));
    assert_eq!(batch.prefix_stats().disk.hits, 1);
}

#[test]
fn a_folder_needs_memory_and_a_place() {
    let folder = tempfile::tempdir().unwrap();
    let disk = |folder: &Path| PrefixConfig {
        disk: Some(PrefixDisk { folder: folder.to_owned(), bytes_max: 1 << 20, write_bytes_max: 1 << 20 }),
    };
    let engine =
        |mib| Engine::open(&keeping(&fixture("tiny-b-q3_k_m.gguf"), BackendChoice::Cpu, mib)).unwrap();
    let refused = Batch::with_prefixes(engine(0), disk(folder.path())).err();
    assert!(matches!(refused, Some(DecodeError::PrefixMemory { found_bytes: 0, .. })), "{refused:?}");
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let refused = Batch::with_prefixes(engine(8), disk(&file)).err();
    assert!(matches!(refused, Some(DecodeError::PrefixFolder { .. })), "{refused:?}");
}
