//! The project's chores, one flat list.
fn main() {}
