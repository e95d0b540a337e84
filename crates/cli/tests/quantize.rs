//! `quantize` as a user meets it, killed and interrupted runs among them.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::path::Path;

use forerun_model::QuantType;
use forerun_quantize::{Imatrix, Importance};
use forerun_storage::Gguf;
use forerun_storage::gguf::{Array, Dims, HeaderWriter, TensorSpec, Value};
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
    json(&["run", "-m", text(model), "--json", "-q", "--raw", "-n", "8", "--temp", "0", "a"])["tokens"].take()
}

#[test]
fn a_quantised_model_has_its_recipes_types_and_answers() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (fixture("tiny-a-f32.gguf"), folder.path().join("q.gguf"));
    let report = json(&["quantize", text(&source), text(&target), "--recipe", "les", "--json", "-q"]);
    let (before, after) = (Gguf::open(&source).unwrap(), Gguf::open(&target).unwrap());
    assert_eq!(report["file_bytes"].as_u64().unwrap(), std::fs::metadata(&target).unwrap().len());
    assert_eq!((&report["tensors"], &report["recipe"]), (&before.tensors().len().into(), &"les".into()));
    // Rows of 128 and 96: Q3_K falls back to Q4_0, Q4_K to Q5_0.
    let quant = |name: &str| after.tensor(name).unwrap().quant;
    assert_eq!(quant("blk.0.ffn_gate_exps.weight"), QuantType::Q4_0);
    assert_eq!(quant("token_embd.weight"), QuantType::Q5_0);
    assert_eq!(quant("blk.0.ffn_gate_inp.weight"), QuantType::F32);
    let fallbacks = report["fallbacks"].as_array().unwrap().len();
    let kept = after.metadata.value("forerun.quantize.fallbacks");
    assert!(
        matches!(kept, Some(Value::Array(Array::Text(list))) if list.len() == fallbacks && fallbacks > 50)
    );
    for (key, value) in [("general.file_type", 15), ("general.quantization_version", 2)] {
        assert_eq!(after.metadata.value(key), Some(&Value::U32(value)), "{key}");
    }
    let ours = |key: &str| key.starts_with("forerun.") || key.starts_with("general.");
    for (key, value) in before.metadata.entries().iter().filter(|entry| !ours(&entry.0)) {
        assert_eq!(format!("{:?}", after.metadata.value(key)), format!("{:?}", Some(value)), "{key}");
    }
    let order = |gguf: &Gguf| gguf.tensors().iter().map(|t| (t.name.clone(), t.dims)).collect::<Vec<_>>();
    assert_eq!(order(&before), order(&after));
    assert_eq!(answer(&target).as_array().unwrap().len(), 8);
    // Of what the recipe says in the file, the same file can be made.
    let Some(Value::Text(recipe)) = after.metadata.value("forerun.quantize.recipe") else {
        panic!("no recipe")
    };
    let (again, file) = (folder.path().join("again.gguf"), folder.path().join("r.toml"));
    std::fs::write(&file, recipe).unwrap();
    json(&["quantize", text(&source), text(&again), "--recipe", text(&file), "--json", "--threads", "3"]);
    assert!(std::fs::read(&again).unwrap() == std::fs::read(&target).unwrap());
}

