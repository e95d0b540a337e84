//! `run`, `chat` and `inspect` as a user meets them.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use support::{failure, fixture, json, output, talk};

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn the_embedded_model_answers_every_prompt() {
    let prompts: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(fixture("prompts.json")).unwrap()).unwrap();
    let prompts = prompts["prompts"].as_array().unwrap();
    assert_eq!(prompts.len(), 20);
    for case in prompts {
        let prompt = case["prompt"].as_str().unwrap();
        let answer = json(&["run", "--temp", "0", "--thinking", "off", "--json", "-q", "-n", "160", prompt]);
        let answer = answer["text"].as_str().unwrap();
        if let Some(expect) = case["expect"].as_str() {
            assert!(answer.contains(expect), "{prompt:?}: {answer:?} should hold {expect:?}");
        }
        assert!(!answer.trim().is_empty(), "{prompt:?}");
    }
}

#[test]
fn the_answer_goes_to_stdout_and_the_rest_to_stderr() {
    let output = output(&["run", "What is the capital of Japan?"]);
    assert!(output.status.success());
    assert_eq!(text(&output.stdout), "The capital of Japan is Tokyo.\n");
    let words = text(&output.stderr);
    assert!(words.contains("forerun: io: memory (") && words.contains("tok/s"), "{words}");
    assert!(!words.contains('\x1b'), "a pipe gets no colours: {words:?}");
}

#[test]
fn quiet_says_nothing_else() {
    let output = output(&["run", "-q", "-p", "What is 27 + 45?"]);
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("27 + 45 = 72.\n", ""));
}

#[test]
fn a_prompt_can_come_from_standard_input() {
    let output = talk(&["run", "-q"], "Spell banana.");
    assert!(text(&output.stdout).contains("b-a-n-a-n-a"));
}

#[test]
fn an_absurd_prompt_is_refused_before_it_is_tokenised() {
    let output = talk(&["run", "-q"], &"abc ".repeat(4 << 20));
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("bytes or more"), "{}", text(&output.stderr));
}

#[test]
fn thoughts_are_kept_apart() {
    let answer = json(&["run", "--thinking", "on", "--json", "-q", "What is 27 + 45?"]);
    assert_eq!(answer["text"], "27 + 45 = 72.");
    assert_eq!(answer["thoughts"], "27 + 40 = 67, and 67 + 5 = 72.");
}

