//! Each rule catches who breaks it, and leaves the others alone.

use super::*;

const NO_EXCEPTIONS: Rules<'static> = Rules { long_files: &[], long_functions: &[], unsafe_files: &[] };

#[track_caller]
fn check_with(rules: &Rules<'_>, path: &str, text: &str, expect: &[&str]) {
    let text = Text { path: path.to_owned(), text: text.to_owned() };
    assert_eq!(rules.violations(&[text]), expect);
}

#[track_caller]
fn check(path: &str, text: &str, expect: &[&str]) {
    check_with(&NO_EXCEPTIONS, path, text, expect);
}

fn file_of(n_lines: usize) -> String {
    "//! A file.\n".repeat(n_lines)
}

fn function_of(n_lines: usize) -> String {
    format!("//! A file.\nfn f() {{\n{}}}\n", "    1;\n".repeat(n_lines - 2))
}

#[test]
fn a_file_says_what_it_is() {
    check("a.rs", "//! A file.\nfn f() {}\n", &[]);
    check("a.rs", "fn f() {}\n", &["a.rs:1 must begin with `//!` and what the file is"]);
    check("a.md", "A text.\n", &[]);
}

#[test]
fn a_file_has_at_most_400_lines() {
    check("a.rs", &file_of(400), &[]);
    check("a.rs", &file_of(401), &["file a.rs has 401 lines, 400 may be"]);
}

#[test]
fn a_function_has_at_most_60_lines() {
    check("a.rs", &function_of(60), &[]);
    check("a.rs", &function_of(61), &["function a.rs::f has 61 lines, 60 may be"]);
}

#[test]
fn what_was_too_long_may_stay_but_not_grow() {
    let rules = Rules { long_files: &[("a.rs", 450)], ..NO_EXCEPTIONS };
    check_with(&rules, "a.rs", &file_of(450), &[]);
    check_with(&rules, "a.rs", &file_of(451), &["file a.rs has grown from 450 to 451 lines"]);
}

#[test]
fn an_exception_follows_its_file_down() {
    let rules = Rules { long_files: &[("a.rs", 450)], ..NO_EXCEPTIONS };
    let lower = "file a.rs has shrunk: lower its entry in xtask/src/tidy.rs from 450 to 449";
    check_with(&rules, "a.rs", &file_of(449), &[lower]);
    let drop = "file a.rs is short now: drop its entry in xtask/src/tidy.rs";
    check_with(&rules, "a.rs", &file_of(10), &[drop]);
    let rules = Rules { long_functions: &[("a.rs::f", 70)], ..NO_EXCEPTIONS };
    let gone = "function a.rs::f is short now: drop its entry in xtask/src/tidy.rs";
    check_with(&rules, "a.rs", &file_of(10), &[gone]);
}

#[test]
fn unsafe_code_is_opened_in_listed_files_only() {
    let text = "//! A file.\n#![expect(unsafe_code, reason = \"x\")]\n";
    check("a.rs", text, &["a.rs opens unsafe code but isn't in UNSAFE_FILES of xtask/src/tidy.rs"]);
    let rules = Rules { unsafe_files: &["a.rs"], ..NO_EXCEPTIONS };
    check_with(&rules, "a.rs", text, &[]);
    check_with(&rules, "a.rs", &file_of(1), &["a.rs is in UNSAFE_FILES but opens no unsafe code"]);
    check("a.rs", "//! Never unsafe.\n", &[]);
}

#[test]
fn undone_work_is_found_in_text_and_code() {
    let word = UNDONE[0];
    check("a.md", &format!("ok\n{word}: more\n"), &[&format!("a.md:2 says {word}: do it or drop it")]);
    check("a.md", &format!("{word}S and ma{word}\n"), &[]);
    let code = "//! A `todo!()`.\nfn f() { todo!() }\n";
    check("a.rs", code, &["a.rs:2 calls todo!: do it or return an error"]);
}

#[test]
fn paths_of_one_machine_are_found() {
    let path = MACHINE_PATHS[0];
    let expect = format!("a.toml:1 names {path}, which other machines lack");
    check("a.toml", &format!("dir = \"{path}x\"\n"), &[&expect]);
    check("a.toml", &format!("dir = \"crates{path}x\"\n"), &[]);
}

#[test]
fn layers_are_told_the_time() {
    let text = "//! A file.\nfn f() { Instant::now(); }\n";
    let expect = "crates/decode/src/step.rs:2 reads the time: take a `model::Clock`";
    check("crates/decode/src/step.rs", text, &[expect]);
    check("crates/decode/tests/long.rs", text, &[]);
    check("crates/cli/src/main.rs", text, &[]);
    check("crates/decode/src/step.rs", "//! Not `Instant::now()`.\n", &[]);
}

#[test]
fn this_checkout_is_looked_at() {
    let texts = texts().unwrap();
    assert!(texts.iter().any(|text| text.path == "xtask/src/tidy/tests.rs"));
    assert!(texts.iter().any(|text| text.path == ".ci/run"));
    assert!(texts.iter().all(|text| !text.path.ends_with(".gguf")));
}

#[test]
fn an_error_names_what_is_wrong() {
    let file = |said: &str| format!("//! A file.\n{}(\"{said}\")]\nstruct E;\n", concat!("#[er", "ror"));
    check("a.rs", &file("a slot of {bytes} bytes; at least {least} are needed"), &[]);
    check("a.rs", &file("the server is shutting down"), &[]);
    for (said, why) in
        [("no", "names neither"), ("it is {why}.", "ends with a full stop"), ("say \\\"no\\\"", "names")]
    {
        let found = NO_EXCEPTIONS.violations(&[Text { path: "a.rs".into(), text: file(said) }]);
        assert!(found.len() == 1 && found[0].contains(why) && found[0].starts_with("a.rs:2 "), "{found:?}");
    }
}

#[test]
fn plain_errors_of_the_table_exist() {
    assert!(messages::idle(std::iter::empty()).len() > 30);
    let one = format!("{}(\"the server is shutting down\")]", concat!("#[er", "ror"));
    assert_eq!(
        messages::idle([one.as_str()].into_iter()).len() + 1,
        messages::idle(std::iter::empty()).len()
    );
}
