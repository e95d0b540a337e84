//! `forerun completions` and `forerun man`: what shells and `man` are told of the program, made from its own command line.

use std::error::Error;
use std::io::{self, Write};

use clap::CommandFactory;
use clap_mangen::Man;

use crate::Outcome;
use crate::args::{Args, CompletionsArgs, ManArgs};

const NAME: &str = "forerun";

/// Prints what a shell needs to complete our command lines.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<Outcome, Box<dyn Error>> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), NAME, &mut script);
    io::stdout().lock().write_all(&script)?;
    Ok(Outcome::Done)
}

/// Prints the manual's page of the program, or of one of its commands.
pub(crate) fn man(args: &ManArgs) -> Result<Outcome, Box<dyn Error>> {
    let mut program = Args::command().disable_help_subcommand(true);
    // Pages are named `forerun-run` and the like.
    program.build();
    let page = match &args.command {
        None => Man::new(program),
        Some(name) => {
            let names =
                || program.get_subcommands().map(clap::Command::get_name).collect::<Vec<_>>().join(", ");
            let command = program.find_subcommand(name);
            let command =
                command.ok_or_else(|| format!("there is no command `{name}`; there are {}", names()))?;
            Man::new(command.clone())
        }
    };
    let mut text = Vec::new();
    page.render(&mut text)?;
    io::stdout().lock().write_all(&text)?;
    Ok(Outcome::Done)
}
