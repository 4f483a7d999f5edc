//! Paging policies: which pages move, and that nothing is lost.

mod content;
mod stories;
