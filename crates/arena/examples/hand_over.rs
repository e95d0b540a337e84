//! A slot travels from a filling thread to two reading ones; it can be reused when all have let go.
//!
//! `cargo run -p forerun-arena --example hand_over`

#![expect(clippy::print_stdout, reason = "an example talks")]

use std::thread;

use forerun_arena::{Arena, SlotIdx};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arena = Arena::new(2, 1 << 20)?;
    let mut writer = arena.try_write(SlotIdx(0)).ok_or("a fresh slot is free")?;
    writer.bytes_mut()[..5].copy_from_slice(b"hello");

    let reader = writer.seal();
    let other = reader.clone();
    let thread = thread::spawn(move || String::from_utf8_lossy(&other.bytes()[..5]).into_owned());
    println!("this thread reads  {:?}", String::from_utf8_lossy(&reader.bytes()[..5]));
    println!("another one reads  {:?}", thread.join().map_err(|_| "the reader panicked")?);

    println!("writable while a reader lives: {}", arena.try_write(SlotIdx(0)).is_some());
    drop(reader);
    println!("writable after the last one:   {}", arena.try_write(SlotIdx(0)).is_some());
    Ok(())
}
