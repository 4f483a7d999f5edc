//! Arenas, deposits and paging policies, message by message.

mod arena;
mod deposit;
mod paging;
