//! The extension that programs of SQLite's load, and then open `file:app.db?vfs=netram`.
//!
//! `.load libnetram_sqlite` in its shell, `select load_extension('libnetram_sqlite')` in SQL: `make install`
//! puts the library there by that name. All of it is [`netram_sqlite`]; a Rust program that has SQLite linked
//! calls [`netram_sqlite::register`] instead. It is a package of its own because a library that other
//! programs load has no hash in its file's name: two builds of the crate that Rust programs use would
//! overwrite each other.
//!
//! Unsafe is what is in `abi` alone.

mod abi;
