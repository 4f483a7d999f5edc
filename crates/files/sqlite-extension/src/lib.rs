//! Internal to netram: programs use the crate `netram`.
//!
//! SQLite extension that registers netram's VFS. A program loads it and then opens `file:app.db?vfs=netram`.
//!
//! `make install` installs the library; load it with `.load libnetram_sqlite` in SQLite's shell or `select
//! load_extension('libnetram_sqlite')` in SQL. A Rust program that links SQLite calls
//! [`netram_sqlite::register`] instead.
//!
//! It is a package of its own because its file name has no hash. If [`netram_sqlite`] itself were the
//! library, two builds of that crate would overwrite each other.
//!
//! Unsafe code is confined to `abi`.

mod abi;
