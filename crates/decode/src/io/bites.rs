//! How long a read for a guess is.

use forerun_storage::{Catalog, bite_bytes};

use crate::memory_plan::bytes_text;
use crate::telemetry::Decision;

/// The longest read for a guess on a disk of that rate, if one is known and records are longer.
pub(super) fn choose(
    bytes_per_second: Option<u64>,
    catalog: &Catalog,
    decisions: &mut Vec<Decision>,
) -> Option<u32> {
    let n_records = (catalog.n_layers() * catalog.n_experts()).max(1) as u64;
    let bite_bytes = bite_bytes(bytes_per_second?, catalog.expert_bytes() / n_records)?;
    let choice = format!("in pieces of {}", bytes_text(bite_bytes.into()));
    let reason = "so that a demand waits for little, and a wrong guess is given up half-way";
    decisions.push(Decision::new("guess reads", choice, reason.to_owned()));
    Some(bite_bytes)
}
