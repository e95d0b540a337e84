//! Which budget to choose.

use forerun_decode::bytes_text;
use serde::Serialize;

use super::Row;
use super::assume::Assumed;

/// A budget is enough when it reaches this share of the best speed.
const ENOUGH: f64 = 0.9;

/// The budget to choose, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Advice {
    /// For `--memory`.
    pub(super) memory: u64,
    pub(super) tokens_per_second: f64,
    pub(super) reason: String,
}

impl Advice {
    /// The smallest budget that is enough, of those that `own` allows; else the best of them.
    ///
    /// # Panics
    /// Without rows.
    pub(super) fn of(rows: &[Row], own: Option<u64>, assumed: &Assumed) -> Self {
        Self::among(rows, own, assumed.compute.tokens_per_second)
    }

    fn among(rows: &[Row], own: Option<u64>, alone: f64) -> Self {
        let allowed = |row: &&Row| own.is_none_or(|own| row.budget_bytes <= own);
        let speed = |row: &Row| row.tokens_per_second;
        let best = rows.iter().filter(allowed).map(speed).fold(0.0, f64::max);
        let chosen = rows.iter().filter(allowed).find(|row| speed(row) >= ENOUGH * best);
        let chosen = chosen.expect("there is a row, and one within the user's own budget");
        let share = 100.0 * speed(chosen) / alone;
        let limit = if share >= 100.0 * ENOUGH {
            "the computer is what limits it"
        } else {
            "the disk is what limits it"
        };
        let least = if own.is_some() { "the least within the given memory" } else { "the least" };
        let mut reason = format!(
            "{least} that comes within {:.0}% of {best:.2} tok/s; {share:.0}% of what the computer does with everything in memory, so {limit}",
            100.0 * (1.0 - ENOUGH),
        );
        let more = rows.iter().filter(|row| own.is_some_and(|own| row.budget_bytes > own));
        if let Some(more) =
            more.filter(|row| ENOUGH * speed(row) > speed(chosen)).min_by_key(|row| row.budget_bytes)
        {
            let (bytes, speed) = (bytes_text(more.budget_bytes), speed(more));
            reason.push_str(&format!("; {bytes} would give {speed:.2} tok/s"));
        }
        Self { memory: chosen.budget_bytes, tokens_per_second: speed(chosen), reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(speeds: &[f64]) -> Vec<Row> {
        let row = |(&tokens_per_second, gib): (&f64, u64)| Row {
            budget_bytes: gib << 30,
            slots: 0,
            slots_per_layer: 0.0,
            hit_rate: 0.0,
            bytes_per_token: 0.0,
            stall_ms_per_token: 0.0,
            tokens_per_second,
            tokens_per_second_on_demand: tokens_per_second,
            tokens_per_second_at_most: tokens_per_second,
            overlap_efficiency: 1.0,
        };
        speeds.iter().zip(1..).map(row).collect()
    }

    #[track_caller]
    fn check(speeds: &[f64], own_gib: Option<u64>, expected_gib: u64, words: &str) {
        let advice = Advice::among(&rows(speeds), own_gib.map(|gib| gib << 30), 10.0);
        assert_eq!(advice.memory >> 30, expected_gib, "{}", advice.reason);
        assert!(advice.reason.contains(words), "{}", advice.reason);
    }

    #[test]
    fn the_least_that_is_nearly_best_is_chosen() {
        check(&[2.0, 5.0, 9.1, 9.9, 10.0], None, 3, "the computer is what limits");
        check(&[2.0, 2.1, 2.2], None, 1, "20% of what the computer does");
    }

    #[test]
    fn a_given_memory_is_the_most() {
        check(&[2.0, 5.0, 9.1, 10.0], Some(2), 2, "3.00GiB would give 9.10");
        check(&[2.0, 1.9], Some(2), 1, "the disk is what limits");
    }
}
