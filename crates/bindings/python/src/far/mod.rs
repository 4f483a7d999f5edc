//! Far memory: arenas whose pages may be at lenders, and parts of them as buffers.
//!
//! | file | has |
//! |---|---|
//! | `arena.rs` | `Arena`: opening, allocating, status |
//! | `block.rs` | `FarMemory`: allocated memory as a buffer of bytes |

mod arena;
mod block;

pub(crate) use arena::{Arena, ArenaStatus, open_arena};
pub(crate) use block::FarMemory;
