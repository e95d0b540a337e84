//! Model files, made when a run wants them and removed at the end.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::args::{Args, stamp};
use crate::error::BenchError;
use crate::programs::Programs;
use crate::rows::File;

/// The files of a measurement.
#[derive(Debug)]
pub(crate) struct Files<'a> {
    args: &'a Args,
    programs: &'a Programs,
    /// A folder for what is made here and nothing else, which belongs to the model at hand: a file in it is what its name says.
    folder: PathBuf,
}

impl<'a> Files<'a> {
    pub(crate) fn new(args: &'a Args, programs: &'a Programs) -> Self {
        let name = match (&args.synth, &args.model) {
            (Some(shape), _) => {
                format!("synth-{shape}-{}", args.layers.map_or_else(|| "all".into(), |n| n.to_string()))
            }
            (None, Some(model)) => {
                let stem = model.file_stem().unwrap_or_default().to_string_lossy();
                format!("of-{stem}{}{}", stamp(&args.model), stamp(&args.mixed))
            }
            (None, None) => "of-fixture".into(),
        };
        Self { args, programs, folder: args.folder.join(name) }
    }

    /// Where `file` is; makes it if it isn't there.
    ///
    /// # Errors
    /// [`BenchError`] when a program that makes it fails.
    pub(crate) fn path(&self, file: File) -> Result<PathBuf, BenchError> {
        if let Some(given) = self.given(file) {
            return Ok(given);
        }
        let path = self.made_path(file);
        if !path.exists() {
            self.make(file, &path)?;
        }
        Ok(path)
    }

    /// Removes what was made.
    ///
    /// # Errors
    /// [`BenchError`] when something can't be removed.
    pub(crate) fn remove(&self) -> Result<(), BenchError> {
        [File::Plain, File::Packed, File::Mixed, File::MixedPacked]
            .into_iter()
            .try_for_each(|file| self.forget(file))?;
        if self.folder.exists() {
            fs::remove_dir(&self.folder).map_err(|source| BenchError::io("remove", &self.folder, source))?;
        }
        Ok(())
    }

    fn forget(&self, file: File) -> Result<(), BenchError> {
        let path = self.made_path(file);
        if !path.exists() {
            return Ok(());
        }
        fs::remove_file(&path).map_err(|source| BenchError::io("remove", &path, source))
    }

    /// What the command line or the fixtures have.
    fn given(&self, file: File) -> Option<PathBuf> {
        match file {
            _ if self.args.synth.is_some() => None,
            File::Plain => {
                Some(self.args.model.clone().unwrap_or_else(|| self.programs.fixture("pico-q4_k_m.gguf")))
            }
            File::Mixed => self.args.mixed.clone(),
            File::Packed | File::MixedPacked => None,
        }
    }

    fn made_path(&self, file: File) -> PathBuf {
        self.folder.join(match file {
            File::Plain => "q4_k_m.gguf",
            File::Packed => "q4_k_m-packed.gguf",
            File::Mixed => "les.gguf",
            File::MixedPacked => "les-packed.gguf",
        })
    }

    /// Makes `file`; where one is kept at a time, those that it isn't made from make room before, and its source after.
    fn make(&self, file: File, path: &Path) -> Result<(), BenchError> {
        fs::create_dir_all(&self.folder).map_err(|source| BenchError::io("make", &self.folder, source))?;
        let source = file.weights();
        if self.args.one_at_a_time {
            let others = [File::Plain, File::Packed, File::Mixed, File::MixedPacked];
            others.into_iter().filter(|other| *other != source).try_for_each(|other| self.forget(other))?;
        }
        if source == file {
            return self.synth(if file == File::Plain { "q4_k_m" } else { "les" }, path);
        }
        self.programs.forerun(&["pack".into(), self.path(source)?.into(), path.into()])?;
        if self.args.one_at_a_time { self.forget(source) } else { Ok(()) }
    }

    fn synth(&self, quant: &str, path: &Path) -> Result<(), BenchError> {
        let shape = self.args.synth.as_deref().unwrap_or("pico");
        let mut args: Vec<OsString> =
            ["--shape", shape, "--quant", quant, "--measure", "0", "--out"].map(Into::into).into();
        // The program runs in the checkout's root.
        args.push(std::path::absolute(path).map_err(|source| BenchError::io("find", path, source))?.into());
        if let Some(layers) = self.args.layers {
            args.extend(["--layers".into(), layers.to_string().into()]);
        }
        self.programs.synth(&args)
    }
}
