//! Every architecture on the command line: described, and run inside the smallest budget that is named.

mod support;

use support::{failure, fixture, json};

#[test]
fn every_architecture_is_described_and_keeps_its_budget() {
    for (name, architecture, mixers) in [
        ("qwen3moe-f32.gguf", "qwen3moe", vec!["attention"; 3]),
        ("qwen2moe-f32.gguf", "qwen2moe", vec!["attention"; 3]),
        ("qwen3next-f32.gguf", "qwen3next", vec!["delta-net", "delta-net", "delta-net", "attention"]),
        ("qwen3next-ssm_in-f32.gguf", "qwen3next", vec!["delta-net", "delta-net", "delta-net", "attention"]),
    ] {
        let model = fixture(&format!("architectures/{name}"));
        let model = model.to_str().unwrap();
        let report = json(&["inspect", "--json", model]);
        assert_eq!(report["metadata"]["general.architecture"], architecture);
        let layers = report["model"]["layers"].as_array().unwrap();
        assert_eq!(layers.iter().map(|layer| layer["mixer"].as_str().unwrap()).collect::<Vec<_>>(), mixers);

        let run =
            ["run", "-m", model, "--raw", "--ctx", "256", "--max-tokens", "24", "--temp", "0", "the heron"];
        let (_, words) = failure(&[&run[..], &["--memory", "1MiB"]].concat());
        let smallest = words.split("smallest that works here is ").nth(1).unwrap();
        let smallest = smallest.split_whitespace().next().unwrap();
        let held = json(&[&run[..], &["--json", "-q", "--memory", smallest]].concat());
        let free = json(&[&run[..], &["--json", "-q"]].concat());
        assert_eq!(held["text"], free["text"], "{name}");
        assert!(held["experts_again"].as_u64().unwrap() > 0, "{name}: it must stream");
        if let Some(peak) = held["memory"]["peak"].as_u64() {
            let budget = held["memory"]["budget"].as_u64().unwrap();
            assert!(peak <= budget, "{name}: {peak} of {budget}");
        }
    }
}
