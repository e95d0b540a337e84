//! What of a target is safe on disk: a list that only grows, each entry with a checksum, so that a torn end is known.
//!
//! It begins with a fingerprint of source and settings. An entry of another run can't pass for one of this run, since
//! the fingerprint is part of every checksum.

/// Stands for a source and the settings of a run.
pub(super) type Fingerprint = [u8; 32];

const MAGIC: [u8; 8] = *b"FRJOURN1";
const START_BYTES: usize = MAGIC.len() + size_of::<Fingerprint>() + 4;

/// What an earlier run left.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Replay {
    /// Steps whose data is safe.
    pub(super) n_steps: usize,
    /// Checksums of the experts of those steps, in the order of the steps.
    pub(super) crc32c: Vec<u32>,
    /// Bytes of the journal up to its last whole entry.
    pub(super) len_bytes: u64,
}

/// The first bytes of a journal.
pub(super) fn start(fingerprint: &Fingerprint) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(fingerprint);
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// Says that `n_steps` steps are safe; `crc32c` are the checksums of the experts since the entry before.
pub(super) fn entry(fingerprint: &Fingerprint, n_steps: usize, crc32c: &[u32]) -> Vec<u8> {
    let mut bytes = (n_steps as u64).to_le_bytes().to_vec();
    bytes.extend((crc32c.len() as u64).to_le_bytes());
    bytes.extend(crc32c.iter().flat_map(|crc| crc.to_le_bytes()));
    let sum = seal(fingerprint, &bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// Reads a journal; `None` unless it is one of this fingerprint.
pub(super) fn replay(bytes: &[u8], fingerprint: &Fingerprint) -> Option<Replay> {
    if bytes.get(..START_BYTES)? != start(fingerprint) {
        return None;
    }
    let mut replay = Replay { len_bytes: START_BYTES as u64, ..Replay::default() };
    let mut rest = &bytes[START_BYTES..];
    while let Some((n_steps, sums, len)) = read_entry(rest, fingerprint) {
        if n_steps < replay.n_steps {
            break;
        }
        replay.n_steps = n_steps;
        replay.crc32c.extend(sums.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        replay.len_bytes += len as u64;
        rest = &rest[len..];
    }
    Some(replay)
}

/// The first entry of `bytes`, if it is whole: steps, checksums, its length.
fn read_entry<'a>(bytes: &'a [u8], fingerprint: &Fingerprint) -> Option<(usize, &'a [u8], usize)> {
    let n_steps = number(bytes.get(..8)?)?;
    let n_sums = number(bytes.get(8..16)?)?;
    let body = n_sums.checked_mul(4)?.checked_add(16)?;
    let end = body.checked_add(4)?;
    let (body, sum) = bytes.get(..end)?.split_at(body);
    (sum == seal(fingerprint, body).to_le_bytes()).then_some((n_steps, &body[16..], end))
}

fn number(bytes: &[u8]) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(bytes.try_into().ok()?)).ok()
}

fn seal(fingerprint: &Fingerprint, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(fingerprint), body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_end_is_left_out_wherever_it_tears() {
        let mine = [7; 32];
        let first = [start(&mine), entry(&mine, 3, &[1, 2])].concat();
        let whole = [first.clone(), entry(&mine, 5, &[9])].concat();
        for cut in 0..=whole.len() {
            let found = replay(&whole[..cut], &mine);
            let expect = match cut {
                n if n == whole.len() => Some((5, vec![1, 2, 9])),
                n if n >= first.len() => Some((3, vec![1, 2])),
                n if n >= START_BYTES => Some((0, vec![])),
                _ => None,
            };
            assert_eq!(found.map(|replay| (replay.n_steps, replay.crc32c)), expect, "cut at {cut}");
        }
    }

    #[test]
    fn damage_and_other_runs_are_not_believed() {
        let (mine, other) = ([7; 32], [8; 32]);
        assert_eq!(replay(&start(&other), &mine), None);
        let foreign = [start(&mine), entry(&other, 3, &[])].concat();
        assert_eq!(replay(&foreign, &mine).unwrap().n_steps, 0);
        let whole = [start(&mine), entry(&mine, 3, &[1, 2])].concat();
        for at in START_BYTES..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            assert_eq!(replay(&damaged, &mine).unwrap().n_steps, 0, "byte {at}");
        }
    }
}
