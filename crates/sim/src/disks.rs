//! Disks as a few numbers, by name.

use forerun_model::Nanos;
use forerun_storage::bite_bytes;

/// How fast experts come from a disk when nothing else wants it.
///
/// The figures of named disks are what such a device sustains for random reads of an expert's size, not what its
/// label says; a probe of the disk at hand beats them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// What it is called.
    pub name: &'static str,
    /// Bytes a second over all reads on the wire.
    pub bytes_per_second: u64,
    /// From the beginning of a read to its first byte.
    pub latency: Nanos,
    /// Reads that it works on at once; the others queue.
    pub depth: usize,
}

/// The disks that [`Disk::named`] knows.
pub const DISKS: &[Disk] = &[
    Disk::new("ufs4", 2_400_000_000, 150, 2),
    Disk::new("ufs4-hot", 1_600_000_000, 150, 2),
    Disk::new("apple", 5_500_000_000, 90, 8),
    Disk::new("apple-max", 10_000_000_000, 90, 8),
    Disk::new("nvme", 3_000_000_000, 80, 8),
    Disk::new("sata", 500_000_000, 120, 4),
    Disk::new("vm", 1_400_000_000, 200, 2),
];

impl Disk {
    const fn new(name: &'static str, bytes_per_second: u64, latency_us: u64, depth: usize) -> Self {
        Self { name, bytes_per_second, latency: Nanos::from_micros(latency_us), depth }
    }

    /// The disk called `name`: `ufs4`, a phone's flash, and `ufs4-hot`, the same when it throttles; `apple` and
    /// `apple-max`, the disks of small and of large Apple computers; `nvme`, `sata`; `vm`, a virtual disk.
    pub fn named(name: &str) -> Option<Self> {
        DISKS.iter().find(|disk| disk.name == name).copied()
    }

    /// A disk of which only the rate is known: latency and depth of an NVMe disk.
    pub const fn of_rate(bytes_per_second: u64) -> Self {
        Self { bytes_per_second, ..Self::new("custom", 0, 80, 8) }
    }

    /// How long a read of `bytes` takes when it is alone.
    pub fn alone(&self, bytes: u64) -> Nanos {
        self.latency + self.transfer(bytes)
    }

    /// The longest read for a guess, as the engine chooses it; `None`: a whole record.
    pub fn bite_bytes(&self, record_bytes: u64) -> Option<u64> {
        bite_bytes(self.bytes_per_second, record_bytes).map(u64::from)
    }

    /// How long `bytes` take at the full rate.
    pub fn transfer(&self, bytes: u64) -> Nanos {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second.max(1));
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_differ() {
        for disk in DISKS {
            assert_eq!(Disk::named(disk.name), Some(*disk));
        }
        assert_eq!(Disk::named("tape"), None);
    }

    #[test]
    fn a_read_takes_its_latency_and_its_bytes() {
        assert_eq!(Disk::of_rate(1_000_000_000).alone(1_000_000), Nanos::from_micros(80 + 1_000));
    }
}
