//! A model of full size packed, compared, unpacked and compared again, on a disk that holds two copies of it.

use std::fs;
use std::path::Path;

use crate::error::ChoreError;
use crate::process::{cargo, run as run_command};

/// Packs `MODEL` into `FOLDER`, compares, unpacks and compares. With `--consume` the model is removed once its packed
/// copy was found to be equal, so that two copies are on disk at a time; without, three.
///
/// # Errors
/// [`ChoreError::Usage`], or what fails first; files made so far stay, to be looked at.
pub(crate) fn run(args: &[String]) -> Result<(), ChoreError> {
    let (consume, paths): (Vec<&String>, Vec<&String>) = args.iter().partition(|arg| *arg == "--consume");
    let [model, folder] = paths[..] else {
        return Err(ChoreError::Usage("it needs MODEL and FOLDER, and takes --consume".into()));
    };
    let folder = Path::new(folder);
    let (packed, unpacked) = (folder.join("packed.gguf"), folder.join("unpacked.gguf"));
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let (packed_text, unpacked_text) = (text(&packed), text(&unpacked));
    forerun(&["pack", model, &packed_text])?;
    forerun(&["verify", &packed_text, "--against", model])?;
    if !consume.is_empty() {
        remove(Path::new(model))?;
    }
    forerun(&["unpack", &packed_text, &unpacked_text])?;
    forerun(&["verify", &unpacked_text, "--against", &packed_text])?;
    if consume.is_empty() {
        forerun(&["verify", &unpacked_text, "--against", model])?;
    }
    remove(&packed)?;
    remove(&unpacked)
}

fn forerun(args: &[&str]) -> Result<(), ChoreError> {
    run_command(cargo(&["run", "--quiet", "--release", "--package", "forerun", "--"]).args(args))
}

fn remove(path: &Path) -> Result<(), ChoreError> {
    fs::remove_file(path).map_err(|source| ChoreError::Io { doing: "remove", path: path.to_owned(), source })
}
