//! Benchmarks live in files of their own beside this one.
