//! A journal with real lenders: opening, writing, closing, dying.
//!
//! All tests are modules of one program, since each program is linked with everything.

mod closing;
mod common;
mod follow;
mod grow;
mod idle;
mod journal;
mod liar;
mod membership;
mod metrics;
mod names;
mod nonces;
mod over;
mod reasons;
mod shared;
mod shared_kill;
