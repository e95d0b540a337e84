//! How long a read for a guess is.
//!
//! What is on the wire can't be stopped. So a guess is read in pieces: a demand waits for those that are on the wire, and a
//! guess that has turned out wrong is given up between two.

/// How long a demand may wait for a guess that is being read.
const WAIT_US_MAX: u64 = 350;
/// Shorter reads would cost a disk much of its rate.
const BYTES_MIN: u64 = 128 << 10;
/// Lengths are multiples of this, which every disk's block divides.
const STEP_BYTES: u64 = 64 << 10;

/// The longest read for a guess on a disk that gives `bytes_per_second`; `None` when a whole record of `record_bytes` is
/// no longer than that.
pub fn bite_bytes(bytes_per_second: u64, record_bytes: u64) -> Option<u32> {
    let moved = bytes_per_second.saturating_mul(WAIT_US_MAX) / 1_000_000;
    let bite_bytes = (moved / STEP_BYTES * STEP_BYTES).max(BYTES_MIN);
    u32::try_from(bite_bytes).ok().filter(|_| bite_bytes < record_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_what_the_disk_moves_in_a_third_of_a_millisecond() {
        const RECORD: u64 = 1_769_472;
        assert_eq!(bite_bytes(1_000_000_000, RECORD), Some(320 << 10));
        assert_eq!(bite_bytes(2_000_000_000, RECORD), Some(640 << 10));
        assert_eq!(bite_bytes(100_000_000, RECORD), Some(128 << 10), "a slow disk");
        assert_eq!(bite_bytes(7_000_000_000, RECORD), None, "a fast one reads guesses whole");
        assert_eq!(bite_bytes(u64::MAX, u64::MAX), None);
        assert_eq!(bite_bytes(100_000_000, 128 << 10), None);
    }
}
