//! Flags of `serve` from the environment and from a file.
//!
//! Both are made into flags before clap parses them, so that every flag has them, with the same names and the same checks: a
//! variable through clap's own support, a line of the file by being appended to the arguments, unless a flag or a variable
//! said the same thing.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};
use toml::Value;

use crate::args::Args;

/// The command whose flags may come from elsewhere.
const COMMAND: &str = "serve";
/// What an environment variable's name begins with.
const PREFIX: &str = "FORERUN_";
/// Flags that make no sense in a file.
const NOT_IN_FILES: &[&str] = &["config", "help"];

/// The program's arguments; says what is wrong with them, and ends the program, if they are.
pub(crate) fn parse() -> Args {
    let args: Vec<OsString> = std::env::args_os().collect();
    match matches(command(), args) {
        Ok(matches) => Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()),
        Err(Wrong::Arguments(error)) => error.exit(),
        Err(Wrong::File(error)) => command().error(clap::error::ErrorKind::Io, error).exit(),
    }
}

/// What is wrong.
#[derive(Debug)]
enum Wrong {
    Arguments(clap::Error),
    File(FileError),
}

/// A configuration file that says nothing useful.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("can't read the configuration {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the configuration {} is not TOML: {source}", path.display())]
    Syntax { path: PathBuf, source: Box<toml::de::Error> },
    #[error("the configuration {} has a line `{key}`, which is no flag of `serve`", path.display())]
    UnknownKey { path: PathBuf, key: String },
    #[error("the configuration {} says that `{key}` is {found}; it must be {right}", path.display())]
    Type { path: PathBuf, key: String, found: String, right: &'static str },
    #[error("the configuration {}: {reason}", path.display())]
    Value { path: PathBuf, reason: String },
}

/// The command line, with an environment variable for every flag of [`COMMAND`].
fn command() -> Command {
    Args::command().mut_subcommand(COMMAND, |command| {
        command.mut_args(|arg| match arg.get_long() {
            Some(long) if long != "help" => {
                // As many as there are flags, once.
                let name: &'static str = format!("{PREFIX}{}", long.to_uppercase().replace('-', "_")).leak();
                arg.env(name)
            }
            _ => arg,
        })
    })
}

fn matches(command: Command, mut args: Vec<OsString>) -> Result<ArgMatches, Wrong> {
    let matches = command.clone().try_get_matches_from(&args).map_err(Wrong::Arguments)?;
    let Some((COMMAND, chosen)) = matches.subcommand() else { return Ok(matches) };
    let Some(path) = chosen.get_one::<PathBuf>("config") else { return Ok(matches) };
    let more = from_file(path, &command, chosen).map_err(Wrong::File)?;
    args.extend(more);
    command.try_get_matches_from(&args).map_err(|error| {
        let words = error.render().to_string();
        let reason = words.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Wrong::File(FileError::Value { path: path.clone(), reason })
    })
}

/// The file's lines as arguments, but for those that were given otherwise.
fn from_file(path: &PathBuf, command: &Command, given: &ArgMatches) -> Result<Vec<OsString>, FileError> {
    let text = fs::read_to_string(path).map_err(|source| FileError::Read { path: path.clone(), source })?;
    let table: toml::Table =
        text.parse().map_err(|source| FileError::Syntax { path: path.clone(), source: Box::new(source) })?;
    let serve = command.find_subcommand(COMMAND);
    let mut args = Vec::new();
    for (key, value) in table {
        let flag = serve.and_then(|serve| {
            serve.get_arguments().find(|arg| arg.get_long().is_some_and(|long| long == key.replace('_', "-")))
        });
        let Some(flag) = flag.filter(|_| !NOT_IN_FILES.contains(&&*key)) else {
            return Err(FileError::UnknownKey { path: path.clone(), key });
        };
        let source = given.value_source(flag.get_id().as_str());
        if matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
            continue;
        }
        let wrong =
            |right| FileError::Type { path: path.clone(), key: key.clone(), found: value.to_string(), right };
        args.extend(as_args(flag, &value).map_err(wrong)?);
    }
    Ok(args)
}

