//! Both sides of deposits: what an owner and a lender say to each other, and what neither takes from the
//! other.

mod back;
mod client;
mod hedge;
mod hostile;
mod spill;
mod stories;
mod words;
mod world;
