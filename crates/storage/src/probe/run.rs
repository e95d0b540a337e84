//! The order of measurements, each short, all of them before a deadline.

use std::collections::BTreeMap;

use forerun_arena::WriteLease;
use forerun_model::{Clock, Nanos};

use super::choose::{choose, merge};
use super::measure::{Load, Sample, measure};
use super::places::{Place, Places};
use super::report::{Access, Choice, Method, Missing, Rate};
use super::ways::Way;

/// How long one measurement takes; it is made once in each round.
const STEP: Nanos = Nanos::from_millis(60);

/// Other work of the machine slows some measurements down: each is made in every round, and the best one counts.
const ROUNDS: u64 = 2;

/// Places that a measurement should have, or there is but one round.
const PLACES_MIN: u64 = 16;

/// Cold places to prepare for a disk that nothing is known of, and at most.
const COLD_PLACES: u64 = 64;
const COLD_PLACES_MAX: u64 = 1024;

/// Places begin at multiples of this, and reads have multiples of it: what every disk takes.
pub(super) const PLACE_ALIGN_BYTES: usize = 4096;

/// Length of the reads that tell what a request costs.
const SMALL_BYTES: usize = 64 << 10;

/// What was measured, and what follows.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) rates: Vec<Rate>,
    pub(super) small: Option<Rate>,
    pub(super) missing: Vec<Missing>,
    pub(super) choice: Choice,
}

/// Makes the measurements.
pub(super) struct Runner<'a> {
    clock: &'a dyn Clock,
    /// After this nothing begins.
    deadline: Nanos,
    places: Places,
    /// As many as the deepest queue, of `read_bytes` each.
    slots: Vec<WriteLease>,
    read_bytes: usize,
    n_steps_left: u64,
    /// The longest that the disk was busy with one read.
    read_span: Nanos,
    best: BTreeMap<(Method, Access, usize), Rate>,
    missing: BTreeMap<(Method, Access), String>,
}

impl<'a> Runner<'a> {
    pub(super) fn new(
        clock: &'a dyn Clock,
        deadline: Nanos,
        places: Places,
        slots: Vec<WriteLease>,
        read_bytes: usize,
    ) -> Self {
        let (best, missing) = (BTreeMap::new(), BTreeMap::new());
        Self {
            clock,
            deadline,
            places,
            slots,
            read_bytes,
            n_steps_left: 0,
            read_span: Nanos(0),
            best,
            missing,
        }
    }

    /// Measures all `ways`, and short reads in the best of them.
    pub(super) fn run(mut self, ways: &[Way]) -> Found {
        let ways = self.openable(ways);
        let n_steps = ways.iter().map(|way| way.depths.len() as u64).sum::<u64>();
        let n_rounds = if self.places.n_left() >= ROUNDS * n_steps * PLACES_MIN { ROUNDS } else { 1 };
        // And one for short reads.
        self.n_steps_left = n_rounds * n_steps + 1;
        for _ in 0..n_rounds {
            // Shallow queues first: they say how long the deep ones would take.
            for depth in 1..=self.slots.len() {
                for way in ways.iter().filter(|way| way.depths.contains(&depth)) {
                    self.step(way, depth);
                }
            }
        }
        for way in &ways {
            if !self.best.keys().any(|key| (key.0, key.1) == (way.method, way.access)) {
                let reason = "there was no time left for it, or nothing left to read".to_owned();
                self.missing.entry((way.method, way.access)).or_insert(reason);
            }
        }
        self.conclude(&ways)
    }

