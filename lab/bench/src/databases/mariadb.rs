//! A MariaDB server under the statements of LND's table 2: rows inserted, tables created, dropped, and both.
//! Each statement is its own transaction, flushed unless a setting says otherwise.

use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::child::ChildProcess;
use crate::device::is_here;
use crate::error::{BenchError, ErrorContext};
use crate::testbed::Testbed;
use crate::tool::{finish, tool as run};

/// Starts the following command so that it ends with this process: a server must not be left behind.
const WITH_PARENT: [&str; 3] = ["setpriv", "--pdeathsig", "KILL"];
const SERVER: &str = "mariadbd";
const CLIENT: &str = "mariadb";
const INSTALLER: &str = "mariadb-install-db";
/// Time within which the server must start; it creates its log first.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Operations per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct MariadbRates {
    /// Rows inserted.
    pub insert: f64,
    /// Tables created.
    pub create: f64,
    /// Tables dropped.
    pub drop: f64,
    /// Tables created and dropped, pairs.
    pub create_and_drop: f64,
}

/// An empty database to be copied to each device.
#[derive(Debug)]
pub struct MariadbTemplate {
    template: PathBuf,
    version: String,
}

impl MariadbTemplate {
    /// Creates the empty database; the error means that MariaDB is not installed.
    ///
    /// # Errors
    ///
    /// Fails if MariaDB is not installed, or cannot initialize a database.
    pub fn prepare(site: &Testbed) -> Result<MariadbTemplate, BenchError> {
        for name in [SERVER, CLIENT, INSTALLER, WITH_PARENT[0]] {
            if !is_here(name) {
                return Err(BenchError::InvalidRequest(format!(
                    "there is no `{name}` (package mariadb-server)"
                )));
            }
        }
        let version = run(SERVER, &["--version"])?;
        let version = version.split_whitespace().find(|word| word.contains("MariaDB"));
        let version = version.unwrap_or("MariaDB").to_owned();
        let template = site.directory().join("database");
        let words = [
            "--no-defaults",
            "--user=root",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ];
        let mut install = Command::new(INSTALLER);
        install
            .args(words)
            .arg(format!("--datadir={}", template.display()));
        finish(install.env("TMPDIR", temporary(site, site.number())?))?;
        Ok(MariadbTemplate { template, version })
    }

    /// Version of the server.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Copies the database to `data`, which must not exist yet.
    pub(crate) fn copy_to(&self, data: &Path) -> Result<(), BenchError> {
        run(
            "cp",
            &["-a", &self.template.to_string_lossy(), &data.to_string_lossy()],
        )
        .map(drop)
    }

    /// Starts a server, which is killed with this process at the latest.
    pub(crate) fn start(
        &self,
        site: &Testbed,
        data: &Path,
        setup: &MariadbSetup,
    ) -> Result<MariadbServer, BenchError> {
        let server = MariadbServer::start(site, data, setup)?;
        server.statements(&[
            "create database if not exists bench",
            "create table if not exists bench.rows \
             (id int primary key auto_increment, a int, b varchar(64)) engine=innodb",
        ])?;
        Ok(server)
    }
}

/// LND's table 2: copies the database to `directory`, starts a server there, and measures.
pub(crate) fn measure(
    mariadb: &MariadbTemplate,
    site: &Testbed,
    directory: &Path,
    quick: bool,
) -> Result<MariadbRates, BenchError> {
    let data = directory.join("data");
    mariadb.copy_to(&data)?;
    let mut server = mariadb.start(site, &data, &MariadbSetup::default())?;
    let (rows, tables) = if quick { (200, 10) } else { (2_000, 60) };
    let operations = MariadbRates {
        insert: server.insert(rows)?,
        create: server.create(tables)?,
        drop: server.drop_tables(tables)?,
        create_and_drop: server.create_and_drop(tables)?,
    };
    server.must_have_all()?;
    Ok(operations)
}

/// Additional configuration of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct MariadbSetup {
    /// Options after the usual ones.
    pub(crate) options: Vec<String>,
    /// Environment variables beside the inherited ones.
    pub(crate) environment: Vec<(String, String)>,
}

/// A new directory for a server's temporary files. A starting server removes the files of another from a
/// shared one.
fn temporary(site: &Testbed, number: u32) -> Result<PathBuf, BenchError> {
    let directory = site.directory().join(format!("database-{number}.tmp"));
    std::fs::create_dir(&directory).context("make a directory for temporary files")?;
    Ok(directory)
}

/// A running server. It is killed when dropped, which it must survive.
pub(crate) struct MariadbServer {
    child: ChildProcess,
    data: PathBuf,
    socket: PathBuf,
    script: PathBuf,
    /// Number of rows that it has acknowledged.
    rows: usize,
}

