//! Any bytes as a kept conversation: no panic, no memory beyond the context's.

#![no_main]

use forerun_decode::prefix::fuzzing::{KEY, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = read(bytes);
    // Past the magic, the version and the key, which nobody guesses.
    let _ = read(&[b"FRprefix", &1u32.to_le_bytes()[..], &KEY, bytes].concat());
});