#[test]
fn packed_split_and_plain_copies_hold_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let source = fixture("tiny-a-f32.gguf");
    let [plain, packed, back, joined] =
        ["plain", "packed", "back", "joined"].map(|name| folder.path().join(name));
    let recipe = ["--recipe", "q3_k_m", "--json"];
    json(&[&["quantize", text(&source), text(&plain)], &recipe[..]].concat());
    json(&[&["quantize", text(&source), text(&packed), "--pack"], &recipe[..]].concat());
    json(&["verify", text(&packed), "--against", text(&plain), "--json"]);
    json(&["verify", text(&packed), "--json"]);
    assert_eq!(answer(&packed), answer(&plain));
    json(&["unpack", text(&packed), text(&back), "--json"]);
    assert!(std::fs::read(&back).unwrap() == std::fs::read(&plain).unwrap());
    let parts = folder.path().join("parts");
    std::fs::create_dir(&parts).unwrap();
    let shards = Copy::of(&source).write_shards(&parts, 3);
    json(&[&["quantize", text(&shards[1]), text(&joined)], &recipe[..]].concat());
    assert!(std::fs::read(&joined).unwrap() == std::fs::read(&plain).unwrap());
    let (code, words) = failure(&["quantize", text(&packed), text(&folder.path().join("x")), "--requantize"]);
    assert!(code == 1 && words.contains("forerun unpack"), "{words}");
    let dry = failure(&["quantize", text(&packed), "x", "--requantize", "--dry-run"]).1;
    assert!(dry.contains("forerun unpack"), "a dry run refuses what the run does: {dry}");
    let same = failure(&["quantize", text(&source), text(&source), "--dry-run"]).1;
    assert!(same.contains("source"), "{same}");
    assert_eq!(names(folder.path()), ["back", "joined", "packed", "parts", "plain"]);
}

/// The model at `source` with one more tensor of half floats, all zero.
fn with_stray(source: &Path, name: &str, target: &Path) {
    let gguf = Gguf::open(source).unwrap();
    let mut specs: Vec<TensorSpec> = gguf.tensors().iter().map(TensorSpec::from).collect();
    let dims = Dims::new(&[32, 1]).unwrap();
    specs.push(TensorSpec { name: name.to_owned(), quant: QuantType::F16, dims });
    let header = HeaderWriter::new(gguf.metadata.entries().to_vec(), specs).unwrap();
    let mut bytes = Vec::new();
    header.write(&mut bytes).unwrap();
    bytes.resize(usize::try_from(header.file_bytes()).unwrap(), 0);
    for (idx, tensor) in gguf.tensors().iter().enumerate() {
        let at = usize::try_from(header.offset_bytes(idx)).unwrap();
        let len = usize::try_from(tensor.len_bytes).unwrap();
        gguf.read_tensor(tensor, 0, &mut bytes[at..at + len]).unwrap();
    }
    std::fs::write(target, bytes).unwrap();
}

/// A tensor of one expert beside stacked ones belongs to nobody.
#[test]
fn a_stray_expert_is_not_taken_for_one_of_the_stack() {
    let folder = tempfile::tempdir().unwrap();
    let source = fixture("tiny-a-f32.gguf");
    let [stray, packed, plain] = ["stray", "packed", "plain"].map(|name| folder.path().join(name));
    with_stray(&source, "blk.0.ffn_up.3.weight", &stray);
    json(&["quantize", text(&stray), text(&packed), "--recipe", "les", "--pack", "--json"]);
    json(&["quantize", text(&source), text(&plain), "--recipe", "les", "--json"]);
    assert_eq!(answer(&packed), answer(&plain));
}

#[test]
fn every_architecture_can_be_quantised_and_packed() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["qwen2moe", "qwen3moe", "qwen3next", "qwen3next-ssm_in"] {
        let source = fixture(&format!("architectures/{name}-f32.gguf"));
        let [plain, packed] = ["plain", "packed"].map(|form| folder.path().join(format!("{name}-{form}")));
        json(&["quantize", text(&source), text(&plain), "--json"]);
        json(&["quantize", text(&source), text(&packed), "--pack", "--json"]);
        json(&["verify", text(&packed), "--against", text(&plain), "--json"]);
        assert_eq!(answer(&packed), answer(&plain), "{name}");
    }
}

