//! PostgreSQL and MariaDB in the comparison: with their log on a mount, wholly on a volume, or unchanged.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use super::kinds::{DatabaseStorage, DatabaseWork};
use super::mariadb::{self, MariadbTemplate};
use super::placement::{DatabasePlacement, DatabaseTestbed, move_contents};
use super::postgres::{self, PgbenchLoad, PostgresTemplate};
use super::{DatabaseSubject, WorkRate};
use crate::error::{BenchError, ErrorContext};
use crate::testbed::Testbed;
use crate::tool::wait_until;

const CLIENTS: usize = 8;
/// Upper bound of MariaDB's rows and tables per second.
const ROWS_PER_SECOND: f64 = 1_000.0;
const TABLES_PER_SECOND: f64 = 20.0;

/// PostgreSQL on one storage.
pub(super) struct PostgresSubject<'p> {
    server: postgres::PostgresServer<'p>,
    standby: Option<postgres::PostgresServer<'p>>,
    placement: DatabasePlacement,
    /// Options of the clients' sessions.
    options: &'static str,
    inserted: u64,
    transferred: u64,
}

impl<'p> PostgresSubject<'p> {
    pub(super) fn start(
        postgres: &'p PostgresTemplate,
        world: &DatabaseTestbed<'_>,
        ground: DatabasePlacement,
        storage: DatabaseStorage,
    ) -> Result<PostgresSubject<'p>, BenchError> {
        let data = ground.data().join("postgres");
        postgres.copy_to(&data)?;
        if let Some(log) = ground.log() {
            let before = data.join("pg_wal");
            postgres.give(log)?;
            move_contents(&before, log)?;
            std::os::unix::fs::symlink(log, &before).context("link the log's directory")?;
        }
        let through = fs::Permissions::from_mode(0o755);
        fs::set_permissions(ground.data(), through).context("let PostgreSQL through to its data")?;
        let mut setup = postgres::PostgresSetup {
            settings: Vec::new(),
            environment: ground.environment().to_vec(),
        };
        if storage == DatabaseStorage::Mount {
            setup.settings.push("wal_sync_method=open_datasync".to_owned());
        }
        if storage == DatabaseStorage::RemoteWrite {
            setup.settings.push("synchronous_standby_names=*".to_owned());
        }
        let server = postgres.start(world.site, &data, &setup)?;
        let standby = match storage {
            DatabaseStorage::RemoteWrite => Some(standby(
                postgres,
                world.site,
                ground.data(),
                ground.environment(),
                &server,
            )?),
            _ => None,
        };
        Ok(PostgresSubject {
            server,
            standby,
            placement: ground,
            options: match storage {
                DatabaseStorage::RemoteWrite => "-c synchronous_commit=remote_write",
                DatabaseStorage::Off => "-c synchronous_commit=off",
                _ => "",
            },
            inserted: 0,
            transferred: 0,
        })
    }
}

/// A standby that receives another server's log, on the same machine. Its files are in `place`.
pub(crate) fn standby<'p>(
    postgres: &'p PostgresTemplate,
    site: &Testbed,
    place: &Path,
    environment: &[(String, String)],
    of: &postgres::PostgresServer<'_>,
) -> Result<postgres::PostgresServer<'p>, BenchError> {
    let data = place.join("standby");
    fs::create_dir(&data).context("make a standby's directory")?;
    let private = fs::Permissions::from_mode(0o700);
    fs::set_permissions(&data, private).context("make a standby's directory")?;
    postgres.give(&data)?;
    let text = data.to_string_lossy();
    of.run(
        "pg_basebackup",
        &["--pgdata", &text, "--write-recovery-conf", "--checkpoint=fast"],
    )?;
    let setup = postgres::PostgresSetup {
        settings: Vec::new(),
        environment: environment.to_vec(),
    };
    let standby = postgres.start(site, &data, &setup)?;
    wait_until("the standby follows", || {
        let ask = "select count(*) from pg_stat_replication where sync_state = 'sync'";
        let said = of.run("psql", &["--no-align", "--tuples-only", "--command", ask])?;
        Ok(said == "1")
    })?;
    Ok(standby)
}

impl DatabaseSubject for PostgresSubject<'_> {
    fn round(&mut self, time: Duration) -> Result<Vec<(DatabaseWork, WorkRate)>, BenchError> {
        let insert = self.server.bench(PgbenchLoad::Insert, 1, time, self.options)?;
        let one = self.server.bench(PgbenchLoad::TpcB, 1, time, self.options)?;
        let eight = self
            .server
            .bench(PgbenchLoad::TpcB, CLIENTS, time, self.options)?;
        self.inserted += insert.transactions;
        self.transferred += one.transactions + eight.transactions;
        Ok(vec![
            (DatabaseWork::Insert, insert.per_second.into()),
            (DatabaseWork::TpcB, one.per_second.into()),
            (DatabaseWork::TpcBEight, eight.per_second.into()),
        ])
    }

    fn end(self: Box<Self>) -> Result<(), BenchError> {
        self.server.must_have("small", self.inserted)?;
        self.server.must_have("pgbench_history", self.transferred)?;
        // The server that waits for the other's end stops first.
        self.server.stop()?;
        self.standby.map_or(Ok(()), postgres::PostgresServer::stop)?;
        self.placement.end()
    }
}

/// MariaDB on one storage.
pub(super) struct MariadbSubject {
    server: mariadb::MariadbServer,
    placement: DatabasePlacement,
}

impl MariadbSubject {
    pub(super) fn start(
        mariadb: &MariadbTemplate,
        world: &DatabaseTestbed<'_>,
        ground: DatabasePlacement,
        storage: DatabaseStorage,
    ) -> Result<MariadbSubject, BenchError> {
        let data = ground.data().join("mariadb");
        mariadb.copy_to(&data)?;
        let mut options = Vec::new();
        if let Some(log) = ground.log() {
            let name = "ib_logfile0";
            fs::copy(data.join(name), log.join(name)).context("move the redo log")?;
            fs::remove_file(data.join(name)).context("move the redo log")?;
            options.push(format!("--innodb-log-group-home-dir={}", log.display()));
        }
        if storage == DatabaseStorage::Mount {
            options.push("--innodb-flush-method=O_DSYNC".to_owned());
        }
        if storage == DatabaseStorage::Off {
            options.push("--innodb-flush-log-at-trx-commit=2".to_owned());
        }
        let setup = mariadb::MariadbSetup {
            options,
            environment: ground.environment().to_vec(),
        };
        Ok(MariadbSubject {
            server: mariadb.start(world.site, &data, &setup)?,
            placement: ground,
        })
    }
}

impl DatabaseSubject for MariadbSubject {
    fn round(&mut self, time: Duration) -> Result<Vec<(DatabaseWork, WorkRate)>, BenchError> {
        let many = |per_second: f64| (per_second * time.as_secs_f64()).ceil() as usize;
        let tables = many(TABLES_PER_SECOND);
        Ok(vec![
            (
                DatabaseWork::Insert,
                self.server.insert(many(ROWS_PER_SECOND))?.into(),
            ),
            (DatabaseWork::Create, self.server.create(tables)?.into()),
            (DatabaseWork::Drop, self.server.drop_tables(tables)?.into()),
        ])
    }

    fn end(self: Box<Self>) -> Result<(), BenchError> {
        self.server.must_have_all()?;
        self.server.stop()?;
        self.placement.end()
    }
}
