//! The whole probe over this machine's file systems: what it finds differs, that it ends and adds up doesn't.

use forerun_model::SystemClock;

use super::*;
use crate::testing;

fn config(record_bytes: usize) -> ProbeConfig {
    ProbeConfig { record_bytes, seed: 1, limit: None }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

#[test]
fn a_model_in_memory_has_no_disk() {
    let files = testing::in_memory(&[vec![0; 10_000].into()]);
    let error = probe(&files, config(4096), &clock()).unwrap_err().to_string();
    assert!(error.ends_with("it is in memory already"), "{error}");
}

#[test]
fn a_file_without_a_block_is_refused() {
    let files = testing::temporary(&[vec![0; 4095].into(), vec![].into()]);
    let error = probe(&files, config(4096), &clock()).unwrap_err().to_string();
    assert!(error.ends_with("it is shorter than a block"), "{error}");
}

#[test]
fn small_files_are_probed() {
    for len in [4096, 10_000, 300_000, 2_000_000] {
        let files = testing::temporary(&[vec![1; len].into(), vec![2; 5000].into()]);
        let report = probe(&files, config(64 << 10), &clock()).unwrap();
        let rates = report.rates.iter().chain(&report.small);
        let n_bytes: u64 = rates.map(|rate| rate.n_reads * rate.read_bytes).sum();
        assert!(n_bytes <= len as u64 + 5000, "{n_bytes} of {len} bytes were read");
        assert_eq!(report.choice.reasons.len(), 5);
        // On Windows disks aren't told apart, so nothing is kept for later there.
        let is_known = !report.device.id.is_empty();
        assert!(report.is_sane() && is_known == cfg!(unix), "{report:?}");
    }
}

#[test]
fn a_limit_is_kept() {
    let files = testing::temporary(&[vec![1; 8 << 20].into()]);
    let limit = NonZeroU64::new(20_000_000);
    let report = probe(&files, ProbeConfig { limit, ..config(256 << 10) }, &clock()).unwrap();
    for rate in &report.rates {
        assert!(rate.bytes_per_second <= 20_000_000, "{rate:?}");
    }
}

#[test]
fn the_longest_range_of_an_expert_is_a_models_record() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny-b-q3_k_m.gguf");
    let gguf = crate::Gguf::open(path.as_ref()).unwrap();
    let shape = forerun_model::ModelShape::from_metadata(&gguf.metadata).unwrap();
    let catalog = Catalog::new(&shape, &gguf).unwrap();
    let parts = catalog.record(ExpertKey::new(0, 0)).unwrap().parts;
    let longest = parts.iter().map(|part| part.len_bytes as usize).max().unwrap();
    assert!(record_bytes(&catalog) >= longest);
    assert!(record_bytes(&catalog) <= catalog.slot_bytes(1));
}
