//! Medians of what was run, as a table and as JSON.

use std::fmt::Write;

use forerun_decode::bytes_text;
use serde::Serialize;

use crate::journal::Journal;
use crate::machine::Machine;
use crate::plan::{Plan, Regime};
use crate::rows::{By, Row, Work};
use crate::run::{Outcome, Sample};

/// All tables of a measurement.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: Machine,
    pub(crate) tables: Vec<Table>,
}

/// Rows of one budget, disk and backend.
#[derive(Debug, Serialize)]
pub(crate) struct Table {
    pub(crate) name: String,
    /// The disk that was stood for, in bytes a second.
    limit: Option<u64>,
    /// What the disk gave when it was probed.
    disk_rate: Option<u64>,
    pub(crate) lines: Vec<Line>,
    /// Rows that the program refused to run, with what it said.
    refused: Vec<(String, String)>,
    /// Whether rows of one file gave one answer.
    same_answers: bool,
}

/// A row's medians.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) is_prefill: bool,
    rounds: usize,
    /// Tokens a second, and the smallest and largest of the rounds.
    pub(crate) rate: f64,
    pub(crate) range: [f64; 2],
    /// Over the table's first row.
    factor: Option<f64>,
    bytes_per_token: f64,
    hit_rate: Option<f64>,
    overlap_efficiency: Option<f64>,
    /// Tokens a second if computing, as with everything in memory, and the disk, with the bytes that were used, were the only
    /// bounds and hid each other.
    roofline: Option<f64>,
    tokens_per_step: f64,
    /// What the row said of itself.
    note: Option<String>,
    peak: Option<u64>,
    command: String,
}

impl Report {
    pub(crate) fn new(plan: &Plan, journal: &Journal, machine: &Machine) -> Self {
        let tables = plan.regimes.iter().map(|regime| {
            let mut lines: Vec<Line> = Vec::new();
            let (mut answers, mut refused) = (Vec::new(), Vec::new());
            let mut same_answers = true;
            for row in &regime.rows {
                let (samples, why) = split(journal.of(&regime.name, &row.name));
                let ceiling = ceiling(regime, journal, row);
                let limit = journal.limit(&regime.name);
                let Some(mut line) = Line::of(row, &samples, ceiling, limit) else {
                    refused.extend(why.map(|why| (row.name.clone(), why.to_owned())));
                    continue;
                };
                if row.work == Work::Decode {
                    let is_ours = !matches!(row.by, By::Peer(_));
                    line.factor = Some(line.rate / lines.first().map_or(line.rate, |first| first.rate));
                    for sample in samples.into_iter().filter(|_| is_ours) {
                        // Packing changes no weight.
                        let kind = row.file.weights();
                        let known =
                            answers.iter().find(|(other, _)| *other == kind).map(|(_, tokens)| tokens);
                        same_answers &= known.is_none_or(|tokens| *tokens == sample.tokens);
                        answers.push((kind, sample.tokens.clone()));
                    }
                }
                lines.push(line);
            }
            let rates = regime.rows.iter().flat_map(|row| split(journal.of(&regime.name, &row.name)).0);
            let disk_rate = rates.filter_map(|sample| sample.disk_rate).next();
            let (name, limit) = (regime.name.clone(), journal.limit(&regime.name));
            Table { name, limit, disk_rate, lines, refused, same_answers }
        });
        Self { machine: machine.clone(), tables: tables.collect() }
    }

    /// One JSON object.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).map_or_else(|error| error.to_string(), |text| text + "\n")
    }

    /// Tables as people read them.
    pub(crate) fn markdown(&self) -> String {
        let Machine { processor, cores, memory, system, compiler, commit } = &self.machine;
        let mut text = format!(
            "{processor}, {cores} cores, {} of memory, {system}; {compiler}; commit {commit}. Medians of the rounds, smallest \
             and largest in braces; peaks are the largest.\n",
            bytes_text(*memory)
        );
        for table in &self.tables {
            table.write(&mut text);
        }
        text
    }
}

impl Table {
    fn write(&self, text: &mut String) {
        let rate = |rate: Option<u64>| rate.map(|rate| format!("{}/s", bytes_text(rate)));
        let disk = match (rate(self.limit), rate(self.disk_rate)) {
            (Some(limit), _) => format!("; the disk was let give {limit}"),
            (None, Some(probed)) => format!("; the disk gave {probed} when it was probed"),
            (None, None) => String::new(),
        };
        let answers =
            if self.same_answers { "the same answer in every row of one file" } else { "**answers differ**" };
        let _ = writeln!(text, "\n**{}**{disk}; {answers}.\n", self.name);
        text.push_str(
            "| | tok/s | times | MB a token | hits | overlap | roofline | of it | peak, MiB |\n|---|---|---|---|---|---|---|---|---|\n",
        );
        for line in &self.lines {
            let Line { name, rate, range: [min, max], bytes_per_token, .. } = line;
            let factor = line.factor.map_or("–".into(), |factor| format!("{factor:.2}"));
            let share = |share: Option<f64>| share.map_or("–".into(), |share| format!("{share:.2}"));
            let (overlap, roofline) = (share(line.overlap_efficiency), share(line.roofline));
            let of_it = share(line.roofline.map(|roofline| rate / roofline));
            let hits = line.hit_rate.map_or("–".into(), |share| format!("{share:.3}"));
            #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
            let peak = line.peak.map_or("–".into(), |bytes| format!("{:.1}", bytes as f64 / 1048576.0));
            let bytes = bytes_per_token / 1e6;
            let _ = writeln!(
                text,
                "| {name} | {rate:.2} {{{min:.2}–{max:.2}}} | {factor} | {bytes:.1} | {hits} | {overlap} | {roofline} | {of_it} | {peak} |"
            );
        }
        for (name, why) in &self.refused {
            let _ = writeln!(text, "| {name} | refused: {why} | | | | | | | |");
        }
        for line in &self.lines {
            if let Some(note) = &line.note {
                let _ = writeln!(text, "\n{}: {note}.", line.name);
            }
        }
    }
}

