//! What is kept comes back as it was, within its bounds, or not at all.

use std::fs;
use std::io::{self, Read, Write};

use forerun_model::TokenId;
use proptest::prelude::*;

use super::format::{Header, read_whole, write};
use super::memory::Memory;
use super::source::Source;
use super::store::Store;
use super::*;

const SHAPE: SavedShape = SavedShape { row_bytes: 24, state_values: 10, context: 256, key: Some([7; 32]) };

/// A conversation whose rows and states follow from its tokens.
#[derive(Clone, Debug)]
struct Made {
    tokens: Vec<TokenId>,
    lens: Vec<usize>,
}

impl Made {
    fn new(seed: u32, n: u32, lens: &[usize]) -> Self {
        let tokens = (0..n).map(|i| TokenId(if i < 20 { i } else { seed * 1000 + i })).collect();
        Self { tokens, lens: [lens, &[n as usize]].concat() }
    }

    fn rows(&self, n: usize) -> Vec<u8> {
        let row = |token: &TokenId| token.0.to_le_bytes().repeat(SHAPE.row_bytes / 4);
        self.tokens[..n].iter().flat_map(row).collect()
    }

    fn state(&self, len: usize) -> Vec<f32> {
        let sum: u32 = self.tokens[..len].iter().map(|token| token.0).sum();
        (1..).take(SHAPE.state_values).map(|i| f32::from_bits(sum.wrapping_mul(i) >> 2)).collect()
    }
}

impl Source for Made {
    fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    fn lens(&self) -> Vec<usize> {
        self.lens.clone()
    }

    fn write_state(&self, i: usize, out: &mut dyn Write) -> io::Result<()> {
        self.state(self.lens[i]).iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
    }

    fn write_rows(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.rows(self.tokens.len()))
    }
}

fn file(made: &Made) -> Vec<u8> {
    let mut file = Vec::new();
    write(made, &SHAPE, &mut file).unwrap();
    file
}

#[test]
fn a_file_is_read_as_it_was_written() {
    for n in [1, 15, 16, 17, 200] {
        let made = Made::new(1, n, if n > 10 { &[5, 10] } else { &[] });
        let file = file(&made);
        assert_eq!(file.len() as u64, Header::file_bytes(&SHAPE, n as usize, made.lens.len()));
        let (header, states, rows) = read_whole(&file, &SHAPE).unwrap();
        assert_eq!(header, Header { tokens: made.tokens.clone(), lens: made.lens.clone() });
        assert_eq!(rows, made.rows(n as usize));
        assert_eq!(states, made.lens.iter().map(|&len| made.state(len)).collect::<Vec<_>>());
    }
}

#[test]
fn no_bit_may_flip_and_no_byte_be_missing() {
    let file = file(&Made::new(1, 100, &[30]));
    for at in (0..file.len()).step_by(7).chain(0..120) {
        let mut flipped = file.clone();
        flipped[at] ^= 1 << (at % 8);
        assert!(read_whole(&flipped, &SHAPE).is_err(), "bit {} of byte {at}", at % 8);
        assert!(read_whole(&file[..at], &SHAPE).is_err(), "{at} bytes");
    }
    assert!(read_whole(&[&file[..], &[0]].concat(), &SHAPE).is_err(), "a byte more");
}

#[test]
fn files_of_others_are_told_apart() {
    let mut file = file(&Made::new(1, 100, &[]));
    let other = SavedShape { key: Some([8; 32]), ..SHAPE };
    assert_eq!(read_whole(&file, &other).unwrap_err(), Unusable::OtherModel);
    let short = SavedShape { context: 99, ..SHAPE };
    assert_eq!(read_whole(&file, &short).unwrap_err(), Unusable::TooLong { n_tokens: 100, context: 99 });
    file[8] = 2;
    assert_eq!(read_whole(&file, &SHAPE).unwrap_err(), Unusable::Version { found: 2 });
    assert_eq!(read_whole(b"a note of mine", &SHAPE).unwrap_err(), Unusable::Foreign);
}

/// Everything that `memory` has of `made` is right.
fn check(memory: &Memory, made: &Made) -> Option<usize> {
    let (id, len) = memory.find(&made.tokens)?;
    let mut checkpoint = Checkpoint::default();
    let mut rows = vec![0; len * SHAPE.row_bytes];
    memory.open(id, len, &mut checkpoint).unwrap().read_exact(&mut rows).unwrap();
    assert_eq!(rows, made.rows(len));
    assert_eq!((checkpoint.len, checkpoint.values), (len, made.state(len)));
    Some(len)
}

proptest! {
    #[test]
    fn what_memory_has_is_right_and_no_more_than_fits(
        bytes in 40_000u64..400_000,
        ops in prop::collection::vec((0u32..5, 20u32..250, 0usize..20, any::<bool>()), 1..40),
    ) {
        let mut memory = Memory::new(SHAPE, bytes);
        let mut made: Vec<Made> = Vec::new();
        for (seed, n, early, spares) in ops {
            let source = Made::new(seed, n, if early > 0 { std::slice::from_ref(&early) } else { &[] });
            let spared = made.last().filter(|_| spares).and_then(|made| memory.find(&made.tokens));
            let spared = spared.map(|(id, _)| id);
            if memory.could_hold(&source) {
                while let Some(id) = memory.in_the_way(&source, spared) {
                    prop_assert_ne!(Some(id), spared);
                    memory.remove(id);
                }
                let kept = memory.keep(&source, spared);
                prop_assert!(kept || spared.is_some());
                if kept {
                    prop_assert_eq!(check(&memory, &source), Some(n as usize));
                }
            }
            prop_assert!(memory.used_bytes() <= bytes);
            made.push(source);
            for made in &made {
                check(&memory, made);
            }
        }
        // Nothing is lost on the way.
        for id in memory.newest_first() {
            memory.remove(id);
        }
        prop_assert_eq!(memory.used_bytes(), 0);
    }
}

