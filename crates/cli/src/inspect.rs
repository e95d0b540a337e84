//! `forerun inspect`: what a model file holds, for people and for programs.
//!
//! Works on every GGUF; what it says of layers and experts needs an architecture that runs here.

mod report;

use std::error::Error;
use std::io::{self, Write};

use forerun_decode::ModelSource;
use forerun_model::ModelShape;
use forerun_storage::{Catalog, Gguf};

use crate::Outcome;
use crate::args::InspectArgs;
use crate::embedded;
use report::Report;

/// Describes a model.
pub(crate) fn inspect(args: &InspectArgs) -> Result<Outcome, Box<dyn Error>> {
    let path = args.model.as_ref().or(args.file.as_ref());
    let gguf = match embedded::source(path)? {
        ModelSource::Path(path) => Gguf::open(&path)?,
        ModelSource::Embedded { name, bytes } => Gguf::open_bytes(name, bytes)?,
    };
    let model = ModelShape::from_metadata(&gguf.metadata).map_err(|e| e.to_string()).and_then(|shape| {
        let catalog = Catalog::new(&shape, &gguf).map_err(|e| crate::chain(&e))?;
        Ok((shape, catalog))
    });
    let report = Report::new(&gguf, model.as_ref().map_err(String::as_str));
    let mut stdout = io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut stdout, &report)?;
        stdout.write_all(b"\n")?;
    } else {
        report.write(&mut stdout, args.tensors)?;
    }
    Ok(Outcome::Done)
}