/// The figures among `outcomes`, and why the first without any has none.
fn split<'a>(outcomes: impl Iterator<Item = &'a Outcome>) -> (Vec<&'a Sample>, Option<&'a str>) {
    let (mut samples, mut refused) = (Vec::new(), None);
    for outcome in outcomes {
        match outcome {
            Outcome::Done(sample) => samples.push(sample),
            Outcome::Refused(why) => refused = refused.or(Some(why.as_str())),
        }
    }
    (samples, refused)
}

impl Line {
    /// `None` without a sample.
    fn of(row: &Row, samples: &[&Sample], ceiling: Option<f64>, limit: Option<u64>) -> Option<Self> {
        let (name, work) = (&row.name, row.work);
        let rate = |sample: &&Sample| match work {
            Work::Decode => sample.tokens_per_second,
            Work::Prefill => sample.prompt_rate(),
        };
        let rates: Vec<f64> = samples.iter().map(rate).collect();
        let of = |value: fn(&Sample) -> f64| {
            median(&samples.iter().map(|&sample| value(sample)).collect::<Vec<_>>())
        };
        let overlaps: Vec<f64> = samples.iter().filter_map(|sample| sample.overlap_efficiency).collect();
        // A drafted step reads for several tokens, and computes more rows: the bound of steps of one row says nothing of it.
        let is_plain = samples.iter().all(|sample| sample.tokens_per_step <= 1.0);
        let rooflines: Vec<f64> = samples
            .iter()
            .filter_map(|sample| {
                let disk = limit.or(sample.disk_rate).filter(|_| row.budget.is_some() && is_plain)?;
                Some(ceiling?.min(1.0 / (used_bytes(work, sample) / disk as f64).max(1e-12)))
            })
            .collect();
        let hit_rates: Vec<f64> = samples.iter().filter_map(|sample| sample.hit_rate).collect();
        let name = match work {
            Work::Decode if !is_plain => {
                format!("{name}, {:.2} tokens a step", of(|sample| sample.tokens_per_step)?)
            }
            Work::Decode => name.clone(),
            Work::Prefill => format!("{name}, {} tokens", samples.first()?.prompt_tokens),
        };
        Some(Self {
            name,
            is_prefill: work == Work::Prefill,
            rounds: samples.len(),
            rate: median(&rates)?,
            range: [
                rates.iter().copied().fold(f64::INFINITY, f64::min),
                rates.iter().copied().fold(0.0, f64::max),
            ],
            factor: None,
            bytes_per_token: of(match work {
                Work::Decode => Sample::bytes_per_token,
                Work::Prefill => Sample::bytes_per_prompt_token,
            })?,
            hit_rate: median(&hit_rates),
            roofline: median(&rooflines),
            tokens_per_step: of(|sample| sample.tokens_per_step)?,
            note: samples.first()?.note.clone(),
            overlap_efficiency: median(&overlaps).filter(|_| work == Work::Decode),
            peak: samples.iter().filter_map(|sample| sample.memory.peak).max(),
            command: samples.first()?.command.clone(),
        })
    }
}

/// Bytes that a token took from the disk and used.
fn used_bytes(work: Work, sample: &Sample) -> f64 {
    match work {
        Work::Decode => sample.useful_bytes_per_token(),
        Work::Prefill => sample.useful_bytes_per_prompt_token(),
    }
}

/// Tokens a second of the same work on the same weights with everything in memory, where that was measured.
fn ceiling(regime: &Regime, journal: &Journal, row: &Row) -> Option<f64> {
    let is_it = |other: &&Row| {
        other.budget.is_none() && other.work == row.work && other.file.weights() == row.file.weights()
    };
    let other = regime.rows.iter().find(is_it)?;
    let rate = |sample: &&Sample| match row.work {
        Work::Decode => sample.tokens_per_second,
        Work::Prefill => sample.prompt_rate(),
    };
    let (samples, _) = split(journal.of(&regime.name, &other.name));
    median(&samples.iter().map(rate).collect::<Vec<_>>())
}

/// The middle; of two middle ones their mean; `None` of nothing.
fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    let high = *values.get(values.len() / 2)?;
    Some(f64::midpoint(values[(values.len() - 1) / 2], high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_or_between_the_middle_two() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
    }
}
