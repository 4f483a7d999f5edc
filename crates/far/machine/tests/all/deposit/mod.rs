//! Both sides of deposits: the frames between an owner and a lender, and those that either refuses.

mod back;
mod client;
mod hedge;
mod hostile;
mod spill;
mod stories;
mod words;
mod world;
