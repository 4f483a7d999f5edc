//! A PostgreSQL server under its own benchmark, pgbench. Each commit is flushed unless a setting says
//! otherwise.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::child::ChildProcess;
use crate::device::is_here;
use crate::error::{BenchError, ErrorContext};
use crate::testbed::Testbed;
use crate::tool::{finish, tool};

/// The server's user. It must not be root; the package creates this one.
pub(crate) const USER: &str = "postgres";
/// Directory of each version's programs on Debian.
const VERSIONS: &str = "/usr/lib/postgresql";
/// Number of branches; each has 100,000 accounts, 15 MB.
const SCALE: &str = "4";
/// A small commit of one row.
const INSERT: &str = "insert into small values (1);\n";
/// Time within which the server must start and recover.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A filled database, to be copied to the measured storage.
#[derive(Debug)]
pub struct PostgresTemplate {
    programs: PathBuf,
    template: PathBuf,
    /// Directory of sockets, scripts and logs, not on the measured storage.
    scratch: PathBuf,
    version: String,
}

/// Additional configuration of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct PostgresSetup {
    /// Settings, as NAME=VALUE.
    pub(crate) settings: Vec<String>,
    /// Environment variables beside the inherited ones.
    pub(crate) environment: Vec<(String, String)>,
}

/// Load that pgbench generates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PgbenchLoad {
    /// TPC-B-like: three updates, a query, an insertion.
    TpcB,
    /// One insertion of one row.
    Insert,
}

/// A running server. Dropping it kills it.
pub(crate) struct PostgresServer<'p> {
    postgres: &'p PostgresTemplate,
    child: ChildProcess,
    data: PathBuf,
    sockets: PathBuf,
}

impl PostgresTemplate {
    /// Creates the database.
    ///
    /// # Errors
    ///
    /// Fails with the name of what is missing here, or if the database cannot be filled.
    pub fn prepare(site: &Testbed) -> Result<PostgresTemplate, BenchError> {
        let versions = fs::read_dir(VERSIONS).into_iter().flatten().flatten();
        let newest = versions.map(|version| version.path().join("bin")).max();
        let programs = newest.unwrap_or_default();
        let absent = ["postgres", "initdb", "pgbench", "psql", "pg_ctl", "pg_basebackup"]
            .into_iter()
            .find(|name| !programs.join(name).is_file());
        if absent.is_some() || !is_here("setpriv") || tool("id", &["-u", USER]).is_err() {
            let what = "there is no PostgreSQL (package postgresql)";
            return Err(BenchError::InvalidRequest(what.to_owned()));
        }
        // Other users may pass through the directory, but not read its contents.
        let through = fs::Permissions::from_mode(0o711);
        fs::set_permissions(site.directory(), through).context("let PostgreSQL through to its directory")?;
        let beside = site.directory().join("postgres");
        fs::create_dir(&beside).context("make a directory for PostgreSQL")?;
        fs::write(beside.join("insert.sql"), INSERT).context("write a script")?;
        let mut postgres = PostgresTemplate {
            programs,
            template: beside.join("template"),
            scratch: beside,
            version: String::new(),
        };
        postgres.give(&postgres.scratch)?;
        if finish(&mut postgres.as_user(Path::new("test"), &["-x", "."])).is_err() {
            return Err(BenchError::InvalidRequest(format!(
                "its user `{USER}` cannot enter {}; choose another directory with --dir",
                postgres.scratch.display()
            )));
        }
        postgres.version = finish(&mut postgres.program("postgres", &["--version"]))?;
        let template = postgres.template.to_string_lossy().into_owned();
        let quick = ["--auth=trust", "--locale=C", "--no-sync", "-D", &template];
        finish(&mut postgres.program("initdb", &quick))?;
        let server = postgres.start(site, &postgres.template, &PostgresSetup::default())?;
        server.run("pgbench", &["--initialize", "--quiet", "--scale", SCALE])?;
        server.run("psql", &["--command", "create table small (n int)"])?;
        server.stop()?;
        Ok(postgres)
    }

    /// Version of the server.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Copies the database to `data`, which must not exist yet.
    pub(crate) fn copy_to(&self, data: &Path) -> Result<(), BenchError> {
        tool(
            "cp",
            &["-a", &self.template.to_string_lossy(), &data.to_string_lossy()],
        )?;
        tool("sync", &[])?;
        Ok(())
    }

    /// Gives a path and its contents to the server's user.
    pub(crate) fn give(&self, path: &Path) -> Result<(), BenchError> {
        tool("chown", &["-R", &format!("{USER}:"), &path.to_string_lossy()]).map(drop)
    }

    /// A program to be run as the server's user.
    fn as_user(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args([
                &format!("--reuid={USER}"),
                &format!("--regid={USER}"),
                "--clear-groups",
            ])
            .arg(program)
            .args(arguments)
            .current_dir(&self.scratch);
        command
    }

    /// One of the server's programs.
    fn program(&self, program: &str, arguments: &[&str]) -> Command {
        self.as_user(&self.programs.join(program), arguments)
    }

