//! SQLite and Berkeley DB beside plain memory: the same counts, the same database, after every operation.

use std::io::Write;
use std::path::Path;

use netram_oo7::{Audit, Operation, Parameters, Plain, Store, StoreError, Work, audit, build};
use netram_sql_stores::{BerkeleyStore, Files, Journal, LoadError, Manager, Shim, SqliteStore};
use tempfile::TempDir;

/// Berkeley DB; `None`: it is not here, and that was said aloud.
fn berkeley() -> Option<Shim> {
    let folder = tempfile::tempdir().unwrap();
    match Shim::compile(folder.path()) {
        Ok(library) => Some(Shim::load(&library).unwrap()),
        Err(LoadError::Absent(why)) => {
            // Past the test harness, which would keep it to itself.
            let _ = writeln!(std::io::stderr(), "\nSKIPPED: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn sqlite(folder: &Path, journal: Journal) -> SqliteStore {
    let store = SqliteStore::create(&folder.join("oo7.db"), journal, Files::System).unwrap();
    store.synced(false).unwrap();
    store
}

fn berkeley_in(shim: Shim, folder: &Path) -> BerkeleyStore {
    let store = BerkeleyStore::create(shim, folder).unwrap();
    store.synced(false).unwrap();
    store
}

fn audited(store: &impl Store, parameters: &Parameters) -> Audit {
    let mut open = store.begin().unwrap();
    let found = audit(&mut open, parameters, true).unwrap();
    open.commit().unwrap();
    found
}

/// One operation in a transaction of its own.
fn run(store: &impl Store, operation: Operation, parameters: &Parameters) -> u64 {
    let mut open = store.begin().unwrap();
    let count = operation.run(&mut open, parameters, 1).unwrap();
    open.commit().unwrap();
    count
}

/// Builds the database and does every operation, there and in plain memory; audits both after those that change something.
fn agree(store: &impl Store, parameters: &Parameters) {
    build(store, parameters).unwrap();
    let plain = Plain::default();
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

fn tiny() -> Parameters {
    "tiny-3".parse().unwrap()
}

#[test]
fn sqlite_agrees() {
    for (parameters, journal) in [
        (tiny(), Journal::Wal),
        (tiny().with_modules(2), Journal::Rollback),
    ] {
        let folder = tempfile::tempdir().unwrap();
        agree(&sqlite(folder.path(), journal), &parameters);
    }
}

#[test]
fn berkeley_db_agrees() {
    let Some(shim) = berkeley() else { return };
    for parameters in [tiny(), tiny().with_modules(2)] {
        let folder = tempfile::tempdir().unwrap();
        agree(&berkeley_in(shim, folder.path()), &parameters);
    }
}

/// The golden digest of `lab/oo7/tests/all/golden.rs`, and documents of many bytes.
#[test]
fn the_small_database_has_its_digest() {
    let parameters: Parameters = "small-3".parse().unwrap();
    let look = |store: &dyn Fn() -> Audit| assert_eq!(store().digest, 16_061_135_988_765_459_738);
    let folder = tempfile::tempdir().unwrap();
    let store = sqlite(folder.path(), Journal::Wal);
    build(&store, &parameters).unwrap();
    look(&|| audited(&store, &parameters));
    let Some(shim) = berkeley() else { return };
    let folder = tempfile::tempdir().unwrap();
    let store = berkeley_in(shim, folder.path());
    build(&store, &parameters).unwrap();
    look(&|| audited(&store, &parameters));
    let plain = Plain::default();
    build(&plain, &parameters).unwrap();
    for operation in [Operation::T4, Operation::T5Do, Operation::Q3] {
        let count = run(&plain, operation, &parameters);
        assert_eq!(run(&store, operation, &parameters), count, "{operation}");
    }
}

fn dropped_leaves_nothing(store: &impl Manager) {
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
fn an_operation_that_is_dropped_leaves_nothing() {
    for journal in [Journal::Wal, Journal::Rollback] {
        let folder = tempfile::tempdir().unwrap();
        dropped_leaves_nothing(&sqlite(folder.path(), journal));
    }
    let Some(shim) = berkeley() else { return };
    let folder = tempfile::tempdir().unwrap();
    dropped_leaves_nothing(&berkeley_in(shim, folder.path()));
}

fn noted(store: &impl Manager) -> u32 {
    fn ask<M: Manager>(store: &M) -> u32 {
        let mut open = store.begin().unwrap();
        let noted = M::noted(&mut open).unwrap();
        open.commit().unwrap();
        noted
    }
    ask(store)
}

/// Counts two transactions and one that is dropped, and brings everything to the files.
fn note<M: Manager>(store: &M) {
    for commit in [true, false, true] {
        let mut open = store.begin().unwrap();
        M::note(&mut open).unwrap();
        if commit {
            open.commit().unwrap();
        }
    }
    assert_eq!(noted(store), 2);
    store.checkpoint().unwrap();
}

fn missing<S>(opened: Result<S, StoreError>) -> &'static str {
    match opened {
        Err(StoreError::Missing { why }) => why,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was opened"),
    }
}

#[test]
fn a_database_that_is_whole_is_opened_again_and_another_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oo7.db");
    for journal in [Journal::Wal, Journal::Rollback] {
        let open = || SqliteStore::open(&path, journal, Files::System);
        let store = match journal {
            Journal::Wal => sqlite(folder.path(), journal),
            Journal::Rollback => open().unwrap(),
        };
        if journal == Journal::Wal {
            drop(store);
            assert_eq!(missing(open()), "its building was cut off");
            let again = SqliteStore::create(&folder.path().join("other.db"), journal, Files::System).unwrap();
            build(&again, &tiny()).unwrap();
            note(&again);
            drop(again);
            std::fs::rename(folder.path().join("other.db"), &path).unwrap();
        }
        assert_eq!(noted(&open().unwrap()), 2);
    }
    let Some(shim) = berkeley() else { return };
    let folder = TempDir::new().unwrap();
    let store = berkeley_in(shim, folder.path());
    drop(store);
    let open = || BerkeleyStore::open(shim, folder.path());
    assert_eq!(missing(open()), "its building was cut off");
    let folder = TempDir::new().unwrap();
    let open = || BerkeleyStore::open(shim, folder.path());
    assert_eq!(missing(open()), "the environment has no such database");
    let folder = TempDir::new().unwrap();
    let store = berkeley_in(shim, folder.path());
    build(&store, &tiny()).unwrap();
    note(&store);
    let before = audited(&store, &tiny());
    drop(store);
    let again = BerkeleyStore::open(shim, folder.path()).unwrap();
    assert_eq!((noted(&again), audited(&again, &tiny())), (2, before));
}
