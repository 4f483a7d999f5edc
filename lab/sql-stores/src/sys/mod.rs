//! All unsafe code of this crate: Berkeley DB's functions, which are loaded, and the registration of netram's
//! VFS with SQLite.

mod berkeley;
mod sqlite;

pub(crate) use berkeley::BerkeleyEngine;
pub use berkeley::{BerkeleyError, BerkeleyShim, ShimLoadError};
pub use sqlite::register_vfs;