#[test]
fn a_dry_run_says_what_the_file_would_be_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (fixture("tiny-a-f32.gguf"), folder.path().join("q.gguf"));
    let said = output(&["quantize", text(&source), text(&target), "--dry-run"]);
    let table = String::from_utf8(said.stdout).unwrap();
    assert!(said.status.success() && table.contains("experts") && table.contains("Q5_0"), "{table}");
    assert!(String::from_utf8(said.stderr).unwrap().contains("tensors get another type"));
    let report = json(&["quantize", text(&source), text(&target), "--dry-run", "--json"]);
    assert_eq!(names(folder.path()), [""; 0]);
    json(&["quantize", text(&source), text(&target), "--json"]);
    let gguf = Gguf::open(&target).unwrap();
    let bytes: u64 = gguf.tensors().iter().map(|tensor| tensor.len_bytes).sum();
    assert_eq!(report["total"]["bytes_after"], bytes);
    let bits = report["experts"]["bits_per_weight"].as_f64().unwrap();
    assert!((4.0..8.6).contains(&bits), "{bits}");
}

#[test]
fn what_loses_quality_or_data_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("s.gguf");
    std::fs::copy(fixture("tiny-b-q3_k_m.gguf"), &source).unwrap();
    let target = folder.path().join("t.gguf");
    let quantise = |more: &[&str]| failure(&[&["quantize", text(&source)], more].concat()).1;
    let words = quantise(&[text(&target)]);
    assert!(words.contains("--requantize"), "{words}");
    let words = quantise(&[text(&source), "--requantize", "--force"]);
    assert!(words.contains("is the source itself"), "{words}");
    std::fs::write(&target, "mine").unwrap();
    let words = quantise(&[text(&target), "--requantize"]);
    assert!(words.contains("--force replaces it"), "{words}");
    let words = quantise(&[text(&target), "--recipe", "q5"]);
    assert!(words.contains("q4_k_m, les, q3_k_m, q8_0"), "{words}");
    let recipe = folder.path().join("r.toml");
    std::fs::write(&recipe, "default = \"Q4_K\"\n[[rule]]\ntensors = \"blk.99.*\"\ntype = \"Q6_K\"").unwrap();
    let words = quantise(&[text(&target), "--recipe", text(&recipe)]);
    assert!(words.contains("matches no tensor"), "{words}");
    assert_eq!(std::fs::read(&target).unwrap(), b"mine");
    let said = output(&["quantize", text(&source), text(&target), "--requantize", "--force"]);
    let words = String::from_utf8(said.stderr).unwrap();
    assert!(said.status.success() && words.contains("their errors add up"), "{words}");
    assert_eq!(names(folder.path()), ["r.toml", "s.gguf", "t.gguf"]);
}

#[test]
fn a_source_with_broken_values_is_named_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("s.gguf");
    let mut bytes = std::fs::read(fixture("tiny-a-f32.gguf")).unwrap();
    let gguf = Gguf::open(&fixture("tiny-a-f32.gguf")).unwrap();
    let tensor = gguf.tensor("blk.1.ffn_up_exps.weight").unwrap();
    let matrix_bytes = tensor.len_bytes / tensor.dims()[2];
    let at = usize::try_from(tensor.offset_bytes + 3 * matrix_bytes + 5 * 128 * 4).unwrap();
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&source, bytes).unwrap();
    for more in [&[][..], &["--pack"]] {
        let target = folder.path().join("t.gguf");
        let args = [&["quantize", text(&source), text(&target)], more].concat();
        let (code, words) = failure(&args);
        assert!(
            code == 1 && words.contains("row 5 of matrix 3 of blk.1.ffn_up_exps.weight holds NaN"),
            "{words}"
        );
        assert_eq!(names(folder.path()), ["s.gguf"]);
    }
}