impl MariadbServer {
    fn start(site: &Testbed, data: &Path, setup: &MariadbSetup) -> Result<MariadbServer, BenchError> {
        // Not on the device: a killed server leaves it behind.
        let number = site.number();
        let socket = site.directory().join(format!("database-{number}.sock"));
        let flags = [
            "--no-defaults".to_owned(),
            "--user=root".to_owned(),
            "--skip-networking".to_owned(),
            "--skip-grant-tables".to_owned(),
            "--innodb-flush-log-at-trx-commit=1".to_owned(),
            "--innodb-buffer-pool-size=64M".to_owned(),
            "--innodb-log-file-size=32M".to_owned(),
            format!("--datadir={}", data.display()),
            format!("--tmpdir={}", temporary(site, number)?.display()),
            format!("--socket={}", socket.display()),
            format!("--pid-file={}.pid", socket.display()),
        ];
        let [first, others @ ..] = WITH_PARENT;
        let environment = { setup.environment.iter() }.map(|(name, value)| format!("{name}={value}"));
        let words: Vec<String> = { others.into_iter().map(str::to_owned) }
            .chain(["env".to_owned()])
            .chain(environment)
            .chain([SERVER.to_owned()])
            .chain(flags)
            .chain(setup.options.iter().cloned())
            .collect();
        let words = words.iter().map(String::as_str);
        let child = ChildProcess::start(Path::new(first), words, "database", site.directory())?;
        let server = MariadbServer {
            child,
            data: data.to_owned(),
            socket,
            script: site.directory().join(format!("script-{number}.sql")),
            rows: 0,
        };
        let deadline = Instant::now() + START_TIMEOUT;
        while server.statements(&["select 1"]).is_err() {
            if Instant::now() > deadline {
                return Err(server.child.log_error("it does not answer"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// The server's Unix socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Inserts `count` rows one after the other; returns rows per second.
    pub(crate) fn insert(&mut self, count: usize) -> Result<f64, BenchError> {
        let rate = self.per_second(count, |n| {
            vec![format!(
                "insert into bench.rows (a, b) values ({n}, 'a row of a table')"
            )]
        })?;
        self.rows += count;
        Ok(rate)
    }

    /// Creates `count` tables; returns tables per second.
    pub(crate) fn create(&self, count: usize) -> Result<f64, BenchError> {
        self.per_second(count, |n| vec![creation(n)])
    }

    /// Drops those tables; returns tables per second.
    pub(crate) fn drop_tables(&self, count: usize) -> Result<f64, BenchError> {
        self.per_second(count, |n| vec![removal(n)])
    }

    /// Creates and drops `count` tables; returns pairs per second.
    pub(crate) fn create_and_drop(&self, count: usize) -> Result<f64, BenchError> {
        self.per_second(count, |n| vec![creation(n), removal(n)])
    }

    /// Fails unless every acknowledged row is there.
    pub(crate) fn must_have_all(&self) -> Result<(), BenchError> {
        let found = self.statements(&["select count(*) from bench.rows"])?;
        if found.trim() == self.rows.to_string() {
            return Ok(());
        }
        let why = format!("{} rows are there, {} were acknowledged", found.trim(), self.rows);
        let place = self.data.clone();
        Err(BenchError::WrongData { place, why })
    }

    /// Lets the server write everything, and stops it.
    pub(crate) fn stop(mut self) -> Result<(), BenchError> {
        self.statements(&["shutdown"])?;
        let deadline = Instant::now() + START_TIMEOUT;
        while self.child.exit_status()?.is_none() {
            if Instant::now() > deadline {
                return Err(self.child.log_error("it does not end"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Groups of statements per second, by the server's own clock before and after all `count` of them.
    fn per_second(&self, count: usize, group: impl Fn(usize) -> Vec<String>) -> Result<f64, BenchError> {
        const CLOCK: &str = "select unix_timestamp(sysdate(6))";
        let mut all = vec![CLOCK.to_owned()];
        (0..count).for_each(|n| all.extend(group(n)));
        all.push(CLOCK.to_owned());
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let said = self.statements(&all)?;
        let times: Vec<f64> = said.lines().filter_map(|line| line.trim().parse().ok()).collect();
        match times[..] {
            [began, ended] if ended > began => Ok(count as f64 / (ended - began)),
            _ => Err(self.child.log_error(&format!("it told no times: {said}"))),
        }
    }

    /// Runs statements one after the other, each its own transaction; returns their output.
    pub(crate) fn statements(&self, all: &[&str]) -> Result<String, BenchError> {
        let mut text = String::new();
        for statement in all {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{statement};");
        }
        std::fs::write(&self.script, text).context("write a script")?;
        let output = Command::new(CLIENT)
            .args(["--no-defaults", "--batch", "--skip-column-names", "--user=root"])
            .arg(format!("--socket={}", self.socket.display()))
            .stdin(File::open(&self.script).context("open a script")?)
            .stdout(Stdio::piped())
            .output()
            .context("run the database's client")?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(BenchError::InvalidRequest(format!(
                "the database: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ))),
        }
    }
}

fn creation(n: usize) -> String {
    format!("create table bench.t{n} (id int primary key, a int) engine=innodb")
}

fn removal(n: usize) -> String {
    format!("drop table bench.t{n}")
}
