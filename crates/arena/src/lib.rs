//! Equal, page-aligned slots, allocated once, and the leases that hand them from reading to computing.
//!
//! An [`Arena`] is the only memory that both IO and compute may touch. Whoever fills a slot holds its one
//! [`WriteLease`]; [`WriteLease::seal`] turns it into a [`ReadLease`], of which there may be many. A slot can be
//! written again only when no lease of it lives, so a device that still reads keeps its bytes. [`WriteLease::split`] lets
//! several reads fill disjoint parts of a slot at once, each through its [`Window`]. A [`ReadLease`] may also be of shared
//! bytes that lie elsewhere, so that whoever computes needn't know where they do.
//!
//! Never here: what a slot holds, which slot to use next, files, threads that outlive a call.

pub mod error;
mod lease;
mod memory;
mod sync;
pub mod threads;
mod window;

pub use error::ArenaError;
pub use lease::{ReadLease, WriteLease};
pub use memory::{Arena, SLOT_ALIGN_BYTES, SlotIdx};
pub use window::Window;