/// A line as arguments, or what it must be.
fn as_args(flag: &Arg, value: &Value) -> Result<Vec<OsString>, &'static str> {
    let long = flag.get_long().unwrap_or_default();
    let takes_value = flag.get_action().takes_values();
    if !takes_value {
        return match value {
            Value::Boolean(true) => Ok(vec![format!("--{long}").into()]),
            Value::Boolean(false) => Ok(Vec::new()),
            _ => Err("true or false"),
        };
    }
    let one = |value: &Value| match value {
        Value::String(text) => Ok(OsString::from(format!("--{long}={text}"))),
        Value::Integer(number) => Ok(format!("--{long}={number}").into()),
        Value::Float(number) => Ok(format!("--{long}={number}").into()),
        _ => Err("a string or a number"),
    };
    match value {
        Value::Array(list) if matches!(flag.get_action(), clap::ArgAction::Append) => {
            list.iter().map(one).collect()
        }
        other => Ok(vec![one(other)?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of `--port`, of `--stop` and of `--quiet`, or the error.
    fn check(file: &str, args: &[&str]) -> Result<(u16, Vec<String>, bool), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("serve.toml");
        fs::write(&path, file).unwrap();
        let mut all: Vec<OsString> = vec!["forerun".into(), "serve".into(), "--config".into(), path.into()];
        all.extend(args.iter().map(OsString::from));
        let matches = matches(command(), all).map_err(|wrong| match wrong {
            Wrong::Arguments(error) => error.to_string(),
            Wrong::File(error) => error.to_string(),
        })?;
        let serve = matches.subcommand().unwrap().1;
        let stops = serve.get_many::<String>("stop").unwrap_or_default().cloned().collect();
        Ok((*serve.get_one("port").unwrap(), stops, serve.get_flag("quiet")))
    }

    #[test]
    fn a_flag_counts_before_the_file_and_that_before_the_default() {
        assert_eq!(check("", &[]), Ok((8080, vec![], false)));
        assert_eq!(check("port = 9000\nquiet = true", &[]), Ok((9000, vec![], true)));
        assert_eq!(check("port = 9000\nquiet = false", &["--port", "7"]), Ok((7, vec![], false)));
        assert_eq!(check("stop = ['a', 'b']", &[]), Ok((8080, vec!["a".into(), "b".into()], false)));
        assert_eq!(check("stop = 'a'", &["--stop", "c"]), Ok((8080, vec!["c".into()], false)));
    }

    #[test]
    fn errors_name_the_file_and_the_line() {
        let error = check("prot = 1", &[]).unwrap_err();
        assert!(error.contains("serve.toml") && error.contains("`prot`, which is no flag"), "{error}");
        let error = check("port = 70000", &[]).unwrap_err();
        assert!(error.contains("serve.toml") && error.contains("--port"), "{error}");
        let error = check("port = true", &[]).unwrap_err();
        assert!(error.contains("`port` is true; it must be a string or a number"), "{error}");
        let error = check("quiet = 1", &[]).unwrap_err();
        assert!(error.contains("it must be true or false"), "{error}");
        assert!(check("port = ", &[]).unwrap_err().contains("is not TOML"));
        assert!(check("config = 'x'", &[]).unwrap_err().contains("no flag"));
    }

    #[test]
    fn every_flag_of_serve_has_a_variable_and_no_other_command_has() {
        let command = command();
        for sub in command.get_subcommands() {
            for arg in sub.get_arguments().filter(|arg| arg.get_long().is_some()) {
                assert_eq!(arg.get_env().is_some(), sub.get_name() == COMMAND, "{} {arg}", sub.get_name());
            }
        }
        command.debug_assert();
    }
}
