//! The page policies: what moves, and that nothing is lost on the way.

mod content;
mod stories;
