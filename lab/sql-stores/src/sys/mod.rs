//! Everything unsafe of this crate: Berkeley DB's functions, which are loaded, and the registration of netram's VFS with SQLite.

mod berkeley;
mod sqlite;

pub(crate) use berkeley::Engine;
pub use berkeley::{EngineError, LoadError, Shim};
pub use sqlite::register_vfs;
