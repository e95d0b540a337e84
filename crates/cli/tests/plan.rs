//! `plan` as a user meets it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use serde_json::Value;
use support::{failure, fixture, json, output};

fn rows(said: &Value) -> Vec<(u64, f64, f64, f64)> {
    let row = |row: &Value| {
        let figure = |name: &str| row[name].as_f64().unwrap();
        let budget = row["budget_bytes"].as_u64().unwrap();
        (budget, figure("hit_rate"), figure("tokens_per_second"), figure("tokens_per_second_at_most"))
    };
    said["rows"].as_array().unwrap().iter().map(row).collect()
}

fn assumption<'a>(said: &'a Value, what: &str) -> &'a str {
    let all = said["assumed"].as_array().unwrap();
    all.iter().find(|assumption| assumption["what"] == what).unwrap()["reason"].as_str().unwrap()
}

#[test]
fn more_memory_is_never_slower_and_all_of_it_is_the_computer() {
    let said = json(&["plan", "--json", "--disk", "200MB/s", "--compute", "100"]);
    let rows = rows(&said);
    assert!(rows.len() > 4 && rows.is_sorted_by_key(|row| row.0), "{rows:?}");
    assert!(rows.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{rows:?}");
    let all = said["rows"].as_array().unwrap().iter();
    assert!(all.map(|row| row["tokens_per_second_on_demand"].as_f64().unwrap()).is_sorted(), "{said}");
    let (first, last) = (rows[0], rows[rows.len() - 1]);
    assert!(first.2 < 60.0 && (last.2 - 100.0).abs() < 1.0, "{rows:?}");
    assert!(rows.iter().all(|row| row.2 <= row.3 && row.3 <= 100.1), "{rows:?}");
    assert!(rows.iter().any(|row| row.3 > 1.02 * row.2), "looking ahead hides something: {rows:?}");
    let advice = said["advice"]["memory"].as_u64().unwrap();
    assert!(rows.iter().any(|row| row.0 == advice), "{advice}");
    assert_eq!(assumption(&said, "compute"), "as asked for");
}

#[test]
fn a_given_memory_has_its_row_and_bounds_the_advice() {
    let args = ["plan", "--json", "--disk", "ufs4", "--memory", "30MiB"];
    let said = json(&args);
    let budget = 30 << 20;
    assert!(rows(&said).iter().any(|row| row.0 == budget));
    assert!(said["advice"]["memory"].as_u64().unwrap() <= budget);
    assert!(assumption(&said, "compute").contains("threads"));
    let none = rows(&json(&["plan", "--json", "--disk", "ufs4", "--slots", "0"]));
    assert!(none.iter().all(|row| row.1 == 0.0), "{none:?}");
}

#[test]
fn a_model_of_another_shape_is_planned_and_says_so() {
    let model = fixture("tiny-b-q3_k_m.gguf");
    let trace = fixture("traces/trace-docs.json");
    let (model, trace) = (model.to_str().unwrap(), trace.to_str().unwrap());
    let said = json(&["plan", "--json", "--disk", "nvme", "--trace", trace, "-m", model]);
    let reason = assumption(&said, "routing");
    assert!(reason.contains("16 layers are stretched to the model's 4"), "{reason}");
    assert!(reason.contains("8 of 256 experts stand for"), "{reason}");
    let said = output(&["plan", "--disk", "nvme", "-m", model]);
    let text = String::from_utf8(said.stdout).unwrap();
    assert!(text.contains("slots/layer") && text.contains("\n--memory "), "{text}");
}

#[test]
fn what_a_plan_lacks_is_asked_for() {
    let model = fixture("pico-q4_k_m.gguf");
    let cache = tempfile::tempdir().unwrap();
    let said = support::forerun(&["plan", "-m", model.to_str().unwrap()])
        .env("XDG_CACHE_HOME", cache.path())
        .env("HOME", cache.path())
        .output()
        .unwrap();
    let words = String::from_utf8(said.stderr).unwrap();
    assert!(said.status.code() == Some(1) && words.contains("forerun probe -m"), "{words}");
    let (code, said) = failure(&["plan"]);
    assert!(code == 1 && said.contains("--disk"), "{said}");
    let (code, said) = failure(&["plan", "--disk", "nvme", "--memory", "1MiB"]);
    assert!(code == 1 && said.contains("too small"), "{said}");
    for args in [["--disk", "tape"], ["--compute", "0"], ["--compute", "fast"]] {
        let (code, said) = failure(&[&["plan"], &args[..]].concat());
        assert!(code == 2 && said.contains(args[1]), "{said}");
    }
}
