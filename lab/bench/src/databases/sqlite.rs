//! SQLite, linked into this program, in its own process: single-row commits in WAL mode.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netram_sql_stores::register_vfs;
use rusqlite::{Connection, OpenFlags, params};
use serde::{Deserialize, Serialize};

use super::embedded::{must_have, parse_counts};
use super::kinds::{DatabaseStorage, DatabaseWork};
use super::placement::{DatabasePlacement, DatabaseTestbed};
use super::{DatabaseSubject, WorkRate};
use crate::child::{ChildJob, PART, role_argument};
use crate::error::{BenchError, ErrorContext};
use crate::testbed::Testbed;
use crate::tool::{finish, tool};

/// Size of a row's text in bytes, as in the other engines.
const TEXT_BYTES: usize = 100;

/// Job of a process with a SQLite database.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SqliteJob {
    path: PathBuf,
    /// Whether it uses netram's VFS.
    vfs: bool,
    /// SQLite's `synchronous` setting; with `FULL` each commit is synced.
    synchronous: String,
    /// Duration in seconds; without it the rows are counted.
    seconds: Option<f64>,
}

/// Opens a database in WAL mode.
pub(crate) fn open(path: &Path, vfs: bool, synchronous: &str) -> Result<Connection, BenchError> {
    let failed = format!("open {}", path.display());
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let connection = match vfs {
        true => {
            register_vfs().context("register the VFS")?;
            Connection::open_with_flags_and_vfs(path, flags, "netram")
        }
        false => Connection::open_with_flags(path, flags),
    };
    let connection = connection.context(&failed)?;
    let made = connection.execute_batch(&format!(
        "pragma journal_mode = wal; pragma synchronous = {synchronous}; \
         create table if not exists t (n integer primary key, filler text)"
    ));
    made.context(&failed)?;
    Ok(connection)
}

impl ChildJob for SqliteJob {
    const ROLE: &'static str = "Sqlite";

    // Runs the job and prints the number of rows, with their seconds if rows were committed.
    fn run(&self) -> Result<(), BenchError> {
        let connection = open(&self.path, self.vfs, &self.synchronous)?;
        let Some(seconds) = self.seconds else {
            let count = connection.query_row("select count(*) from t", [], |row| row.get::<_, i64>(0));
            return crate::say(&count.context("count the rows")?.to_string());
        };
        let mut statement = connection
            .prepare("insert into t (filler) values (?)")
            .context("prepare a statement")?;
        let text = "x".repeat(TEXT_BYTES);
        let (began, mut count) = (Instant::now(), 0_u64);
        let until = began + Duration::from_secs_f64(seconds);
        while Instant::now() < until {
            statement.execute(params![text]).context("insert a row")?;
            count += 1;
        }
        let took = began.elapsed().as_secs_f64();
        crate::say(&format!("{count} {took}"))
    }
}

/// SQLite on one storage.
pub(super) struct SqliteSubject {
    program: PathBuf,
    placement: DatabasePlacement,
    job: SqliteJob,
    committed: u64,
}

impl SqliteSubject {
    pub(super) fn start(
        world: &DatabaseTestbed<'_>,
        ground: DatabasePlacement,
        storage: DatabaseStorage,
    ) -> Result<SqliteSubject, BenchError> {
        let site = world.site;
        let path = ground.all().join("app.db");
        if storage == DatabaseStorage::Vfs {
            adopt(site, &path, &world.lender.address().to_string())?;
        }
        Ok(SqliteSubject {
            program: site.program().to_owned(),
            placement: ground,
            job: SqliteJob {
                path,
                vfs: storage == DatabaseStorage::Vfs,
                synchronous: match storage {
                    DatabaseStorage::Off => "NORMAL",
                    _ => "FULL",
                }
                .to_owned(),
                seconds: None,
            },
            committed: 0,
        })
    }

    fn run(&self, seconds: Option<f64>) -> Result<String, BenchError> {
        let job = SqliteJob {
            seconds,
            ..self.job.clone()
        };
        let role = role_argument(&job)?;
        let mut command = std::process::Command::new(&self.program);
        command
            .args([PART, &role])
            .envs(self.placement.environment().iter().cloned());
        finish(&mut command)
    }
}

/// Creates a database under netram's VFS.
pub(crate) fn adopt(site: &Testbed, path: &Path, lender: &str) -> Result<(), BenchError> {
    let (database, key) = (path.to_string_lossy(), site.key_file().to_string_lossy());
    let words = [
        "sqlite",
        "create",
        &database,
        "--lender",
        lender,
        "--key-file",
        &key,
        "--one-domain",
    ];
    tool(&site.program().to_string_lossy(), &words).map(drop)
}

impl DatabaseSubject for SqliteSubject {
    fn round(&mut self, time: Duration) -> Result<Vec<(DatabaseWork, WorkRate)>, BenchError> {
        let (count, seconds) = parse_counts(&self.run(Some(time.as_secs_f64()))?)?;
        self.committed += count;
        Ok(vec![(DatabaseWork::Insert, (count as f64 / seconds).into())])
    }

    fn end(self: Box<Self>) -> Result<(), BenchError> {
        let found = self.run(None)?;
        must_have(&self.job.path, &found, self.committed)?;
        self.placement.end()
    }
}
