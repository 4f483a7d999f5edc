//! SQLite and Berkeley DB beside plain memory: the same counts, the same database, after every operation.

use std::io::Write;
use std::path::Path;

use netram_oo7::{
    DatabaseAudit, Oo7Error, Oo7Parameters, Oo7Store, Oo7Transaction, Operation, PlainStore, audit, build,
};
use netram_sql_stores::{
    BerkeleyShim, BerkeleyStore, ShimLoadError, SqliteJournalMode, SqliteStore, SqliteVfs, StorageManager,
};
use tempfile::TempDir;

/// Berkeley DB; `None`, with a printed reason, if it is not installed.
fn berkeley() -> Option<BerkeleyShim> {
    let directory = tempfile::tempdir().unwrap();
    match BerkeleyShim::compile(directory.path()) {
        Ok(library) => Some(BerkeleyShim::load(&library).unwrap()),
        Err(ShimLoadError::NotInstalled(why)) => {
            // Written past the test harness, which would swallow it.
            let _ = writeln!(std::io::stderr(), "\nSKIPPED: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn sqlite(directory: &Path, journal: SqliteJournalMode) -> SqliteStore {
    let store = SqliteStore::create(&directory.join("oo7.db"), journal, SqliteVfs::System).unwrap();
    store.set_synced(false).unwrap();
    store
}

fn berkeley_in(shim: BerkeleyShim, directory: &Path) -> BerkeleyStore {
    let store = BerkeleyStore::create(shim, directory).unwrap();
    store.set_synced(false).unwrap();
    store
}

fn audited(store: &impl Oo7Store, parameters: &Oo7Parameters) -> DatabaseAudit {
    let mut open = store.begin().unwrap();
    let found = audit(&mut open, parameters, true).unwrap();
    open.commit().unwrap();
    found
}

/// Runs one operation in its own transaction.
fn run(store: &impl Oo7Store, operation: Operation, parameters: &Oo7Parameters) -> u64 {
    let mut open = store.begin().unwrap();
    let count = operation.run(&mut open, parameters, 1).unwrap();
    open.commit().unwrap();
    count
}

/// Builds the database and runs every operation on `store` and in plain memory; audits both after each
/// change.
fn agree(store: &impl Oo7Store, parameters: &Oo7Parameters) {
    build(store, parameters).unwrap();
    let plain = PlainStore::default();
    build(&plain, parameters).unwrap();
    assert_eq!(audited(store, parameters), audited(&plain, parameters));
    for operation in Operation::ALL {
        let count = run(&plain, *operation, parameters);
        assert_eq!(run(store, *operation, parameters), count, "{operation}");
        if operation.changes() {
            let after = audited(&plain, parameters);
            assert_eq!(audited(store, parameters), after, "{operation}");
        }
    }
}

fn tiny() -> Oo7Parameters {
    "tiny-3".parse().unwrap()
}

#[test]
fn sqlite_agrees() {
    for (parameters, journal) in [
        (tiny(), SqliteJournalMode::Wal),
        (tiny().with_modules(2), SqliteJournalMode::Rollback),
    ] {
        let directory = tempfile::tempdir().unwrap();
        agree(&sqlite(directory.path(), journal), &parameters);
    }
}

#[test]
fn berkeley_db_agrees() {
    let Some(shim) = berkeley() else { return };
    for parameters in [tiny(), tiny().with_modules(2)] {
        let directory = tempfile::tempdir().unwrap();
        agree(&berkeley_in(shim, directory.path()), &parameters);
    }
}

/// Compares with the golden digest of `lab/oo7/tests/all/golden.rs`, and with large documents.
#[test]
fn the_small_database_has_its_digest() {
    let parameters: Oo7Parameters = "small-3".parse().unwrap();
    let look = |store: &dyn Fn() -> DatabaseAudit| assert_eq!(store().digest, 16_061_135_988_765_459_738);
    let directory = tempfile::tempdir().unwrap();
    let store = sqlite(directory.path(), SqliteJournalMode::Wal);
    build(&store, &parameters).unwrap();
    look(&|| audited(&store, &parameters));
    let Some(shim) = berkeley() else { return };
    let directory = tempfile::tempdir().unwrap();
    let store = berkeley_in(shim, directory.path());
    build(&store, &parameters).unwrap();
    look(&|| audited(&store, &parameters));
    let plain = PlainStore::default();
    build(&plain, &parameters).unwrap();
    for operation in [Operation::T4, Operation::T5Do, Operation::Q3] {
        let count = run(&plain, operation, &parameters);
        assert_eq!(run(&store, operation, &parameters), count, "{operation}");
    }
}

fn dropped_leaves_nothing(store: &impl StorageManager) {
    build(store, &tiny()).unwrap();
    let before = audited(store, &tiny());
    for operation in [Operation::T2b, Operation::T3b, Operation::T5Do, Operation::I] {
        let mut open = store.begin().unwrap();
        operation.run(&mut open, &tiny(), 1).unwrap();
        drop(open);
        assert_eq!(audited(store, &tiny()), before, "{operation}");
    }
    run(store, Operation::I, &tiny());
    run(store, Operation::I, &tiny());
    assert_eq!(run(store, Operation::D, &tiny()), 20);
    assert_eq!(
        audited(store, &tiny()),
        before,
        "what is inserted is deleted without a trace"
    );
}

#[test]
fn a_dropped_operation_leaves_nothing() {
    for journal in [SqliteJournalMode::Wal, SqliteJournalMode::Rollback] {
        let directory = tempfile::tempdir().unwrap();
        dropped_leaves_nothing(&sqlite(directory.path(), journal));
    }
    let Some(shim) = berkeley() else { return };
    let directory = tempfile::tempdir().unwrap();
    dropped_leaves_nothing(&berkeley_in(shim, directory.path()));
}

fn noted(store: &impl StorageManager) -> u32 {
    fn ask<M: StorageManager>(store: &M) -> u32 {
        let mut open = store.begin().unwrap();
        let noted = M::note_count(&mut open).unwrap();
        open.commit().unwrap();
        noted
    }
    ask(store)
}

/// Counts two notes and one of a dropped transaction, and makes a checkpoint.
fn note<M: StorageManager>(store: &M) {
    for commit in [true, false, true] {
        let mut open = store.begin().unwrap();
        M::insert_note(&mut open).unwrap();
        if commit {
            open.commit().unwrap();
        }
    }
    assert_eq!(noted(store), 2);
    store.checkpoint().unwrap();
}

fn missing<S>(opened: Result<S, Oo7Error>) -> &'static str {
    match opened {
        Err(Oo7Error::Missing { why }) => why,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was opened"),
    }
}

#[test]
fn only_a_complete_database_is_reopened() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("oo7.db");
    for journal in [SqliteJournalMode::Wal, SqliteJournalMode::Rollback] {
        let open = || SqliteStore::open(&path, journal, SqliteVfs::System);
        let store = match journal {
            SqliteJournalMode::Wal => sqlite(directory.path(), journal),
            SqliteJournalMode::Rollback => open().unwrap(),
        };
        if journal == SqliteJournalMode::Wal {
            drop(store);
            assert_eq!(missing(open()), "its building was cut off");
            let again =
                SqliteStore::create(&directory.path().join("other.db"), journal, SqliteVfs::System).unwrap();
            build(&again, &tiny()).unwrap();
            note(&again);
            drop(again);
            std::fs::rename(directory.path().join("other.db"), &path).unwrap();
        }
        assert_eq!(noted(&open().unwrap()), 2);
    }
    let Some(shim) = berkeley() else { return };
    let directory = TempDir::new().unwrap();
    let store = berkeley_in(shim, directory.path());
    drop(store);
    let open = || BerkeleyStore::open(shim, directory.path());
    assert_eq!(missing(open()), "its building was cut off");
    let directory = TempDir::new().unwrap();
    let open = || BerkeleyStore::open(shim, directory.path());
    assert_eq!(missing(open()), "the environment has no such database");
    let directory = TempDir::new().unwrap();
    let store = berkeley_in(shim, directory.path());
    build(&store, &tiny()).unwrap();
    note(&store);
    let before = audited(&store, &tiny());
    drop(store);
    let again = BerkeleyStore::open(shim, directory.path()).unwrap();
    assert_eq!((noted(&again), audited(&again, &tiny())), (2, before));
}
