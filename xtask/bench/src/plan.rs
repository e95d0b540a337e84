//! All that is measured: the rows of each backend, disk and budget, and in which order they run.

use forerun_decode::bytes_text;

use crate::args::Args;
use crate::journal::Journal;
use crate::rows::{By, File, Limit, Row, Work, rows};
use crate::run::Outcome;

/// A table: a backend, a budget and a disk.
#[derive(Clone, Debug)]
pub(crate) struct Regime {
    pub(crate) name: String,
    pub(crate) backend: String,
    pub(crate) budget: u64,
    pub(crate) limit: Limit,
    pub(crate) rows: Vec<Row>,
}

/// All that is measured.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) regimes: Vec<Regime>,
    rounds: u32,
    by_file: bool,
}

impl Plan {
    pub(crate) fn new(args: &Args) -> Self {
        let mut regimes = Vec::new();
        for backend in args.backends() {
            for &limit in &args.disk_limit {
                for budget in args.budgets() {
                    let name = format!("{backend}, {}{limit}", bytes_text(budget));
                    let rows = rows(args, &backend, budget);
                    regimes.push(Regime { name, backend: backend.clone(), budget, limit, rows });
                }
            }
        }
        Self { regimes, rounds: args.rounds, by_file: args.one_at_a_time }
    }

    /// What the model of `row` answered in `regime`, once a row of the program's has run; nothing before.
    pub(crate) fn said(&self, journal: &Journal, regime: &str, row: &Row) -> Vec<u32> {
        let rows = self.regimes.iter().filter(|other| other.name == regime).flat_map(|regime| &regime.rows);
        let is_like = |other: &&Row| {
            other.by == By::Program
                && other.work == Work::Decode
                && other.file.weights() == row.file.weights()
        };
        let outcomes = rows.filter(is_like).flat_map(|other| journal.of(regime, &other.name));
        let answers = outcomes.filter_map(|outcome| match outcome {
            Outcome::Done(sample) => Some(sample.tokens.clone()),
            Outcome::Refused(_) => None,
        });
        answers.take(1).flatten().collect()
    }

    /// All runs: in each regime all rows in turn, round after round; file after file where only one is kept.
    pub(crate) fn order(&self) -> Vec<(&Regime, u32, &Row)> {
        let of = |keep: fn(&Row, File) -> bool, file| {
            self.regimes.iter().flat_map(move |regime| {
                let rows = move || regime.rows.iter().filter(move |row| keep(row, file));
                (0..self.rounds).flat_map(move |round| rows().map(move |row| (regime, round, row)))
            })
        };
        if !self.by_file {
            return of(|_, _| true, File::Plain).collect();
        }
        let files = [File::Plain, File::Packed, File::Mixed, File::MixedPacked];
        files.into_iter().flat_map(|file| of(|row, file| row.file == file, file)).collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn plan(list: &[&str]) -> Plan {
        Plan::new(&Args::try_parse_from([&["bench"], list].concat()).unwrap())
    }

    #[test]
    fn rounds_take_all_rows_in_turn() {
        let plan = plan(&["--rounds", "2", "--prefill", "0", "--backend", "cpu"]);
        let n = plan.regimes[0].rows.len();
        let order = plan.order();
        assert_eq!(order.len(), 2 * n);
        assert!(order[..n].iter().all(|(_, round, _)| *round == 0) && order[n].1 == 1);
        assert_eq!(order[0].2.name, order[n].2.name);
    }

    #[test]
    fn one_file_at_a_time_is_done_in_all_regimes_before_the_next() {
        let plan =
            plan(&["--synth", "pico", "--one-at-a-time", "--memory", "20MiB,30MiB", "--backend", "cpu"]);
        let order = plan.order();
        assert_eq!(order.len(), 2 * 3 * plan.regimes[0].rows.len());
        let mut files: Vec<_> = order.iter().map(|(_, _, row)| row.file).collect();
        files.dedup();
        assert_eq!(files, [File::Plain, File::Packed, File::Mixed, File::MixedPacked]);
    }
}