#[test]
fn json_has_the_telemetry_of_the_run() {
    let model = fixture("pico-q4_k_m.gguf");
    let args = [
        "run",
        "-m",
        model.to_str().unwrap(),
        "--slots",
        "2",
        "--json",
        "-q",
        "-n",
        "5",
        "Count from 5 to 12.",
    ];
    let answer = json(&args);
    assert_eq!(answer["finish_reason"], "length");
    assert_eq!(answer["tokens"].as_array().unwrap().len(), 5);
    assert_eq!(answer["decode_tokens"], 5);
    assert_eq!(answer["memory"]["budget"], serde_json::Value::Null);
    for field in ["prompt_tokens", "bytes_demand", "reads", "experts_again"] {
        assert!(answer[field].as_u64().unwrap() > 0, "{field}");
    }
    for field in ["prompt_ms", "decode_ms", "tokens_per_second", "compute_ms"] {
        assert!(answer[field].as_f64().unwrap() > 0.0, "{field}");
    }
    assert!((0.0..1.0).contains(&answer["hit_rate"].as_f64().unwrap()));
    let loop_ms = answer["prompt_ms"].as_f64().unwrap() + answer["decode_ms"].as_f64().unwrap();
    let parts_ms = answer["stall_ms"].as_f64().unwrap() + answer["compute_ms"].as_f64().unwrap();
    assert!((loop_ms - parts_ms).abs() < 1.0, "{loop_ms} {parts_ms}");
    for decision in answer["decisions"].as_array().unwrap() {
        assert!(decision["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{decision}");
    }
}

#[test]
fn seeds_repeat_and_differ() {
    let run = |seed| {
        json(&["run", "--temp", "1.5", "--seed", seed, "--json", "-q", "-n", "40", "Tell me a story."])
    };
    let [a, b, c] = ["7", "7", "8"].map(run);
    assert_eq!(a["tokens"], b["tokens"]);
    assert_ne!(a["tokens"], c["tokens"]);
}

#[test]
fn stop_texts_end_the_answer() {
    let answer = json(&["run", "--json", "-q", "--stop", ", 8", "Count from 5 to 12."]);
    assert_eq!((&answer["text"], &answer["finish_reason"]), (&"5, 6, 7".into(), &"stop".into()));
}

#[test]
fn special_tokens_are_text_unless_raw() {
    let count = |args: &[&str]| json(args)["prompt_tokens"].as_u64().unwrap();
    let raw = count(&["run", "--raw", "--json", "-q", "-n", "1", "<|im_start|>"]);
    assert_eq!(raw, 1);
    let plain = count(&["run", "--json", "-q", "-n", "1", "a"]);
    let injected = count(&["run", "--json", "-q", "-n", "1", "a<|im_end|>"]);
    assert!(injected > plain + 3, "{injected} {plain}");
}

#[test]
fn bad_input_is_named_and_coded() {
    let missing = fixture("no-such-file.gguf");
    let (code, words) = failure(&["run", "-m", missing.to_str().unwrap(), "x"]);
    assert!(code == 1 && words.contains("no-such-file.gguf"), "{words}");
    let no_model = fixture("prompts.json");
    let (code, words) = failure(&["run", "-m", no_model.to_str().unwrap(), "x"]);
    assert!(code == 1 && words.contains("prompts.json"), "{words}");
    for (args, name) in [
        (["run", "--memory", "lots", "x"], "lots"),
        (["run", "--slots", "-1", "x"], "-1"),
        (["run", "--io", "floppy", "x"], "floppy"),
        (["run", "--threads", "0", "x"], "0"),
        (["run", "--ctx", "0", "x"], "0"),
        (["run", "--temp", "-1", "x"], "0 to 100"),
        (["run", "--temp", "NaN", "x"], "0 to 100"),
        (["run", "--top-p", "2", "x"], "at most 1"),
        (["run", "--stop", "", "x"], "--stop"),
        (["run", "--no-such-flag", "x", "y"], "--no-such-flag"),
    ] {
        let (code, words) = failure(&args);
        assert!(code == 2 && words.contains(name), "{args:?}: {code} {words}");
    }
    for (args, name) in [
        (["run", "--ctx", "999999", "x"], "1 to 2048"),
        (["run", "--io", "mmap", "x"], "inside the program"),
        (["run", "--ctx", "16", "one two three four"], "the context holds 16"),
    ] {
        let (code, words) = failure(&args);
        assert!(code == 1 && words.contains(name), "{args:?}: {code} {words}");
    }
}

#[test]
fn a_chat_remembers_what_was_said() {
    let output = talk(&["chat"], "My name is Tom.\nWhat is my name?\n/reset\nWhat is 27 + 45?\n/exit\n");
    assert!(output.status.success());
    let answers: Vec<_> = text(&output.stdout).lines().collect();
    assert!(answers.len() >= 3, "{answers:?}");
    assert!(answers[1].contains("Tom"), "{answers:?}");
    assert!(answers[2].contains("72"), "{answers:?}");
}

#[test]
fn a_chat_drops_its_oldest_turns_and_says_so() {
    let question = "Count from 5 to 12.\n".repeat(12);
    let output = talk(&["chat", "--ctx", "256"], &question);
    assert!(output.status.success());
    assert!(text(&output.stderr).contains("oldest messages were dropped"), "{}", text(&output.stderr));
    let answers = text(&output.stdout).lines().filter(|line| line.contains("5, 6, 7, 8, 9")).count();
    assert!(answers >= 11, "{}", text(&output.stdout));
}

#[test]
fn a_question_that_is_too_long_costs_nothing_else() {
    let long = "word ".repeat(400);
    let input = format!("My name is Tom.\n{long}\nWhat is my name?\n");
    let output = talk(&["chat", "--ctx", "256"], &input);
    assert!(text(&output.stderr).contains("the context holds 256"), "{}", text(&output.stderr));
    let answers: Vec<_> = text(&output.stdout).lines().collect();
    assert!(answers.len() == 2 && answers[1].contains("Tom"), "{answers:?}");
}

#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_is_no_failure() {
    use std::process::Stdio;
    let mut child = support::forerun(&["run", "What is the capital of Japan?"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    assert_eq!(text(&output.stdout), "The capital of Japan is Tokyo.\n");
}

#[cfg(unix)]
#[test]
fn an_idle_chat_ends_when_the_system_asks() {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    let mut child = support::forerun(&["chat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut words = BufReader::new(child.stderr.take().unwrap()).lines();
    while !words.next().unwrap().unwrap().contains("/reset") {}
    // The prompt follows; a request before it would be forgotten only if the program lost it.
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGTERM).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    let _ = kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn inspect_describes_a_model() {
    let model = fixture("tiny-b-q3_k_m.gguf");
    let report = json(&["inspect", "--json", model.to_str().unwrap()]);
    assert_eq!(report["metadata"]["general.architecture"], "qwen35moe");
    assert_eq!(report["tensors"].as_array().unwrap().len(), 76);
    let layers = report["model"]["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 4);
    assert_eq!(layers[3]["mixer"], "attention");
    assert_eq!(layers[0]["expert_record_bytes"], 186_368);
    let total: u64 = layers.iter().map(|l| l["expert_bytes"].as_u64().unwrap()).sum();
    assert_eq!(report["model"]["expert_bytes"].as_u64().unwrap(), total);
    let people = output(&["inspect", "--tensors"]);
    let people = text(&people.stdout);
    for words in ["qwen35moe", "blk.7.ffn_down_exps.weight", "8 layers of 32 experts", "Q4_K"] {
        assert!(people.contains(words), "{words} in {people}");
    }
}

#[test]
fn shells_and_manuals_know_every_command_and_flag() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = output(&["completions", shell]);
        assert!(script.status.success());
        for word in ["perplexity", "touch-slots", "prefix-cache"] {
            assert!(text(&script.stdout).contains(word), "{shell}: {word}");
        }
    }
    let page = output(&["man"]);
    assert!(text(&page.stdout).contains("forerun\\-perplexity(1)"), "{}", text(&page.stdout));
    let page = output(&["man", "serve"]);
    assert!(text(&page.stdout).starts_with(".ie") && text(&page.stdout).contains("prefix\\-cache"));
    let (code, words) = failure(&["man", "embeddings"]);
    assert_eq!(code, 1);
    assert!(words.contains("there is no command `embeddings`; there are run, chat"), "{words}");
}

#[test]
fn flags_of_other_programs_are_refused_by_name() {
    for (flags, words) in [
        (&["--lora", "a.gguf"][..], "'--lora'"),
        (&["--mmproj", "a.gguf"], "'--mmproj'"),
        (&["-ngl", "99"], "there is no -ngl"),
    ] {
        let (code, said) = failure(&[&["run", "-q", "-p", "Hi"], flags].concat());
        assert_eq!(code, 2);
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn a_device_is_for_candle_alone() {
    let wrong = output(&["run", "-q", "--device", "cpu", "hello"]);
    let words = text(&wrong.stderr);
    assert_eq!(wrong.status.code(), Some(2), "{words}");
    assert!(words.contains("'--device cpu' is for '--backend candle'"), "{words}");
    let unknown = output(&["run", "-q", "--backend", "candle", "--device", "tpu", "hello"]);
    let words = text(&unknown.stderr);
    assert_eq!(unknown.status.code(), Some(2), "{words}");
    assert!(words.contains("`tpu` names no device"), "{words}");
    let missing = output(&["run", "-q", "--backend", "candle", "--device", "cuda:99", "hello"]);
    let words = text(&missing.stderr);
    assert_eq!(missing.status.code(), Some(1), "{words}");
    assert!(words.contains("device cuda:99 can't be used"), "{words}");
}
