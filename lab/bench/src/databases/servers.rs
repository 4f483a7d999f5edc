//! PostgreSQL and MariaDB as they are compared: their log on a mount, all of them on a volume, or as they are.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use super::Subject;
use super::ground::{Ground, World, move_contents};
use super::kinds::{Storage, Work};
use super::mariadb::{self, Mariadb};
use super::postgres::{self, Load, Postgres};
use crate::error::{BenchError, Context};
use crate::tool::until;

const CLIENTS: usize = 8;
/// MariaDB does so many rows and tables a second, or fewer.
const ROWS_PER_SECOND: f64 = 1_000.0;
const TABLES_PER_SECOND: f64 = 20.0;

/// PostgreSQL somewhere.
pub(super) struct OnPostgres<'p> {
    server: postgres::Server<'p>,
    standby: Option<postgres::Server<'p>>,
    ground: Ground,
    /// Options of the clients' sessions.
    options: &'static str,
    inserted: u64,
    transferred: u64,
}

impl<'p> OnPostgres<'p> {
    pub(super) fn start(
        postgres: &'p Postgres,
        world: &World<'_>,
        ground: Ground,
        storage: Storage,
    ) -> Result<OnPostgres<'p>, BenchError> {
        let data = ground.data().join("postgres");
        postgres.copy_to(&data)?;
        if let Some(log) = ground.log() {
            let before = data.join("pg_wal");
            postgres.give(log)?;
            move_contents(&before, log)?;
            std::os::unix::fs::symlink(log, &before).context("link the log's folder")?;
        }
        let through = fs::Permissions::from_mode(0o755);
        fs::set_permissions(ground.data(), through).context("let PostgreSQL through to its data")?;
        let mut setup = postgres::Setup {
            settings: Vec::new(),
            environment: ground.environment().to_vec(),
        };
        if storage == Storage::Mount {
            setup.settings.push("wal_sync_method=open_datasync".to_owned());
        }
        if storage == Storage::RemoteWrite {
            setup.settings.push("synchronous_standby_names=*".to_owned());
        }
        let server = postgres.start(world.site, &data, &setup)?;
        let standby = match storage {
            Storage::RemoteWrite => Some(standby(postgres, world, &ground, &server)?),
            _ => None,
        };
        Ok(OnPostgres {
            server,
            standby,
            ground,
            options: match storage {
                Storage::RemoteWrite => "-c synchronous_commit=remote_write",
                Storage::Off => "-c synchronous_commit=off",
                _ => "",
            },
            inserted: 0,
            transferred: 0,
        })
    }
}

/// A server that receives what another one writes, on the same machine and disk.
fn standby<'p>(
    postgres: &'p Postgres,
    world: &World<'_>,
    ground: &Ground,
    of: &postgres::Server<'_>,
) -> Result<postgres::Server<'p>, BenchError> {
    let data = ground.data().join("standby");
    fs::create_dir(&data).context("make a standby's folder")?;
    let private = fs::Permissions::from_mode(0o700);
    fs::set_permissions(&data, private).context("make a standby's folder")?;
    postgres.give(&data)?;
    let text = data.to_string_lossy();
    of.run(
        "pg_basebackup",
        &["--pgdata", &text, "--write-recovery-conf", "--checkpoint=fast"],
    )?;
    let setup = postgres::Setup {
        settings: Vec::new(),
        environment: ground.environment().to_vec(),
    };
    let standby = postgres.start(world.site, &data, &setup)?;
    until("the standby follows", || {
        let ask = "select count(*) from pg_stat_replication where sync_state = 'sync'";
        let said = of.run("psql", &["--no-align", "--tuples-only", "--command", ask])?;
        Ok(said == "1")
    })?;
    Ok(standby)
}

impl Subject for OnPostgres<'_> {
    fn round(&mut self, time: Duration) -> Result<Vec<(Work, f64)>, BenchError> {
        let insert = self.server.bench(Load::Insert, 1, time, self.options)?;
        let one = self.server.bench(Load::TpcB, 1, time, self.options)?;
        let eight = self.server.bench(Load::TpcB, CLIENTS, time, self.options)?;
        self.inserted += insert.transactions;
        self.transferred += one.transactions + eight.transactions;
        Ok(vec![
            (Work::Insert, insert.per_second),
            (Work::TpcB, one.per_second),
            (Work::TpcBEight, eight.per_second),
        ])
    }

    fn end(self: Box<Self>) -> Result<(), BenchError> {
        self.server.must_have("small", self.inserted)?;
        self.server.must_have("pgbench_history", self.transferred)?;
        // First who waits for the other's end.
        self.server.stop()?;
        self.standby.map_or(Ok(()), postgres::Server::stop)?;
        self.ground.end()
    }
}

/// MariaDB somewhere.
pub(super) struct OnMariadb {
    server: mariadb::Server,
    ground: Ground,
}

impl OnMariadb {
    pub(super) fn start(
        mariadb: &Mariadb,
        world: &World<'_>,
        ground: Ground,
        storage: Storage,
    ) -> Result<OnMariadb, BenchError> {
        let data = ground.data().join("mariadb");
        mariadb.copy_to(&data)?;
        let mut options = Vec::new();
        if let Some(log) = ground.log() {
            let name = "ib_logfile0";
            fs::copy(data.join(name), log.join(name)).context("move the redo log")?;
            fs::remove_file(data.join(name)).context("move the redo log")?;
            options.push(format!("--innodb-log-group-home-dir={}", log.display()));
        }
        if storage == Storage::Mount {
            options.push("--innodb-flush-method=O_DSYNC".to_owned());
        }
        if storage == Storage::Off {
            options.push("--innodb-flush-log-at-trx-commit=2".to_owned());
        }
        let setup = mariadb::Setup {
            options,
            environment: ground.environment().to_vec(),
        };
        Ok(OnMariadb {
            server: mariadb.start(world.site, &data, &setup)?,
            ground,
        })
    }
}

impl Subject for OnMariadb {
    fn round(&mut self, time: Duration) -> Result<Vec<(Work, f64)>, BenchError> {
        let many = |per_second: f64| (per_second * time.as_secs_f64()).ceil() as usize;
        let tables = many(TABLES_PER_SECOND);
        Ok(vec![
            (Work::Insert, self.server.insert(many(ROWS_PER_SECOND))?),
            (Work::Create, self.server.create(tables)?),
            (Work::Drop, self.server.drop_tables(tables)?),
        ])
    }

    fn end(self: Box<Self>) -> Result<(), BenchError> {
        self.server.must_have_all()?;
        self.server.stop()?;
        self.ground.end()
    }
}
