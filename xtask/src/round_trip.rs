//! A model of full size packed, compared, unpacked and compared again, on a disk that holds two copies of it.

use std::fs;
use std::path::{self, Path, PathBuf};

use crate::error::ChoreError;
use crate::process::{cargo, run as run_command};

/// Packs `MODEL` into `FOLDER`, compares, unpacks and compares. With `--consume` the model is removed once its packed
/// copy was found to be equal, so that two copies are on disk at a time, and its unpacked copy takes its place at the end;
/// without, three.
///
/// # Errors
/// [`ChoreError::Usage`], or what fails first; files made so far stay, to be looked at.
pub(crate) fn run(args: &[String]) -> Result<(), ChoreError> {
    let (flags, paths): (Vec<&String>, Vec<&String>) = args.iter().partition(|arg| arg.starts_with("--"));
    let consume = !flags.is_empty();
    let ([model, folder], true) = (&paths[..], flags.iter().all(|flag| *flag == "--consume")) else {
        return Err(ChoreError::Usage("it needs MODEL and FOLDER, and takes --consume".into()));
    };
    // The program runs in the checkout's root, whatever the folder of the caller.
    let (model, folder) = (absolute(model)?, absolute(folder)?);
    if consume && (!model.is_file() || model.to_string_lossy().contains("-of-")) {
        return Err(ChoreError::Usage("--consume takes a model of one file".into()));
    }
    let (packed, unpacked) = (folder.join("packed.gguf"), folder.join("unpacked.gguf"));
    let [model_text, packed_text, unpacked_text] =
        [&model, &packed, &unpacked].map(|path| path.to_string_lossy().into_owned());
    forerun(&["pack", &model_text, &packed_text])?;
    forerun(&["verify", &packed_text, "--against", &model_text])?;
    if consume {
        remove(&model)?;
    }
    forerun(&["unpack", &packed_text, &unpacked_text])?;
    forerun(&["verify", &unpacked_text, "--against", &packed_text])?;
    if consume {
        let back = ["unpack", &packed_text, &model_text];
        eprintln!("== {model_text} is put back");
        if fs::rename(&unpacked, &model).is_err() {
            // The folder may be on another disk.
            forerun(&back)?;
            remove(&unpacked)?;
        }
    } else {
        forerun(&["verify", &unpacked_text, "--against", &model_text])?;
        remove(&unpacked)?;
    }
    remove(&packed)
}

fn absolute(path: &str) -> Result<PathBuf, ChoreError> {
    path::absolute(path).map_err(|source| ChoreError::Io { doing: "find", path: path.into(), source })
}

fn forerun(args: &[&str]) -> Result<(), ChoreError> {
    run_command(cargo(&["run", "--quiet", "--release", "--package", "forerun", "--"]).args(args))
}

fn remove(path: &Path) -> Result<(), ChoreError> {
    fs::remove_file(path).map_err(|source| ChoreError::Io { doing: "remove", path: path.to_owned(), source })
}
