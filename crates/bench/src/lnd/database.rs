//! Table 2: rows inserted, tables created, dropped, created and dropped by a MariaDB server that has all its data on the
//! device, each statement its own transaction, each flushed.

use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::device::is_here;
use crate::child::Child;
use crate::error::{BenchError, Context};
use crate::site::Site;
use crate::tool::tool as run;

/// Starts the command behind it so that it ends with this process: a server of somebody else's must not be left behind.
const WITH_PARENT: [&str; 3] = ["setpriv", "--pdeathsig", "KILL"];
const SERVER: &str = "mariadbd";
const CLIENT: &str = "mariadb";
const INSTALLER: &str = "mariadb-install-db";
/// How long the server may take to start: it makes its log first.
const PATIENCE: Duration = Duration::from_secs(60);

/// Operations a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Operations {
    /// Rows inserted.
    pub insert: f64,
    /// Tables created.
    pub create: f64,
    /// Tables dropped.
    pub drop: f64,
    /// Tables created and dropped, pairs.
    pub create_and_drop: f64,
}

/// An empty database, to be copied to each device.
#[derive(Debug)]
pub struct Database {
    template: PathBuf,
    version: String,
}

impl Database {
    /// Makes the empty database; `Err`: there is no MariaDB here.
    pub fn found(site: &Site) -> Result<Database, BenchError> {
        for name in [SERVER, CLIENT, INSTALLER, WITH_PARENT[0]] {
            if !is_here(name) {
                return Err(BenchError::Asked(format!(
                    "there is no `{name}` (package mariadb-server)"
                )));
            }
        }
        let version = run(SERVER, &["--version"])?;
        let version = version.split_whitespace().find(|word| word.contains("MariaDB"));
        let version = version.unwrap_or("MariaDB").to_owned();
        let template = site.folder().join("database");
        let folder = format!("--datadir={}", template.display());
        run(
            INSTALLER,
            &[
                "--no-defaults",
                "--user=root",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                &folder,
            ],
        )?;
        Ok(Database { template, version })
    }

    /// Its version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Copies it to `folder`, runs it there, and measures.
    pub fn measure(&self, site: &Site, folder: &Path, quick: bool) -> Result<Operations, BenchError> {
        let data = folder.join("data");
        let (from, to) = (self.template.to_string_lossy(), data.to_string_lossy());
        run("cp", &["-a", &from, &to])?;
        let server = Server::start(site, &data)?;
        let (rows, tables) = if quick { (200, 10) } else { (2_000, 60) };
        server.statements(&[
            "create database bench",
            "create table bench.rows (id int primary key, a int, b varchar(64)) engine=innodb",
        ])?;
        let insert = |n: usize| {
            vec![format!(
                "insert into bench.rows values ({n}, {n}, 'a row of a table')"
            )]
        };
        let create = |n: usize| {
            vec![format!(
                "create table bench.t{n} (id int primary key, a int) engine=innodb"
            )]
        };
        let drop = |n: usize| vec![format!("drop table bench.t{n}")];
        let both = |n: usize| [create(n), drop(n)].concat();
        let operations = Operations {
            insert: server.per_second(rows, insert)?,
            create: server.per_second(tables, create)?,
            drop: server.per_second(tables, drop)?,
            create_and_drop: server.per_second(tables, both)?,
        };
        let found = server.statements(&["select count(*) from bench.rows"])?;
        if found.trim() != rows.to_string() {
            let why = format!("{} rows are there, {rows} were inserted", found.trim());
            return Err(BenchError::Wrong { place: data, why });
        }
        Ok(operations)
    }
}

/// A running server; killed when dropped, as it must be able to bear.
struct Server {
    _child: Child,
    socket: PathBuf,
    site_folder: PathBuf,
}

impl Server {
    fn start(site: &Site, data: &Path) -> Result<Server, BenchError> {
        // Not on the device: a killed server leaves it.
        let socket = site.folder().join(format!("database-{}.sock", site.number()));
        let flags = [
            "--no-defaults".to_owned(),
            "--user=root".to_owned(),
            "--skip-networking".to_owned(),
            "--skip-grant-tables".to_owned(),
            "--innodb-flush-log-at-trx-commit=1".to_owned(),
            "--innodb-buffer-pool-size=64M".to_owned(),
            "--innodb-log-file-size=32M".to_owned(),
            format!("--datadir={}", data.display()),
            format!("--socket={}", socket.display()),
            format!("--pid-file={}.pid", socket.display()),
        ];
        let [first, others @ ..] = WITH_PARENT;
        let words = others
            .into_iter()
            .chain([SERVER])
            .chain(flags.iter().map(String::as_str));
        let child = Child::start(Path::new(first), words, "database", site.folder())?;
        let server = Server {
            _child: child,
            socket,
            site_folder: site.folder().to_owned(),
        };
        let deadline = Instant::now() + PATIENCE;
        while server.statements(&["select 1"]).is_err() {
            if Instant::now() > deadline {
                return Err(server._child.failed("it does not answer"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// How many of `count` groups of statements a second: the server's own clock before and after them.
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
            _ => Err(self._child.failed(&format!("it told no times: {said}"))),
        }
    }

    /// Runs statements one after the other, each its own transaction; returns what they said.
    fn statements(&self, all: &[&str]) -> Result<String, BenchError> {
        let script = self.site_folder.join("script.sql");
        let mut text = String::new();
        for statement in all {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{statement};");
        }
        std::fs::write(&script, text).context("write a script")?;
        let output = Command::new(CLIENT)
            .args(["--no-defaults", "--batch", "--skip-column-names", "--user=root"])
            .arg(format!("--socket={}", self.socket.display()))
            .stdin(File::open(&script).context("open a script")?)
            .stdout(Stdio::piped())
            .output()
            .context("run the database's client")?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(BenchError::Asked(format!(
                "the database: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ))),
        }
    }
}
