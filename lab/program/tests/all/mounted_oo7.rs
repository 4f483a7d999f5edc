//! OO7 in SQLite and Berkeley DB with their files on a mount: after a process is killed during an operation,
//! its commits are there, whether the mount is killed with it or not.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use netram_oo7::{
    DatabaseAudit, Oo7Parameters, Oo7Store, Oo7Transaction, Operation, PlainStore, audit, build,
};
use netram_sql_stores::{
    BerkeleyShim, BerkeleyStore, ShimLoadError, SqliteJournalMode, SqliteStore, SqliteVfs, StorageManager,
};

use crate::common::mounted::{MountFixture, cannot_mount, wait_until};
use crate::common::{forks, skipped};

const ENGINE: &str = "NETRAM_REX_ENGINE";
const PLACE: &str = "NETRAM_REX_PLACE";
const SHIM: &str = "NETRAM_REX_SHIM";
const FIRST: &str = "NETRAM_REX_FIRST";
/// Operations that the process repeats, each in its own transaction.
const HISTORY: [Operation; 4] = [Operation::T3b, Operation::I, Operation::T2b, Operation::D];
const ROUNDS: usize = 4;

fn parameters() -> Oo7Parameters {
    "tiny-3".parse().unwrap()
}

#[derive(Clone, Copy, PartialEq)]
enum Engine {
    Sqlite(SqliteJournalMode),
    Berkeley,
}

impl Engine {
    const ALL: [(&str, Engine); 3] = [
        ("oo7-wal", Engine::Sqlite(SqliteJournalMode::Wal)),
        ("oo7-rollback", Engine::Sqlite(SqliteJournalMode::Rollback)),
        ("oo7-berkeley", Engine::Berkeley),
    ];
}

fn transact(store: &impl Oo7Store, operation: Operation) {
    let mut open = store.begin().unwrap();
    operation.run(&mut open, &parameters(), 1).unwrap();
    open.commit().unwrap();
}

fn audited(store: &impl Oo7Store) -> DatabaseAudit {
    let mut open = store.begin().unwrap();
    let found = audit(&mut open, &parameters(), true).unwrap();
    open.commit().unwrap();
    found
}

fn go_on(store: &impl Oo7Store, first: usize) {
    for operation in HISTORY.iter().cycle().skip(first % HISTORY.len()) {
        transact(store, *operation);
        let mut out = std::io::stdout().lock();
        writeln!(out, "committed").and_then(|()| out.flush()).unwrap();
    }
}

/// Continues the history and reports each transaction after its commit, until it is killed.
#[test]
#[ignore = "the process that the other tests kill"]
fn worker() {
    let of = |name| std::env::var(name).ok();
    let Some((engine, place)) = of(ENGINE).zip(of(PLACE)) else {
        return;
    };
    let place = Path::new(&place);
    let first = of(FIRST).unwrap().parse().unwrap();
    let (_, engine) = { Engine::ALL.iter() }.find(|(name, _)| *name == engine).unwrap();
    match *engine {
        Engine::Sqlite(journal) => {
            let store = SqliteStore::open(&place.join("oo7.db"), journal, SqliteVfs::System).unwrap();
            go_on(&store, first);
        }
        Engine::Berkeley => {
            let shim = BerkeleyShim::load(Path::new(&of(SHIM).unwrap())).unwrap();
            go_on(&BerkeleyStore::open(shim, place).unwrap(), first);
        }
    }
}

/// The database after each of the history's transactions.
struct Expected {
    store: PlainStore,
    after: Vec<DatabaseAudit>,
}

impl Expected {
    fn new() -> Expected {
        let store = PlainStore::default();
        build(&store, &parameters()).unwrap();
        let after = vec![audited(&store)];
        Expected { store, after }
    }

    fn after(&mut self, transactions: usize) -> DatabaseAudit {
        while self.after.len() <= transactions {
            transact(&self.store, HISTORY[(self.after.len() - 1) % HISTORY.len()]);
            self.after.push(audited(&self.store));
        }
        self.after[transactions]
    }
}

/// The database in its directory on the mount, and the way to open it.
struct Place {
    name: &'static str,
    engine: Engine,
    directory: PathBuf,
    shim: Option<PathBuf>,
}