#[test]
fn the_longest_part_that_has_a_state_is_found() {
    let mut memory = Memory::new(SHAPE, 1 << 20);
    assert!(memory.keep(&Made::new(1, 100, &[15, 40]), None));
    let find = |tokens: &[TokenId]| memory.find(tokens).map(|(_, len)| len);
    let whole = Made::new(1, 120, &[]).tokens;
    assert_eq!(find(&whole), Some(100));
    assert_eq!(find(&whole[..99]), Some(40), "states go only forward");
    assert_eq!(find(&Made::new(2, 120, &[]).tokens), Some(15), "twenty tokens are common");
    assert_eq!(find(&whole[..14]), None);
    let plain = SavedShape { state_values: 0, ..SHAPE };
    let mut memory = Memory::new(plain, 1 << 20);
    assert!(memory.keep(&Made { lens: vec![], ..Made::new(1, 100, &[]) }, None));
    assert_eq!(memory.find(&whole[..77]).map(|(_, len)| len), Some(77), "without states anywhere");
}

fn disk(folder: &std::path::Path, bytes_max: u64, write_bytes_max: u64) -> Store {
    Store::open(PrefixDisk { folder: folder.to_owned(), bytes_max, write_bytes_max }, SHAPE).unwrap()
}

fn files(folder: &std::path::Path) -> Vec<(String, u64)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let entries = entries.filter(|entry| entry.file_name() != ".lock");
    let mut files: Vec<_> =
        entries.map(|e| (e.file_name().into_string().unwrap(), e.metadata().unwrap().len())).collect();
    files.sort();
    files
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_is_on_disk_is_right_and_no_more_than_may_be(
        bytes_max in 3_000u64..20_000,
        write_bytes_max in 3_000u64..60_000,
        ops in prop::collection::vec((0u32..6, 64u32..250, any::<bool>()), 1..20),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut store = disk(folder.path(), bytes_max, write_bytes_max);
        let mut written = 0;
        for (seed, n, reopens) in ops {
            let made = Made::new(seed, n, &[30]);
            store.keep(&made, None);
            if reopens {
                written += store.stats().bytes_written;
                drop(store);
                store = disk(folder.path(), bytes_max, write_bytes_max.saturating_sub(written));
            }
            let bytes: u64 = files(folder.path()).iter().map(|(_, bytes)| bytes).sum();
            prop_assert_eq!(bytes, store.stats().bytes);
            prop_assert!(bytes <= bytes_max);
            prop_assert!(written + store.stats().bytes_written <= write_bytes_max);
            let Some((path, len)) = store.find(&made.tokens) else { continue };
            let mut checkpoint = Checkpoint::default();
            let (found, mut rows) = store.open_file(&path, &made.tokens, &mut checkpoint).unwrap();
            prop_assert_eq!(found, len);
            let mut bytes = vec![0; len * SHAPE.row_bytes];
            rows.read_exact(&mut bytes).unwrap();
            prop_assert_eq!(bytes, made.rows(len));
            prop_assert_eq!(checkpoint.values, made.state(len));
            store.used(&path, 0);
        }
    }
}

#[test]
fn the_write_budget_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = disk(folder.path(), 1 << 20, 9_000);
    for seed in 0..5 {
        store.keep(&Made::new(seed, 150, &[]), None);
    }
    assert_eq!(store.stats().entries, 2);
    assert!(store.stats().bytes_written <= 9_000);
    let said = store.take_warnings();
    assert!(matches!(said[..], [PrefixWarning::WriteBudget { most: 9_000, .. }]), "{said:?}");
}

#[test]
fn others_files_stay_and_damaged_ones_go() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    let mut store = disk(&path, 1 << 20, 1 << 20);
    store.keep(&Made::new(1, 100, &[]), None);
    let name = files(&path)[0].0.clone();
    let whole = fs::read(path.join(&name)).unwrap();
    let mut damaged = whole.clone();
    damaged[70] ^= 1;
    let mut other = whole.clone();
    other[20] ^= 1;
    let put = |i: u32, bytes: &[u8]| fs::write(path.join(format!("{i:016x}{}", &name[16..])), bytes).unwrap();
    put(7, &damaged);
    put(8, &other);
    put(9, &whole[..whole.len() - 3]);
    fs::write(path.join("note.txt"), "mine").unwrap();
    fs::write(path.join(name.replace(".prefix", ".77.unfinished")), "half").unwrap();
    drop(store);
    let mut store = disk(&path, 1 << 20, 1 << 20);
    assert_eq!(store.stats().entries, 1);
    let reasons: Vec<_> = store.take_warnings();
    assert_eq!(reasons.len(), 3, "{reasons:?}");
    let left: Vec<String> = files(&path).into_iter().map(|(name, _)| name).collect();
    assert_eq!(left.len(), 3, "{left:?}");
    assert!(left.contains(&"note.txt".to_owned()) && left.contains(&name));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join(&name))), (0o700, 0o600));
    }
}