/// Reported as ggml-org/llama.cpp 12913: what a text says of an expert that few of its tokens reached may be anything, and
/// few bits must not make nonsense of it.
#[test]
fn few_bits_and_little_knowledge_keep_a_model_sensible() {
    let folder = tempfile::tempdir().unwrap();
    let [recipe, known, target, words] =
        ["r.toml", "imatrix", "q.gguf", "t.txt"].map(|name| folder.path().join(name));
    let rule = "base = \"q4_k_m\"\n[[rule]]\ntensors = \"blk.*_exps.weight\"\ntype = \"Q2_K\"\n";
    std::fs::write(&recipe, rule).unwrap();
    std::fs::write(&words, &std::fs::read(fixture("heldout.txt")).unwrap()[..6000]).unwrap();
    // One token for each expert, and none for one of them: squares of numbers that have nothing to do with the model.
    let (mut imatrix, mut state) = (Imatrix::default(), 1_u32);
    let mut square = || {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(state >> 8) / f64::from(1 << 24) - 0.5
        };
        #[expect(clippy::cast_possible_truncation, reason = "a sum of squares, as f32")]
        let square = (0..6).map(|_| next()).sum::<f64>().powi(2) as f32;
        square
    };
    for name in (0..8).flat_map(|l| ["gate", "up", "down"].map(|p| format!("blk.{l}.ffn_{p}_exps.weight"))) {
        let sums = (0..32 * 256).map(|_| square()).collect();
        let counts = (0..32).map(|expert| if expert == 9 { 0.0 } else { 1.0 }).collect();
        imatrix.insert(name.clone(), Importance::new(&name, 256, sums, counts).unwrap());
    }
    imatrix.write(&known).unwrap();
    let source = fixture("pico-q4_k_m.gguf");
    let args =
        ["quantize", text(&source), text(&target), "--recipe", text(&recipe), "--imatrix", text(&known)];
    let report = json(&[&args[..], &["--requantize", "--json", "-q"]].concat());
    assert_eq!(report["unseen"].as_array().unwrap().len(), 24);
    let perplexity = |model: &Path| {
        let args = ["perplexity", "-m", text(model), text(&words), "--json", "-q", "--ctx", "256"];
        json(&args)["perplexity"].as_f64().unwrap()
    };
    let (before, after) = (perplexity(&source), perplexity(&target));
    // 1.3 times was measured; what talks nonsense is far beyond.
    assert!(after < 1.6 * before, "{before} before, {after} after");
}

/// Ended many times in the midst, plain or packed, the file is the same in the end, and never there before.
#[cfg(unix)]
#[test]
fn killing_it_at_random_times_changes_nothing_in_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let (source, whole) = (fixture("tiny-a-f32.gguf"), folder.path().join("whole.gguf"));
    for more in [&[][..], &["--pack"]] {
        let to = |target| [&["quantize", text(&source), target, "--checkpoint", "128KiB"], more].concat();
        assert!(output(&to(text(&whole))).status.success());
        let target = folder.path().join(format!("ended{}.gguf", more.len()));
        let args = to(text(&target));
        let (mut n_killed, mut seed) = (0, 7_u64);
        for _ in 0..40 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mut child = support::forerun(&args).stderr(std::process::Stdio::null()).spawn().unwrap();
            std::thread::sleep(std::time::Duration::from_millis((seed >> 33) % 60));
            child.kill().unwrap();
            child.wait().unwrap();
            if target.exists() {
                break;
            }
            n_killed += 1;
        }
        assert!(n_killed > 0, "no run was killed before its end");
        if !target.exists() {
            assert!(output(&args).status.success());
        }
        assert!(std::fs::read(&target).unwrap() == std::fs::read(&whole).unwrap(), "after {n_killed} kills");
        std::fs::remove_file(&whole).unwrap();
    }
    assert_eq!(names(folder.path()), ["ended0.gguf", "ended1.gguf"]);
}

/// Other types are no part of what an interrupted run left.
#[cfg(unix)]
#[test]
fn an_interrupted_run_goes_on_with_the_same_recipe_only() {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (fixture("tiny-a-f32.gguf"), folder.path().join("t.gguf"));
    let part = folder.path().join("t.gguf.forerun-part");
    let args = ["quantize", text(&source), text(&target), "--checkpoint", "16KiB"];
    let child = support::forerun(&args).stderr(std::process::Stdio::piped()).spawn().unwrap();
    while !part.exists() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
    let said = child.wait_with_output().unwrap();
    let words = String::from_utf8(said.stderr).unwrap();
    assert_eq!(said.status.code(), Some(130), "{words}");
    assert!(words.contains("the same command goes on with") && !target.exists(), "{words}");
    let saved = std::fs::read(&part).unwrap();
    let journal = folder.path().join("t.gguf.forerun-journal");
    let noted = std::fs::read(&journal).unwrap();
    let said = output(&[&args[..], &["--recipe", "q8_0"]].concat());
    let words = String::from_utf8(said.stderr).unwrap();
    assert!(said.status.success() && !words.contains("going on after"), "{words}");
    std::fs::remove_file(&target).unwrap();
    std::fs::write(&part, saved).unwrap();
    std::fs::write(&journal, noted).unwrap();
    let said = output(&args);
    let words = String::from_utf8(said.stderr).unwrap();
    assert!(said.status.success() && words.contains("going on after"), "{words}");
    assert_eq!(names(folder.path()), ["t.gguf"]);
}

