//! What is lent, and what no longer.

use forerun_arena::{Arena, SlotIdx};
use forerun_model::Nanos;

use super::*;
use crate::catalog::tests::{catalog_of, catalog_over};
use crate::{ExpertStore, FileStore, MmapBackend, Priority, StoreError, testing};

/// More than one window, so that experts lie in some of them only.
const FILE_BYTES: u32 = 5 << 20;

fn file() -> Bytes {
    (0..FILE_BYTES).map(|i| i.to_le_bytes()[1] ^ i.to_le_bytes()[0]).collect()
}

fn store(catalog: Catalog, files: &FileSet) -> FileStore {
    let mapped = Mapped::new(&catalog, files).unwrap();
    let backend = MmapBackend::new(files).unwrap();
    FileStore::new(catalog.into(), files.clone(), Box::new(backend)).lending(mapped)
}

#[test]
fn every_byte_of_an_expert_is_lent_where_it_lies() {
    let file = file();
    let files = testing::temporary(std::slice::from_ref(&file));
    let mut store = store(catalog_of(), &files);
    let mut base = None;
    for expert in 0..8 {
        let key = ExpertKey::new(0, expert);
        let Lent { lease, parts } = store.lend(key).unwrap();
        for (part, at) in
            catalog_of().record(key).unwrap().parts.iter().zip([parts.gate, parts.up, parts.down])
        {
            let start = usize::try_from(part.offset_bytes).unwrap();
            let len = part.len_bytes as usize;
            assert_eq!(lease.bytes()[at..at + len], file[start..start + len], "{key}");
        }
        assert_eq!(*base.get_or_insert(lease.bytes().as_ptr()), lease.bytes().as_ptr(), "{key} was copied");
    }
    assert!(store.lend(ExpertKey::new(0, 8)).is_none() && store.lend(ExpertKey::new(1, 0)).is_none());
}

#[test]
fn an_expert_in_two_files_is_not_lent() {
    let files = testing::temporary(&[file(), file()]);
    let mut store = store(catalog_over([0, 0, 1]), &files);
    assert!(store.lend(ExpertKey::new(0, 0)).is_none());
    assert_eq!(Lendable::of(&catalog_over([0, 0, 1]), &files), Lendable { n_experts: 0, bytes: 0 });
}

#[test]
fn windows_count_once_and_end_with_the_file() {
    // Gate and up lie in the first window, down from its end into the second.
    let files = testing::temporary(&[file()]);
    assert_eq!(Lendable::of(&catalog_of(), &files), Lendable { n_experts: 8, bytes: 2 << 20 });
    let short = testing::temporary(&[file().slice(..2_070_000)]);
    assert_eq!(Lendable::of(&catalog_of(), &short).bytes, 2_070_000);
}

#[test]
fn leases_outlive_the_lending() {
    let files = testing::temporary(&[file()]);
    let mut store = store(catalog_of(), &files);
    let lent = store.lend(ExpertKey::new(0, 3)).unwrap();
    store.stop_lending();
    assert!(store.lend(ExpertKey::new(0, 3)).is_none());
    drop(store);
    assert_eq!(lent.lease.bytes(), &file()[..]);
}

#[test]
fn asking_whether_lends_nothing() {
    let files = testing::temporary(&[file()]);
    let (catalog, key) = (catalog_of(), ExpertKey::new(0, 3));
    let mapped = Mapped::new(&catalog, &files).unwrap();
    assert!(mapped.can_lend(&catalog, key) && !mapped.can_lend(&catalog, ExpertKey::new(0, 8)));
    assert!(mapped.unchecked.is_none() && !mapped.asked_for.contains(&true));
    let mut store = store(catalog, &files);
    assert!(store.can_lend(key));
    store.stop_lending();
    assert!(!store.can_lend(ExpertKey::new(0, 3)));
}

/// What was computed from a file that was written to doesn't count; it is lent no more, and reading it says why.
#[test]
fn a_file_that_changed_is_not_lent() {
    let files = testing::temporary(&[file()]);
    let mut store = store(catalog_of(), &files);
    assert!(store.lend(ExpertKey::new(0, 0)).is_some());
    assert!(store.check_lent().is_ok());
    let Content::File(content) = &files.files()[0].content else { unreachable!() };
    content.set_len(u64::from(FILE_BYTES) + 1).unwrap();
    assert!(store.check_lent().is_ok(), "nothing was lent since the last look");
    assert!(store.lend(ExpertKey::new(0, 5)).is_some(), "a pass is looked at once");
    let Err(StoreError::Changed { key, .. }) = store.check_lent() else {
        panic!("the pass used a changed file")
    };
    assert_eq!(key, ExpertKey::new(0, 5));
    assert!(store.check_lent().is_ok() && !store.can_lend(ExpertKey::new(0, 0)));
    assert!(store.lend(ExpertKey::new(0, 0)).is_none());
    let arena = Arena::new(1, store.slot_bytes()).unwrap();
    store.begin(ExpertKey::new(0, 0), arena.try_write(SlotIdx(0)).unwrap(), Priority::Demand).unwrap();
    let mut done = Vec::new();
    store.wait(Nanos::MAX, &mut done);
    assert!(matches!(done.pop().unwrap().result, Err(StoreError::Changed { .. })));
}
