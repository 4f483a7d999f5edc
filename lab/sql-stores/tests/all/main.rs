//! OO7 in databases.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod stores;
