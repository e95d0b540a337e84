//! What it cost, as a table.

use forerun_storage::StoreStats;

use super::{Model, Way};

/// What one pass cost.
#[derive(Clone, Copy, Default)]
pub(super) struct Cost {
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) bytes: u64,
    pub(super) n_experts: usize,
    pub(super) stats: StoreStats,
}

impl Cost {
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 53 bits")]
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share needs no more than 53 bits")]
pub(super) fn report(model: &Model, costs: &[Vec<Cost>]) {
    println!("\n{}\n", model.name);
    println!("| way | GB/s | of raw | of stretch | CPU of a core | reads an expert | merged |");
    println!("|---|---|---|---|---|---|---|");
    for (way, costs_of_way) in Way::ALL.into_iter().zip(costs) {
        if costs_of_way.is_empty() {
            continue;
        }
        let rate = median(costs_of_way.iter().map(Cost::rate));
        let share = |of: &[Cost]| {
            100.0 * median(costs_of_way.iter().zip(of).map(|(cost, raw)| cost.rate() / raw.rate()))
        };
        let (raw, stretch) = (share(&costs[0]), share(&costs[1]));
        let cpu = median(costs_of_way.iter().map(|cost| cost.cpu_seconds / cost.seconds));
        let sum = |of: fn(&Cost) -> u64| costs_of_way.iter().map(of).sum::<u64>() as f64;
        let n_experts = sum(|cost| cost.n_experts as u64).max(1.0);
        let (reads, merged) = (sum(|cost| cost.stats.n_reads), sum(|cost| cost.stats.n_merged));
        let counts = match way {
            Way::Raw | Way::Stretch => "| |".to_owned(),
            _ => format!("{:.3} | {:.1} %", reads / n_experts, 100.0 * merged / reads.max(1.0)),
        };
        let cpu = cpu * 100.0;
        println!("| {} | {rate:.2} | {raw:.1} % | {stretch:.1} % | {cpu:.1} % | {counts} |", way.name());
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
