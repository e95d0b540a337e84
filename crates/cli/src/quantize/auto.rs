//! `--recipe auto`: types chosen by measurement, for a file of a given size.

use std::error::Error;

use forerun_decode::bytes_text;
use forerun_model::QuantType;
use forerun_quantize::keys::REPLACED_KEYS;
use forerun_quantize::{Auto, Encoder, Facts, Imatrix, Permissions, Plan, QuantizeError, Recipe, keys};
use forerun_storage::Gguf;
use forerun_storage::repack::{self, Recoding};

use super::{cores, experts, named};
use crate::args::QuantizeArgs;
use crate::interrupt::Interrupt;
use crate::progress::{Bar, Unit};
use crate::say::say;

/// What the estimate is compared with.
const FIXED: [&str; 3] = ["les", "q3_k_m", "q4_k_m"];

/// Asked for without what it needs.
#[derive(Debug, thiserror::Error)]
pub(super) enum Missing {
    #[error("--recipe auto needs --target-bytes: the size that the file may have, such as 14GB")]
    Target,
    #[error("--recipe auto needs --imatrix, which says what matters; `forerun imatrix` makes one")]
    Imatrix,
    #[error("--target-bytes goes with --recipe auto; other recipes have a size of their own")]
    Recipe,
}

/// The recipe with which the file has at most `--target-bytes`; `None` when interrupted.
pub(super) fn choose(
    args: &QuantizeArgs,
    source: &Gguf,
    facts: Facts,
    imatrix: Option<&Imatrix>,
    permissions: Permissions,
    interrupt: &Interrupt,
) -> Result<Option<Recipe>, Box<dyn Error>> {
    let target_bytes = args.target_bytes.ok_or(Missing::Target)?;
    let imatrix = imatrix.ok_or(Missing::Imatrix)?;
    let n_threads = args.threads.map_or_else(cores, usize::from);
    let mut auto = Auto::new(source, facts, imatrix, permissions, n_threads)?;
    let quiet = args.copy.talk.quiet;
    let bar = Bar::new("measuring", Unit::Tensors, auto.n_groups() as u64, quiet);
    while auto.step().map_err(QuantizeError::from)? {
        bar.set(auto.n_measured() as u64);
        if interrupt.is_set() {
            return Ok(None);
        }
    }
    drop(bar);
    let measured = auto.finish().map_err(QuantizeError::from)?;
    let plan = |recipe: &Recipe| Plan::new(source.tensors(), facts, recipe, Some(imatrix), permissions);
    let file_bytes = |recipe: &Recipe| -> Result<u64, Box<dyn Error>> {
        let plan = plan(recipe).map_err(QuantizeError::from)?;
        let encoder = Encoder::new(&plan, facts, Some(imatrix), 1);
        let keys = keys(&plan, recipe, named(args.imatrix.as_deref(), Some(imatrix)));
        let recoding = Recoding { experts: experts(args), keys, drops: &REPLACED_KEYS, recode: &encoder };
        Ok(repack::recoded_bytes(source, &args.target, &recoding)?)
    };
    let chosen = measured.choose(target_bytes, file_bytes)?;
    if !quiet {
        let (size, loss) = (bytes_text(chosen.file_bytes), chosen.loss);
        say!(
            "types chosen for {size}; estimated loss {loss:.4}, in units for comparing recipes of one model:"
        );
        for recipe in FIXED.iter().filter_map(|name| Recipe::named(name)) {
            let Ok(plan) = plan(&recipe) else { continue };
            let types = plan.types();
            let quant = |name: &str| -> Option<QuantType> { types.get(name).copied() };
            if let (Some(loss), Ok(bytes)) = (measured.loss_of(quant), file_bytes(&recipe)) {
                say!("  {} would lose {loss:.4} at {}", recipe.name(), bytes_text(bytes));
            }
        }
    }
    Ok(Some(chosen.recipe))
}
