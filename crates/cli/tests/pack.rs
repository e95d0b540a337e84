//! `pack`, `unpack` and `verify` as a user meets them, killed and interrupted ones among them.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::Path;

use forerun_storage::Gguf;
use support::shards::Copy;
use support::{failure, fixture, json, output};

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn answer(model: &Path) -> serde_json::Value {
    let args = ["run", "-m", text(model), "--json", "-q", "-n", "24", "--temp", "0", "What is 27 + 45?"];
    json(&args)["tokens"].take()
}

#[test]
fn a_packed_model_answers_as_its_source_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("pico.gguf");
    std::fs::copy(fixture("pico-q4_k_m.gguf"), &source).unwrap();
    let report = json(&["pack", text(&source), "--json", "-q"]);
    let packed = folder.path().join("pico-packed.gguf");
    assert_eq!((&report["target"], &report["experts"]), (&text(&packed).into(), &256.into()));
    assert_eq!(report["file_bytes"].as_u64().unwrap(), std::fs::metadata(&packed).unwrap().len());
    assert_eq!(answer(&packed), answer(&source));
    let trace = format!("trace:{}", text(&fixture("traces/pico-chat.json")));
    let again = folder.path().join("again.gguf");
    let said = output(&["pack", text(&packed), text(&again), "--order", &trace]);
    let words = String::from_utf8(said.stderr).unwrap();
    assert!(said.status.success() && words.contains("runs a layer") && words.contains("wrote "), "{words}");
    assert!(said.stdout.is_empty() && !words.contains('\x1b'), "{words:?}");
    assert_eq!(answer(&again), answer(&source));
    let back = folder.path().join("back.gguf");
    json(&["unpack", text(&again), text(&back), "--json"]);
    assert!(std::fs::read(&back).unwrap() == std::fs::read(&source).unwrap());
    for (file, other) in [(&packed, &source), (&again, &packed), (&source, &again), (&back, &source)] {
        let report = json(&["verify", text(file), "--against", text(other), "--json"]);
        assert_eq!((&report["ok"], &report["experts"]), (&true.into(), &256.into()), "{report}");
    }
    assert_eq!(names(folder.path()), ["again.gguf", "back.gguf", "pico-packed.gguf", "pico.gguf"]);
}

#[test]
fn a_split_set_is_packed_by_any_shard() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fixture("tiny-b-q3_k_m.gguf");
    let shards = Copy::of(&whole).write_shards(folder.path(), 3);
    json(&["pack", text(&shards[2]), "--json"]);
    let packed = folder.path().join("m-packed.gguf");
    for other in [&whole, &shards[1]] {
        json(&["verify", text(&packed), "--against", text(other), "--json"]);
    }
    let back = folder.path().join("back.gguf");
    json(&["unpack", text(&packed), text(&back), "--json"]);
    assert!(std::fs::read(&back).unwrap() == std::fs::read(&whole).unwrap());
}

#[test]
fn a_folder_keeps_its_one_model() {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    std::fs::create_dir(&models).unwrap();
    std::fs::copy(fixture("tiny-b-q3_k_m.gguf"), models.join("m.gguf")).unwrap();
    let (code, words) = failure(&["pack", text(&models)]);
    assert!(code == 1 && words.contains("name the file to write, such as m-packed.gguf"), "{words}");
    json(&["pack", text(&models), text(&folder.path().join("p.gguf")), "--json"]);
    assert_eq!((names(&models).len(), names(folder.path()).len()), (1, 2));
}

#[test]
fn verify_names_what_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let source = fixture("tiny-b-q3_k_m.gguf");
    let packed = folder.path().join("p.gguf");
    json(&["pack", text(&source), text(&packed), "--json"]);
    let said = output(&["verify", text(&packed)]);
    assert!(said.status.success(), "{said:?}");
    assert!(String::from_utf8(said.stderr).unwrap().contains("have their checksums"));
    let said = output(&["verify", text(&source)]);
    assert!(said.status.success() && String::from_utf8(said.stderr).unwrap().contains("no checksums"));
    let mut bytes = std::fs::read(&packed).unwrap();
    let experts = Gguf::open(&packed).unwrap().tensor("blk.3.ffn_experts.packed").unwrap().offset_bytes;
    let at = usize::try_from(experts).unwrap() + 10;
    bytes[at] ^= 0x40;
    std::fs::write(&packed, &bytes).unwrap();
    let (code, words) = failure(&["verify", text(&packed)]);
    assert!(code == 1 && words.contains("layer ") && words.contains("1 differences"), "{words}");
    let (code, words) = failure(&["verify", text(&packed), "--against", text(&source)]);
    assert!(code == 1 && words.contains(&format!("byte {at} of")), "{words}");
    let said = output(&["verify", text(&packed), "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!((said.status.code(), &report["ok"]), (Some(1), &false.into()));
    assert_eq!(report["differences"].as_array().unwrap().len(), 1);
    let (code, words) = failure(&["unpack", text(&packed), text(&folder.path().join("x"))]);
    assert!(code == 1 && words.contains("is damaged"), "{words}");
    assert_eq!(names(folder.path()), ["p.gguf"]);
}

#[test]
fn targets_are_protected() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("s.gguf");
    std::fs::copy(fixture("tiny-b-q3_k_m.gguf"), &source).unwrap();
    for args in
        [vec!["pack", text(&source), text(&source)], vec!["pack", text(&source), text(&source), "--force"]]
    {
        let (code, words) = failure(&args);
        assert!(code == 1 && words.contains("is the source itself"), "{words}");
    }
    let target = folder.path().join("t.gguf");
    std::fs::write(&target, "mine").unwrap();
    let (code, words) = failure(&["pack", text(&source), text(&target)]);
    assert!(code == 1 && words.contains("--force replaces it"), "{words}");
    assert_eq!(std::fs::read(&target).unwrap(), b"mine");
    json(&["pack", text(&source), text(&target), "--force", "--json"]);
    assert_eq!(names(folder.path()), ["s.gguf", "t.gguf"]);
    let (code, _) = failure(&["pack", text(&source), "x", "--order", "random"]);
    assert_eq!(code, 2);
}