#[test]
fn types_are_chosen_for_a_size() {
    let folder = tempfile::tempdir().unwrap();
    let source = fixture("tiny-a-f32.gguf");
    let [matrix, les, auto, packed] =
        ["i.gguf", "les", "auto", "packed"].map(|name| folder.path().join(name));
    let words = folder.path().join("words.txt");
    std::fs::write(&words, "the quick brown fox jumps over the lazy dog ".repeat(60)).unwrap();
    json(&["imatrix", text(&source), text(&words), "-o", text(&matrix), "--ctx", "64", "--json"]);
    let size =
        json(&["quantize", text(&source), text(&les), "--recipe", "les", "--json"])["file_bytes"].clone();
    let wish = ["--recipe", "auto", "--imatrix", text(&matrix), "--json", "--target-bytes"];
    for (target, more) in [(&auto, None), (&packed, Some("--pack"))] {
        let bytes = size.as_u64().unwrap() * if more.is_some() { 3 } else { 1 };
        let bytes = bytes.to_string();
        let args: Vec<&str> = ["quantize", text(&source), text(target)]
            .into_iter()
            .chain(wish)
            .chain([bytes.as_str()])
            .chain(more)
            .collect();
        let report = json(&args);
        assert!(report["file_bytes"].as_u64().unwrap() <= bytes.parse().unwrap(), "{report}");
        assert_eq!(report["recipe"], "auto");
        // The type with the most bytes, not that of the mixture which no tensor got.
        let most = &report["types"][0]["type"];
        let quant = QuantType::all().find(|quant| *most == quant.name()).unwrap();
        let number = forerun_quantize::Mixture::All(quant).file_type();
        let gguf = Gguf::open(target).unwrap();
        assert_eq!(gguf.metadata.value("general.file_type"), Some(&Value::U32(number)), "{most}");
        assert!(gguf.metadata.value("quantize.imatrix.file").is_some());
        assert_eq!(answer(target).as_array().unwrap().len(), 8);
    }
    // What made the source says nothing of a copy that was made without it.
    let again = folder.path().join("again");
    json(&["quantize", text(&auto), text(&again), "--recipe", "q8_0", "--requantize", "--json"]);
    let gguf = Gguf::open(&again).unwrap();
    let keys: Vec<_> = gguf.metadata.entries().iter().map(|entry| entry.0.as_str()).collect();
    let stale = ["quantize.imatrix.file", "forerun.quantize.imatrix", "forerun.quantize.fallbacks"];
    assert!(stale.iter().all(|key| !keys.contains(key)), "{keys:?}");
    let start = ["quantize", text(&source), "x.gguf", "--recipe"];
    let small = [&start[..], &["auto", "--imatrix", text(&matrix), "--target-bytes", "9"]].concat();
    for (args, words) in [
        (small, "with the smallest types it has"),
        ([&start[..], &["auto", "--target-bytes", "1GB"]].concat(), "needs --imatrix"),
        ([&start[..], &["auto", "--imatrix", text(&matrix)]].concat(), "needs --target-bytes"),
        ([&start[..], &["les", "--target-bytes", "1GB"]].concat(), "goes with --recipe auto"),
    ] {
        let (_, found) = failure(&args);
        assert!(found.contains(words), "{args:?}: {found}");
    }
}