    /// Those that can be opened at all.
    fn openable<'w>(&mut self, ways: &'w [Way]) -> Vec<&'w Way> {
        let opens = |way: &&Way| match (way.open)(1) {
            Ok(_) => true,
            Err(reason) => {
                self.missing.insert((way.method, way.access), reason);
                false
            }
        };
        ways.iter().filter(opens).collect()
    }

    /// One measurement, of records.
    fn step(&mut self, way: &Way, depth: usize) {
        let share = self.places.n_left() / self.n_steps_left;
        self.n_steps_left -= 1;
        let key = (way.method, way.access);
        if self.missing.contains_key(&key) {
            return;
        }
        let sample = self.sample(way, depth, self.read_bytes, share);
        let sample = sample.and_then(|sample| (way.objection)().map_or(Ok(sample), Err));
        match sample {
            Ok(None) => {}
            Ok(Some(sample)) => {
                let span = Nanos(sample.span.0 / sample.n_reads.max(1));
                self.read_span = self.read_span.max(span);
                if let Some(rate) = rate(way, depth, self.read_bytes, sample) {
                    let best = self.best.entry((way.method, way.access, depth));
                    let n_before = best.or_insert_with(|| Rate { n_reads: 0, ..rate.clone() });
                    n_before.n_reads += rate.n_reads;
                    n_before.bytes_per_second = n_before.bytes_per_second.max(rate.bytes_per_second);
                }
            }
            Err(reason) => {
                // What came before the failure says nothing of a way that fails.
                self.best.retain(|at, _| (at.0, at.1) != key);
                self.missing.insert(key, reason);
            }
        }
    }

    /// Reads in one way for a while, at `share` places at most; `None` when there is no time or place for it.
    fn sample(
        &mut self,
        way: &Way,
        depth: usize,
        read_bytes: usize,
        share: u64,
    ) -> Result<Option<Sample>, String> {
        let all_back = self.clock.now() + Nanos(self.read_span.0.saturating_mul(depth as u64));
        if share < depth as u64 || all_back >= self.deadline {
            return Ok(None);
        }
        let mut backend = (way.open)(depth)?;
        let (clock, slots) = (self.clock, &mut self.slots);
        let load = |until| Load { depth, read_bytes, until };
        let until = |deadline: Nanos| deadline.min(clock.now() + STEP);
        let Some(pages) = &way.chill else {
            let mut places = self.places.by_ref().take(count(share));
            return measure(&mut *backend, clock, load(until(self.deadline)), slots, &mut places).map(Some);
        };
        let n_places = share.min(cold_places(self.best.values(), read_bytes)).max(depth as u64);
        let places: Vec<Place> = self.places.by_ref().take(count(n_places)).collect();
        let cold = pages.chill(&places)?;
        if cold.len() < depth {
            pages.forget(&places);
            let (n, m) = (places.len(), cold.len());
            return Err(format!("of {n} places only {m} could be proven to be out of memory"));
        }
        let mut rest = cold.into_iter();
        let sample = measure(&mut *backend, clock, load(until(self.deadline)), slots, &mut rest);
        pages.forget(&places);
        sample.map(Some)
    }

    /// Chooses, with what short reads say of requests.
    fn conclude(mut self, ways: &[&Way]) -> Found {
        let rates: Vec<Rate> = self.best.values().cloned().collect();
        let missing = self.missing.iter().map(|(&(method, access), reason)| Missing {
            method,
            access,
            reason: reason.clone(),
        });
        let missing: Vec<Missing> = missing.collect();
        let chosen = choose(&rates, &missing);
        let (method, access, depth) = (chosen.method, chosen.access, chosen.depth);
        let record =
            rates.iter().find(|rate| (rate.method, rate.access, rate.depth) == (method, access, depth));
        let way = ways.iter().find(|way| (way.method, way.access) == (method, access));
        let small = way.filter(|_| record.is_some()).and_then(|way| self.small(way, depth));
        let choice = merge(chosen, record, small.as_ref());
        Found { rates, small, missing, choice }
    }

    fn small(&mut self, way: &Way, depth: usize) -> Option<Rate> {
        let read_bytes = SMALL_BYTES.min(self.read_bytes / 4) / PLACE_ALIGN_BYTES * PLACE_ALIGN_BYTES;
        // Reads of the smallest experts can't be much shorter.
        if read_bytes == 0 {
            return None;
        }
        let rates = (0..ROUNDS).filter_map(|round| {
            let share = self.places.n_left() / (ROUNDS - round);
            let sample = self.sample(way, depth, read_bytes, share).ok().flatten()?;
            rate(way, depth, read_bytes, sample)
        });
        rates.max_by_key(|rate| rate.bytes_per_second)
    }
}

/// As many as an iterator can be asked for.
fn count(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

fn rate(way: &Way, depth: usize, read_bytes: usize, sample: Sample) -> Option<Rate> {
    Some(Rate {
        method: way.method,
        access: way.access,
        depth,
        read_bytes: read_bytes as u64,
        n_reads: sample.n_reads,
        bytes_per_second: sample.bytes_per_second()?,
    })
}

/// Cold places that last for a measurement, even if cold reads are three times as fast as the fastest so far.
fn cold_places<'r>(rates: impl Iterator<Item = &'r Rate>, read_bytes: usize) -> u64 {
    let Some(rate) = rates.map(|rate| rate.bytes_per_second).max() else { return COLD_PLACES };
    let bytes = u128::from(rate) * u128::from(3 * STEP.0) / 1_000_000_000;
    u64::try_from(bytes / read_bytes as u128).unwrap_or(u64::MAX).clamp(COLD_PLACES, COLD_PLACES_MAX)
}

#[cfg(test)]
mod tests;
