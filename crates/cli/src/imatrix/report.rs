//! What a text reached, and what it didn't.

use std::io::{self, Write};

use forerun_decode::{Engine, Inputs, Telemetry};
use serde::Serialize;

use super::part::Part;
use crate::args::ImatrixArgs;
use crate::say::say;

/// Layers that are named before the rest is only counted.
const LAYERS_SAID: usize = 8;

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Sizes {
    pub(super) ctx: usize,
    pub(super) windows: u64,
    pub(super) windows_resumed: u64,
}

/// A layer, and how many of its experts saw nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Unseen {
    layer: usize,
    experts: usize,
}

/// What `--json` prints, but for the telemetry.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    out: String,
    /// Tensors of the model.
    entries: usize,
    #[serde(flatten)]
    sizes: Sizes,
    tokens: u64,
    /// Routed experts of all layers.
    experts: usize,
    experts_unseen: usize,
    /// Where there are such.
    unseen: Vec<Unseen>,
    /// Fewest tokens of an expert that saw any.
    fewest: Option<u32>,
}

#[derive(Serialize)]
struct Output<'a> {
    #[serde(flatten)]
    report: &'a Report,
    #[serde(flatten)]
    telemetry: &'a Telemetry,
}

impl Report {
    /// What the engine has seen.
    pub(super) fn new(engine: &Engine, part: &Part, sizes: Sizes) -> Self {
        let sums = engine.input_sums().expect("the engine was told to collect");
        let (mut unseen, mut experts, mut fewest, mut entries) = (Vec::new(), 0, None::<u32>, 0);
        for (layer, inputs, sums) in sums.iter() {
            entries += part.names(layer, inputs).len();
            if inputs != Inputs::Experts {
                continue;
            }
            experts += sums.counts().len();
            let n = sums.counts().iter().filter(|count| **count == 0).count();
            if n > 0 {
                unseen.push(Unseen { layer: layer.idx(), experts: n });
            }
            let least = sums.counts().iter().copied().filter(|count| *count > 0).min();
            fewest = fewest.into_iter().chain(least).min();
        }
        let experts_unseen = unseen.iter().map(|of| of.experts).sum();
        let tokens = sizes.windows * sizes.ctx as u64;
        Self {
            out: part.out().display().to_string(),
            entries,
            sizes,
            tokens,
            experts,
            experts_unseen,
            unseen,
            fewest,
        }
    }

    /// To stdout as JSON, or in words to stderr.
    pub(super) fn print(&self, args: &ImatrixArgs, telemetry: &Telemetry) -> io::Result<()> {
        if args.json {
            let mut stdout = io::stdout().lock();
            serde_json::to_writer(&mut stdout, &Output { report: self, telemetry })?;
            return stdout.write_all(b"\n");
        }
        if args.model.quiet {
            return Ok(());
        }
        let Self { out, entries, tokens, experts, experts_unseen, .. } = self;
        let Sizes { ctx, windows, .. } = self.sizes;
        say!("{out}: {entries} tensors, from {tokens} tokens in {windows} windows of {ctx}");
        if let Some(fewest) = self.fewest {
            say!("the least used expert that was seen at all saw {fewest} tokens");
        }
        if *experts_unseen > 0 {
            say!("warning: {experts_unseen} of {experts} experts saw no token{}", self.layers());
        }
        Ok(())
    }

    /// The layers with the most experts that saw nothing.
    fn layers(&self) -> String {
        let mut most = self.unseen.clone();
        most.sort_by_key(|of| std::cmp::Reverse(of.experts));
        let said: Vec<_> =
            most.iter().take(LAYERS_SAID).map(|of| format!("{} of layer {}", of.experts, of.layer)).collect();
        let rest = most.len().saturating_sub(LAYERS_SAID);
        let rest = if rest > 0 { format!(", and some of {rest} more layers") } else { String::new() };
        format!(": {}{rest}; a longer or more varied text would reach more", said.join(", "))
    }
}
