//! The program `forerun`.
fn main() {}
