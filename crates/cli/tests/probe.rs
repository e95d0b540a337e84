//! `forerun probe`: figures and reasons, kept for later.

mod support;

use std::fs;

use serde_json::Value;
use support::{failure, fixture, forerun, json, output};

#[test]
fn the_embedded_model_has_no_disk() {
    let said = output(&["probe"]);
    assert!(said.status.success() && String::from_utf8_lossy(&said.stdout).contains("no disk"));
    let report = json(&["probe", "--json"]);
    assert!(report["device"].is_null() && report["reason"].as_str().unwrap().contains("no disk"));
}

#[test]
fn a_file_is_measured_and_the_result_is_kept() {
    let model = fixture("tiny-b-q3_k_m.gguf");
    let caches = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| {
        let mut command = forerun(&["probe", "-m", model.to_str().unwrap()]);
        let said = command.args(more).env("XDG_CACHE_HOME", caches.path()).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        said.stdout
    };
    let n_kept = || fs::read_dir(caches.path().join("forerun")).map_or(0, Iterator::count);
    let report: Value = serde_json::from_slice(&run(&["--json", "--no-cache"])).unwrap();
    assert_eq!(n_kept(), 0);
    let reasons = report["choice"]["reasons"].as_array().unwrap();
    let whats: Vec<&str> = reasons.iter().map(|reason| reason["what"].as_str().unwrap()).collect();
    assert_eq!(whats, ["io", "page cache", "depth", "gap", "merged read"]);
    assert!(reasons.iter().all(|reason| !reason["reason"].as_str().unwrap().is_empty()));
    assert!(report["took_ms"].as_f64().unwrap() > 0.0 && report["record_bytes"].as_u64().unwrap() > 0);
    run(&["--json", "--disk-limit", "50MB/s", "--record", "16KiB"]);
    assert_eq!(n_kept(), 0, "what a limited disk gives is not what the disk gives");
    let table = String::from_utf8(run(&[])).unwrap();
    assert!(table.contains("tiny-b-q3_k_m.gguf") && table.contains("merged read"), "{table}");
    if report["device"]["id"] == "" {
        return eprintln!("skipped: this system doesn't name disks");
    }
    assert_eq!(n_kept(), 1);
}

#[test]
fn wrong_arguments_are_refused() {
    let (code, words) = failure(&["probe", "--disk-limit", "fast"]);
    assert!(code == 2 && words.contains("1GB/s"), "{words}");
    let (code, words) = failure(&["probe", "no/such/model.gguf"]);
    assert!(code == 1 && words.contains("no/such/model.gguf"), "{words}");
}
