//! Empty for a moment.
fn main() {}
