//! The databases that this process has open. All connections to a database share one.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netram_journal::ForkMark;
use netram_sqlite_machine::{DatabaseWriterError, FileRole};

use crate::database::{Database, DatabaseOpenError};
use crate::paths::DatabasePaths;

struct OpenDatabase {
    /// Path of the database's file.
    main: PathBuf,
    database: Arc<Database>,
    connections: usize,
}

/// Databases open in one process.
struct OpenDatabases {
    process: ForkMark,
    entries: Mutex<Vec<OpenDatabase>>,
}

/// The open databases of this process, or of a parent if this is a forked child. In a child the parent's lock
/// may never be released, and its databases must not be closed.
static OPEN_DATABASES: AtomicPtr<OpenDatabases> = AtomicPtr::new(std::ptr::null_mut());

fn lock_databases() -> MutexGuard<'static, Vec<OpenDatabase>> {
    let mut found = OPEN_DATABASES.load(Ordering::Acquire);
    loop {
        // SAFETY: the pointer is null, or was leaked by this function and is never freed.
        if let Some(opened) = unsafe { found.as_ref() }
            && !opened.process.is_child()
        {
            return opened.entries.lock().unwrap_or_else(PoisonError::into_inner);
        }
        let new = Box::into_raw(Box::new(OpenDatabases {
            process: ForkMark::here(),
            entries: Mutex::default(),
        }));
        // If another thread was first, its value is used and this one is leaked.
        match OPEN_DATABASES.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => found = new,
            Err(other) => found = other,
        }
    }
}

/// Opens a database for one more connection.
pub(super) fn open(place: &DatabasePaths) -> Result<Arc<Database>, DatabaseOpenError> {
    let (mut all, main) = (lock_databases(), place.file(FileRole::Main));
    if let Some(entry) = all.iter_mut().find(|entry| entry.main == main) {
        entry.connections += 1;
        return Ok(Arc::clone(&entry.database));
    }
    let (database, _) = Database::open(place)?;
    let database = Arc::new(database);
    all.push(OpenDatabase {
        main,
        database: Arc::clone(&database),
        connections: 1,
    });
    Ok(database)
}

/// Closes a connection's file, and with the last connection the database. The lock keeps other threads from
/// opening it meanwhile: closing a file ends all locks that the process has on it.
pub(super) fn close(database: Arc<Database>) -> Result<(), DatabaseWriterError> {
    if database.is_of_parent() {
        let _parents = std::mem::ManuallyDrop::new(database);
        return Ok(());
    }
    let mut all = lock_databases();
    let Some(index) = { all.iter() }.position(|entry| Arc::ptr_eq(&entry.database, &database)) else {
        return Ok(());
    };
    drop(database);
    all[index].connections -= 1;
    if all[index].connections > 0 {
        return Ok(());
    }
    let entry = all.swap_remove(index);
    match Arc::try_unwrap(entry.database) {
        Ok(database) => database.close(),
        // A log of it is still open, which SQLite avoids. The database stays open.
        Err(database) => {
            all.push(OpenDatabase {
                database,
                connections: 0,
                ..entry
            });
            Ok(())
        }
    }
}

/// The open database that a log belongs to, with the log's role.
pub(super) fn database_of_log(path: &Path) -> Option<(Arc<Database>, FileRole)> {
    use std::os::unix::ffi::OsStrExt;
    let name = path.as_os_str().as_bytes();
    let all = lock_databases();
    [FileRole::Wal, FileRole::Journal].into_iter().find_map(|role| {
        let main = name.strip_suffix(role.suffix().as_bytes())?;
        let found = { all.iter() }.find(|entry| entry.main.as_os_str().as_bytes() == main)?;
        Some((Arc::clone(&found.database), role))
    })
}

/// Whether a path names a log of a managed database, open or not.
pub(super) fn is_log_of_managed(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let name = path.as_os_str().as_bytes();
    [FileRole::Wal, FileRole::Journal].into_iter().any(|role| {
        let Some(main) = name.strip_suffix(role.suffix().as_bytes()) else {
            return false;
        };
        let main = Path::new(std::ffi::OsStr::from_bytes(main));
        DatabasePaths::of(main).is_ok_and(|place| place.is_managed() && place.file(role) == path)
    })
}