/// Ends a packing in the midst, many times, in a way of the caller's, until it is whole; how often it ended early.
#[cfg(unix)]
fn end_again_and_again(target: &Path, source: &Path, end: impl Fn(&mut std::process::Child, u64)) -> usize {
    let args = ["pack", text(source), text(target), "--checkpoint", "1MiB"];
    let (mut n_ended, mut seed) = (0, 7_u64);
    for _ in 0..60 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut child = support::forerun(&args).stderr(std::process::Stdio::null()).spawn().unwrap();
        end(&mut child, (seed >> 33) % 40);
        let status = child.wait().unwrap();
        if target.exists() {
            break;
        }
        assert!(!status.success());
        n_ended += 1;
    }
    if !target.exists() {
        assert!(output(&args).status.success());
    }
    n_ended
}

#[cfg(unix)]
fn want(folder: &Path, source: &Path) -> (std::path::PathBuf, Vec<u8>) {
    let whole = folder.join("whole.gguf");
    assert!(output(&["pack", text(source), text(&whole)]).status.success());
    let bytes = std::fs::read(&whole).unwrap();
    (folder.join("ended.gguf"), bytes)
}

#[cfg(unix)]
#[test]
fn killing_it_at_random_times_changes_nothing_in_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let source = fixture("pico-q4_k_m.gguf");
    let (target, want) = want(folder.path(), &source);
    let n_killed = end_again_and_again(&target, &source, |child, wait_ms| {
        std::thread::sleep(std::time::Duration::from_millis(wait_ms));
        child.kill().unwrap();
    });
    assert!(n_killed > 0, "no run was killed before its end");
    assert!(std::fs::read(&target).unwrap() == want, "after {n_killed} kills");
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_says_how_to_go_on() {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    let folder = tempfile::tempdir().unwrap();
    let source = fixture("pico-q4_k_m.gguf");
    let (target, want) = want(folder.path(), &source);
    let part = folder.path().join("ended.gguf.forerun-part");
    let args = ["pack", text(&source), text(&target), "--checkpoint", "64KiB"];
    let child = support::forerun(&args).stderr(std::process::Stdio::piped()).spawn().unwrap();
    while !part.exists() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
    let said = child.wait_with_output().unwrap();
    let words = String::from_utf8(said.stderr).unwrap();
    assert_eq!(said.status.code(), Some(130), "{words}");
    assert!(words.contains("the same command goes on with") && !target.exists(), "{words}");
    let said = output(&args);
    let words = String::from_utf8(said.stderr).unwrap();
    assert!(said.status.success() && words.contains("going on after"), "{words}");
    assert!(std::fs::read(&target).unwrap() == want);
    assert_eq!(names(folder.path()), ["ended.gguf", "whole.gguf"]);
}

/// A limit on the size of files stands for a full disk; the signal that comes with it is off, as a shell can arrange.
#[cfg(unix)]
#[test]
fn a_real_limit_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("t.gguf");
    let script = "trap '' XFSZ; ulimit -f 2000; exec \"$0\" pack \"$1\" \"$2\"";
    let program = env!("CARGO_BIN_EXE_forerun");
    let source = fixture("tiny-b-q3_k_m.gguf");
    let said = std::process::Command::new("sh")
        .args(["-c", script, program, text(&source), text(&target)])
        .output()
        .unwrap();
    let words = String::from_utf8(said.stderr).unwrap();
    assert!(said.status.code() == Some(1) && words.contains("a limit on file sizes"), "{words}");
    assert_eq!(names(folder.path()), [""; 0]);
}
