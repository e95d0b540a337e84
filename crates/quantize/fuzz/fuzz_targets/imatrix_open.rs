//! Any bytes: opened as an importance matrix of either form; what opens can be asked for every matrix.
//!
//! `cargo +nightly fuzz run imatrix_open corpus/imatrix_open seeds/imatrix_open -- -max_len=65536 -max_total_time=30`

#![no_main]

use bytes::Bytes;
use forerun_quantize::Imatrix;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(imatrix) = Imatrix::open_bytes("fuzz", &Bytes::copy_from_slice(data)) else { return };
    assert!(!imatrix.is_empty());
    let mut n_values = 0;
    for (name, importance) in imatrix.iter() {
        assert!(name.len() <= data.len());
        n_values += importance.n_matrices() * importance.n_cols();
        for matrix in 0..importance.n_matrices() {
            if let Some(means) = importance.mean_squares(matrix) {
                assert!(means.iter().all(|mean| *mean >= 0.0) && importance.count(matrix) > 0.0);
            }
        }
        if let Some(halves) = importance.clone().into_matrices(2) {
            assert_eq!(halves.n_matrices(), 2);
        }
    }
    assert!(4 * n_values <= data.len());
});
