//! The study of paging policies against its references.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod mascots96;
mod rows;
