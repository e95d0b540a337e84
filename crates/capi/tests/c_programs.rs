//! Programs in C against the header and the static library: the whole interface on a real model, the header in C99 and
//! C++11, and its numbers.
//!
//! `cargo xtask c-api` runs the same under sanitizers, with flags for the C compiler in `FORERUN_C_FLAGS`. Where no C compiler is,
//! the tests say so and pass.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use forerun_capi::abi::{self, Answer, Event, Message, Options, Request, Sampling};

/// What a program that links the library needs of the system, as `rustc --print native-static-libs` has it.
#[cfg(target_vendor = "apple")]
const SYSTEM_LIBRARIES: &[&str] =
    &["-framework", "CoreFoundation", "-framework", "IOKit", "-liconv", "-lSystem", "-lc", "-lm"];
#[cfg(not(target_vendor = "apple"))]
const SYSTEM_LIBRARIES: &[&str] = &["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"];

const STRICT: &[&str] = &["-Wall", "-Wextra", "-pedantic", "-Werror"];

/// The compiler `name`, unless there is none.
fn compiler(name: &str) -> Option<Command> {
    let works = Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    if !works {
        eprintln!("skipped: no `{name}` here");
        return None;
    }
    let mut compiler = Command::new(name);
    compiler.args(STRICT).arg("-I").arg(folder().join("include"));
    Some(compiler)
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compiles `source` of this folder, with `libraries`, and runs it with `args`; `None` where there is no compiler.
fn run(source: &str, libraries: &[PathBuf], args: &[PathBuf]) -> Option<String> {
    let mut compiler = compiler("cc")?;
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(source).with_extension("bin");
    let flags = env::var("FORERUN_C_FLAGS").unwrap_or_default();
    compiler.args(["-std=c99", "-g"]).args(flags.split_whitespace());
    compiler.arg(folder().join("tests").join(source)).args(libraries).args(SYSTEM_LIBRARIES);
    succeed(compiler.arg("-o").arg(&program));
    let output = succeed(Command::new(program).args(args));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[track_caller]
fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let (said, words) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{said}\n{words}", output.status);
    eprint!("{words}");
    output
}

/// The static library. Cargo builds it with the library that this test uses and puts it beside this test, with a hash in its name
/// that nobody tells; older builds may lie there too, but only a build of the same sources can be younger.
fn library() -> PathBuf {
    let test = env::current_exe().unwrap();
    let files = test.parent().unwrap().read_dir().unwrap().map(|file| file.unwrap().path());
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libforerun_capi") && name.ends_with(".a")
    };
    let age = |path: &PathBuf| path.metadata().unwrap().modified().unwrap();
    files.filter(is_ours).max_by_key(age).expect("cargo builds the static library with this test")
}

#[test]
fn the_tour_in_c() {
    let fixture = folder().join("../../fixtures/pico-q4_k_m.gguf");
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c-api-cache");
    let Some(said) = run("tour.c", &[library()], &[fixture, cache]) else { return };
    print!("{said}");
    assert!(said.ends_with("the tour is over\n"), "{said}");
}

#[test]
fn the_header_is_c99_and_cpp11() {
    // Twice, since it may be included twice.
    let source = "#include \"forerun.h\"\n#include \"forerun.h\"\n";
    check_syntax("cc", "-std=c99", "c", source);
    check_syntax("c++", "-std=c++11", "c++", source);
}

#[test]
fn the_program_of_the_document_compiles() {
    let document = fs::read_to_string(folder().join("../../docs/c-api.md")).unwrap();
    let (_, from) = document.split_once("```c\n").unwrap();
    let (program, _) = from.split_once("```").unwrap();
    check_syntax("cc", "-std=c99", "c", program);
}

fn check_syntax(name: &str, standard: &str, language: &str, source: &str) {
    let Some(mut compiler) = compiler(name) else { return };
    let mut hash = DefaultHasher::new();
    (source, language).hash(&mut hash);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("c-{:x}.txt", hash.finish()));
    fs::write(&file, source).unwrap();
    succeed(compiler.args([standard, "-fsyntax-only", "-x", language]).arg(file));
}

/// Lines as `layout.c` prints them.
macro_rules! structures {
    ($($name:literal is $type:ty { $($field:ident)* })*) => {
        [$(
            format!("{} {}", $name, size_of::<$type>()),
            $(format!("{}.{} {}", $name, stringify!($field), offset_of!($type, $field)),)*
        )*]
    };
}

macro_rules! numbers {
    ($($name:ident)*) => { [$(format!("{} {}", stringify!($name), abi::$name)),*] };
}

#[test]
fn header_and_library_have_the_same_numbers() {
    let structures = structures! {
        "options" is Options { size model memory_bytes context threads cache_folder loading user }
        "message" is Message { role content }
        "sampling" is Sampling { size seed temperature top_p min_p top_k repetition_penalty }
        "request" is Request {
            size messages n_messages prompt prompt_has_control_tokens thinking max_tokens sampling stops n_stops
        }
        "event" is Event { kind prompt_read prompt_tokens text text_bytes }
        "result" is Answer {
            size finish_reason prompt_tokens reused_tokens answer_tokens seed prompt_ms decode_ms
        }
    };
    let numbers = numbers! {
        OK ERROR_ARGUMENT ERROR_MODEL ERROR_MEMORY ERROR_CONTEXT ERROR_BUSY ERROR_CANCELLED ERROR_ENGINE ERROR_INTERNAL
        ROLE_SYSTEM ROLE_USER ROLE_ASSISTANT THINKING_DEFAULT THINKING_ON THINKING_OFF
        EVENT_PROMPT EVENT_TEXT EVENT_THOUGHT FINISH_STOP FINISH_LENGTH FINISH_CANCELLED
    };
    let expect: Vec<String> = structures.into_iter().chain(numbers).collect();
    let Some(said) = run("layout.c", &[], &[]) else { return };
    assert_eq!(said.lines().collect::<Vec<_>>(), expect);
}