    /// Starts a server, which is killed with this process at the latest.
    pub(crate) fn start(
        &self,
        site: &Testbed,
        data: &Path,
        setup: &PostgresSetup,
    ) -> Result<PostgresServer<'_>, BenchError> {
        let sockets = self.scratch.join(format!("sockets-{}", site.number()));
        fs::create_dir(&sockets).context("make a directory for sockets")?;
        self.give(&sockets)?;
        let program = self.programs.join("postgres");
        let [reuid, regid] = ["reuid", "regid"].map(|id| format!("--{id}={USER}"));
        let mut words = vec!["--pdeathsig", "KILL", &reuid, &regid, "--clear-groups", "env"];
        let environment: Vec<String> = { setup.environment.iter() }
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        words.extend(environment.iter().map(String::as_str));
        let (program, data_text) = (program.to_string_lossy(), data.to_string_lossy());
        let sockets_text = sockets.to_string_lossy();
        words.extend([&*program, "-D", &data_text, "-k", &sockets_text]);
        let usual = [
            "listen_addresses=",
            "shared_buffers=64MB",
            "max_wal_size=128MB",
            "autovacuum=off",
        ];
        for setting in usual.into_iter().chain(setup.settings.iter().map(String::as_str)) {
            words.extend(["-c", setting]);
        }
        let child = ChildProcess::start(Path::new("setpriv"), words, "postgres", site.directory())?;
        let server = PostgresServer {
            postgres: self,
            child,
            data: data.to_owned(),
            sockets,
        };
        let deadline = Instant::now() + START_TIMEOUT;
        while server.run("psql", &["--command", "select 1"]).is_err() {
            if Instant::now() > deadline {
                return Err(server.child.log_error("it does not answer"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }
}

impl PostgresServer<'_> {
    /// The server's Unix socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.sockets.join(".s.PGSQL.5432")
    }

    /// Runs one of PostgreSQL's programs, connected to this server, to its end.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Result<String, BenchError> {
        self.run_with("", program, arguments)
    }

    /// The same with options for the server's side of its sessions.
    fn run_with(&self, options: &str, program: &str, arguments: &[&str]) -> Result<String, BenchError> {
        let mut command = self.postgres.program(program, arguments);
        command
            .env("PGDATA", &self.data)
            .env("PGHOST", &self.sockets)
            .env("PGDATABASE", "postgres")
            .env("PGOPTIONS", options);
        finish(&mut command)
    }

    /// Runs pgbench for a time in whole seconds, which includes connecting. `options` apply to its sessions.
    pub(crate) fn bench(
        &self,
        load: PgbenchLoad,
        clients: usize,
        time: Duration,
        options: &str,
    ) -> Result<PgbenchResult, BenchError> {
        let seconds = time.as_secs_f64().ceil().max(1.0).to_string();
        let clients = clients.to_string();
        let mut flags = vec!["--no-vacuum", "--time", &seconds, "--client", &clients];
        let script = self.postgres.scratch.join("insert.sql");
        let script = script.to_string_lossy();
        if load == PgbenchLoad::Insert {
            flags.extend(["--protocol", "prepared", "--file", &script]);
        }
        let said = self.run_with(options, "pgbench", &flags)?;
        PgbenchResult::parse(&said)
            .ok_or_else(|| BenchError::InvalidRequest(format!("pgbench printed no figures: {said}")))
    }

    /// Number of rows of a table.
    pub(crate) fn rows(&self, table: &str) -> Result<u64, BenchError> {
        let ask = format!("select count(*) from {table}");
        let said = self.run("psql", &["--no-align", "--tuples-only", "--command", &ask])?;
        said.parse().context(format_args!("count the rows of {table}"))
    }

    /// Fails unless the table has `acknowledged` rows.
    pub(crate) fn must_have(&self, table: &str, acknowledged: u64) -> Result<(), BenchError> {
        let found = self.rows(table)?;
        if found == acknowledged {
            return Ok(());
        }
        let why = format!("{found} rows of {table} are there, {acknowledged} were acknowledged");
        let place = self.data.clone();
        Err(BenchError::WrongData { place, why })
    }

    /// Stops the server after it has written everything. A killed server leaves its child processes, and
    /// their open files, for a moment.
    pub(crate) fn stop(self) -> Result<(), BenchError> {
        self.run("pg_ctl", &["stop", "--mode=fast", "--wait"]).map(drop)
    }
}

/// Result that pgbench prints at its end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PgbenchResult {
    pub(crate) transactions: u64,
    pub(crate) per_second: f64,
    pub(crate) average_ms: f64,
}

impl PgbenchResult {
    fn parse(said: &str) -> Option<PgbenchResult> {
        let after = |name: &str| {
            let rest = said.lines().find_map(|line| line.strip_prefix(name))?;
            rest.split([' ', '/']).next()
        };
        let transactions = after("number of transactions actually processed: ")?;
        let transactions = transactions.parse().ok()?;
        if transactions == 0 {
            // On a very busy machine pgbench prints no rates.
            return Some(PgbenchResult::default());
        }
        Some(PgbenchResult {
            transactions,
            per_second: after("tps = ")?.parse().ok()?,
            average_ms: after("latency average = ")?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pgbenchs_output_is_parsed() {
        let said = "pgbench (15.1)\nscaling factor: 4\nnumber of transactions actually processed: 3210\n\
                    number of failed transactions: 0 (0.000%)\nlatency average = 0.623 ms\n\
                    initial connection time = 2.1 ms\ntps = 1605.17 (without initial connection time)\n";
        let run = PgbenchResult::parse(said).unwrap();
        assert_eq!(
            (run.transactions, run.per_second, run.average_ms),
            (3210, 1605.17, 0.623)
        );
        assert!(PgbenchResult::parse("pgbench: error: no connection").is_none());
        let none = PgbenchResult::parse("number of transactions actually processed: 0\n").unwrap();
        assert_eq!((none.transactions, none.per_second), (0, 0.0));
    }
}