impl Place {
    fn build(&self) {
        fn built(store: &impl StorageManager) {
            build(store, &parameters()).unwrap();
            store.checkpoint().unwrap();
        }
        fs::create_dir(&self.directory).unwrap();
        match self.engine {
            Engine::Sqlite(journal) => {
                let path = self.directory.join("oo7.db");
                let store = SqliteStore::create(&path, journal, SqliteVfs::System).unwrap();
                store.set_synced(false).unwrap();
                built(&store);
            }
            Engine::Berkeley => {
                let store = BerkeleyStore::create(self.loaded(), &self.directory).unwrap();
                store.set_synced(false).unwrap();
                built(&store);
            }
        }
    }

    fn loaded(&self) -> BerkeleyShim {
        BerkeleyShim::load(self.shim.as_deref().unwrap()).unwrap()
    }

    fn audited(&self) -> DatabaseAudit {
        match self.engine {
            Engine::Sqlite(journal) => {
                let path = self.directory.join("oo7.db");
                audited(&SqliteStore::open(&path, journal, SqliteVfs::System).unwrap())
            }
            Engine::Berkeley => audited(&BerkeleyStore::open(self.loaded(), &self.directory).unwrap()),
        }
    }

    fn worker(&self, first: usize, said: &Path) -> Child {
        let _alone = forks();
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "mounted_oo7::worker", "--ignored", "--nocapture"])
            .env(ENGINE, self.name)
            .env(PLACE, &self.directory)
            .env(SHIM, self.shim.clone().unwrap_or_default())
            .env(FIRST, first.to_string())
            .stdin(Stdio::null())
            .stdout(OpenOptions::new().append(true).create(true).open(said).unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }
}

fn committed(said: &Path) -> usize {
    let text = fs::read_to_string(said).unwrap();
    text.lines().filter(|line| line.ends_with("committed")).count()
}

fn killed_leaves_what_was_committed(name: &str) {
    if cannot_mount() {
        return;
    }
    let (name, engine) = *{ Engine::ALL.iter() }.find(|(known, _)| *known == name).unwrap();
    let programs = tempfile::tempdir().unwrap();
    let shim = match (engine, BerkeleyShim::compile(programs.path())) {
        (Engine::Sqlite(_), _) => None,
        (Engine::Berkeley, Ok(library)) => Some(library),
        (Engine::Berkeley, Err(ShimLoadError::NotInstalled(why))) => return skipped(why),
        (Engine::Berkeley, Err(error)) => panic!("{error}"),
    };
    let mut mounted = MountFixture::new(name, 2, "16MiB");
    let place = Place {
        name,
        engine,
        directory: mounted.dir().join("base"),
        shim,
    };
    place.build();
    let mut expected = Expected::new();
    let mut done = 0;
    for round in 0..ROUNDS {
        let said = mounted.directory.path().join(format!("said-{round}"));
        fs::write(&said, "").unwrap();
        let mut worker = place.worker(done, &said);
        wait_until("some commits", || {
            committed(&said) > round || worker.try_wait().unwrap().is_some()
        });
        // The next transaction has begun, and has run for a while.
        std::thread::sleep(Duration::from_millis(7 * round as u64));
        if round % 2 == 1 {
            mounted.kill();
        }
        worker.kill().unwrap();
        worker.wait().unwrap();
        if round % 2 == 1 {
            mounted.mount();
        }
        let told = done + committed(&said);
        let found = place.audited();
        // One more may have been committed without being reported.
        let more = (told..=told + 1).find(|transactions| found == expected.after(*transactions));
        done =
            more.unwrap_or_else(|| panic!("{told} transactions were committed, and this is after no such"));
    }
    assert!(done > ROUNDS, "each round committed what it had waited for");
    assert_eq!(mounted.unmount().code, 0);
}

#[test]
fn sqlite_with_a_write_ahead_log_has_its_commits() {
    killed_leaves_what_was_committed("oo7-wal");
}

#[test]
fn sqlite_with_a_rollback_journal_has_its_commits() {
    killed_leaves_what_was_committed("oo7-rollback");
}

#[test]
fn berkeley_db_has_its_commits() {
    killed_leaves_what_was_committed("oo7-berkeley");
}
