//! Packages of others: whether any is known to be broken, has a licence that we can't take, or isn't used.

use crate::error::ChoreError;
use crate::process::{cargo, run as run_command, works};

/// Tools, what says whether one is there, and what it is asked.
const TOOLS: &[(&str, &str, &[&str])] = &[
    ("cargo-machete", "`cargo install cargo-machete --locked` installs it", &["machete", "--with-metadata"]),
    ("cargo-deny", "`cargo install cargo-deny --locked` installs it", &["deny", "check"]),
];

/// The chore. `deny` fetches the advisories' database, which needs a network.
///
/// # Errors
/// [`ChoreError::Missing`] names a tool to install, [`ChoreError::Failed`] the one that found something.
pub(crate) fn run(args: &[String]) -> Result<(), ChoreError> {
    for (tool, remedy, check) in TOOLS {
        if !works(&mut cargo(&[check[0], "--version"])) {
            return Err(ChoreError::Missing { tool, remedy });
        }
        let parts = args.iter().filter(|_| *tool == "cargo-deny");
        run_command(cargo(check).args(parts))?;
    }
    Ok(())
}
