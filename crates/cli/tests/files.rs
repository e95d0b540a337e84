//! Files as people have them: split, with tensors that nobody expected, or without one that is needed.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::Path;

use support::shards::Copy;
use support::{failure, fixture, json, output};

fn answer(model: &Path) -> serde_json::Value {
    json(&["run", "-m", model.to_str().unwrap(), "--raw", "--json", "-q", "-n", "12", "Hello world"])["tokens"].take()
}

#[test]
fn a_split_model_answers_by_any_shard_and_by_its_folder() {
    let whole = fixture("tiny-b-q3_k_m.gguf");
    let folder = tempfile::tempdir().unwrap();
    let shards = Copy::of(&whole).write_shards(folder.path(), 3);
    let want = answer(&whole);
    assert_eq!(want.as_array().unwrap().len(), 12);
    for path in shards.iter().map(|path| path.as_path()).chain([folder.path()]) {
        assert_eq!(answer(path), want, "{}", path.display());
        let report = json(&["inspect", "--json", path.to_str().unwrap()]);
        assert_eq!(report["files"].as_array().unwrap().len(), 3);
        assert_eq!(report["tensors"].as_array().unwrap().len(), 76);
    }
    std::fs::remove_file(&shards[1]).unwrap();
    for command in ["run", "inspect"] {
        let (code, words) = failure(&[command, "-m", shards[0].to_str().unwrap()]);
        assert!(code == 1 && words.contains("m-00002-of-00003.gguf is missing"), "{words}");
    }
}

#[test]
fn a_set_of_one_answers() {
    let whole = fixture("tiny-b-q3_k_m.gguf");
    let folder = tempfile::tempdir().unwrap();
    let shards = Copy::of(&whole).write_shards(folder.path(), 1);
    assert_eq!(answer(&shards[0]), answer(&whole));
}

#[test]
fn unknown_tensors_are_a_warning() {
    let whole = fixture("tiny-b-q3_k_m.gguf");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("more.gguf");
    Copy::of(&whole).write_with(&path, &[], 10);
    assert_eq!(answer(&path), answer(&whole));
    let output = output(&["run", "-m", path.to_str().unwrap(), "--raw", "-n", "1", "Hello"]);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("warning: 10 tensors of the file are not used, such as `surprise."), "{words}");
}

#[test]
fn a_missing_tensor_is_named() {
    let copy = Copy::of(&fixture("tiny-b-q3_k_m.gguf"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("less.gguf");
    for name in [
        "token_embd.weight",
        "output_norm.weight",
        "blk.3.attn_q.weight",
        "blk.3.attn_k.weight",
        "blk.3.attn_v.weight",
        "blk.0.attn_qkv.weight",
        "blk.0.ssm_conv1d.weight",
        "blk.2.ffn_up_exps.weight",
        "blk.1.ffn_gate_inp_shexp.weight",
    ] {
        copy.write_with(&path, &[name], 0);
        let (code, words) = failure(&["run", "-m", path.to_str().unwrap(), "--raw", "-q", "x"]);
        assert!(code == 1 && words.contains(&format!("`{name}`")), "{name}: {words}");
    }
}
