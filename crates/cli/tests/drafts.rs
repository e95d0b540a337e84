//! Drafts and checkpoints as a user meets them.

mod support;

use support::{failure, fixture, json, output, talk};

const QUESTION: &str = "Count from one to twenty in words, twice.";

/// Others measured next to no accepted drafts of heads of few bits; whoever has such a file is told.
#[test]
fn a_drafter_of_few_bits_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let source = fixture("tiny-a-f32.gguf");
    let warnings = |recipe: &str| {
        let model = folder.path().join(format!("{recipe}.gguf"));
        let (source, model) = (source.to_str().unwrap(), model.to_str().unwrap());
        json(&["quantize", source, model, "--recipe", recipe, "--json", "-q"]);
        let flags =
            ["run", "-m", model, "--raw", "--json", "-q", "-n", "4", "--temp", "0", "--draft", "mtp", "abc"];
        let report = json(&flags);
        let decisions = report["decisions"].as_array().unwrap().iter().filter(|d| d["what"] == "draft");
        let reasons = decisions.map(|d| d["reason"].as_str().unwrap().to_owned());
        reasons.filter(|reason| reason.starts_with("warning:")).collect::<Vec<_>>()
    };
    let found = warnings("q3_k_m");
    assert!(
        found.len() == 1 && found[0].contains("`blk.8.nextn.eh_proj.weight` is stored as Q3_K"),
        "{found:?}"
    );
    assert_eq!(warnings("q8_0"), [""; 0]);
}

#[test]
fn drafts_change_no_word_and_are_reported() {
    let run = |draft: &[&str]| {
        let args = ["run", "--json", "-q", "--seed", "3", "-n", "60", "--temp", "0.7"];
        json(&[&args, draft, &[QUESTION]].concat())
    };
    let plain = run(&["--draft", "none"]);
    assert_eq!((&plain["draft_tokens"], &plain["tokens_per_step"]), (&0.into(), &1.0.into()));
    assert_eq!(plain["memory"]["drafter"], 0);
    for draft in [&["--draft", "ngram", "--draft-length", "7"][..], &["--draft", "auto"], &[]] {
        let drafted = run(draft);
        assert_eq!(drafted["tokens"], plain["tokens"], "{draft:?}");
        assert!(drafted["memory"]["drafter"].as_u64().unwrap() > 0, "{draft:?}");
        let decisions = drafted["decisions"].as_array().unwrap();
        assert!(decisions.iter().any(|decision| decision["what"] == "draft length"), "{decisions:?}");
    }
}

#[test]
fn what_cannot_draft_is_named() {
    let missing = failure(&["run", "--draft", "no-such-drafter.gguf", "hi"]);
    assert!(missing.0 == 1 && missing.1.contains("no-such-drafter.gguf"), "{missing:?}");
    let none = failure(&["run", "--draft", "mtp", "hi"]);
    assert!(none.1.contains("nextn_predict_layers") && none.1.contains("ngram"), "{none:?}");
    let model = fixture("tiny-b-q3_k_m.gguf");
    let model = failure(&["run", "--draft", model.to_str().unwrap(), "hi"]);
    assert!(model.1.contains("tiny-b-q3_k_m.gguf") && model.1.contains("dflash"), "{model:?}");
    let length = failure(&["run", "--draft-length", "8", "hi"]);
    assert!(length.0 == 2 && length.1.contains("from 0 to 7"), "{length:?}");
}

#[test]
fn a_files_own_prediction_block_drafts() {
    let model = fixture("tiny-a-f32.gguf");
    let run = |draft: &str| {
        let model = model.to_str().unwrap();
        json(&[
            "run", "-m", model, "--raw", "--json", "-q", "-n", "20", "--temp", "0", "--draft", draft, "abc",
        ])
    };
    let (plain, auto) = (run("none"), run("auto"));
    assert_eq!(plain["tokens"], auto["tokens"]);
    let decisions = auto["decisions"].as_array().unwrap();
    assert!(decisions.iter().any(|d| d["what"] == "draft" && d["choice"] == "mtp"), "{decisions:?}");
}

/// A turn reads its own question and the answer before it, as the template shows it; not the conversation.
#[test]
fn a_turn_does_not_read_the_conversation_again() {
    let turns = "What does \"river\" mean?\nWhat is 27 + 45?\nSpell banana.\n";
    let reused = |args: &[&str]| {
        let said = talk(&[&["chat", "--temp", "0"], args].concat(), turns);
        let words = String::from_utf8(said.stderr).unwrap();
        let counts = words.lines().filter_map(|line| {
            let (_, rest) = line.split_once(" prompt tokens in ")?;
            Some(
                rest.split(" · ")
                    .find_map(|part| part.strip_suffix(" of them held already")?.parse::<u32>().ok()),
            )
        });
        (counts.collect::<Vec<_>>(), String::from_utf8(said.stdout).unwrap())
    };
    let (with, without) = (reused(&[]), reused(&["--checkpoints", "0"]));
    assert_eq!(with.1, without.1, "answers are the same");
    assert_eq!(without.0, [None, None, None]);
    assert!(with.0[1] > Some(5) && with.0[2] > with.0[1], "{:?}", with.0);
}

#[test]
fn a_budget_counts_the_drafter() {
    let budget = |draft: &str| {
        let args = ["run", "--memory", "40MiB", "-n", "2", "--draft", draft, "hi"];
        let words = String::from_utf8(output(&args).stderr).unwrap();
        (words.contains("\n  drafter"), words)
    };
    let (none, ngram) = (budget("none"), budget("ngram"));
    assert!(!none.0 && ngram.0, "{}", ngram.1);
}
