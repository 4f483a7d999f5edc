//! An application of today: a PostgreSQL server with all its data on the device, under its own benchmark (TPC-B in form), from
//! one client and from several. Each transaction's commit is flushed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::Plan;
use super::device::is_here;
use crate::child::Child;
use crate::error::{BenchError, Context};
use crate::histogram::median;
use crate::site::Site;
use crate::tool::{finish, tool};

/// The server insists on a user who is not root; the package makes this one.
const USER: &str = "postgres";
/// Where Debian puts each version's programs.
const VERSIONS: &str = "/usr/lib/postgresql";
/// Branches; each has 100,000 accounts, 15 MB.
const SCALE: &str = "4";
const CLIENTS: usize = 8;
/// How long the server may take to start, and to recover.
const PATIENCE: Duration = Duration::from_secs(60);

/// Transactions a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Transactions {
    /// From one client.
    pub one: f64,
    /// What one of these took, in milliseconds, on average.
    pub one_ms: f64,
    /// From eight clients.
    pub eight: f64,
    /// The same of these.
    pub eight_ms: f64,
}

/// A filled database, to be copied to each device.
#[derive(Debug)]
pub struct Postgres {
    programs: PathBuf,
    template: PathBuf,
    /// Sockets and logs, which are not on the device.
    beside: PathBuf,
    version: String,
}

impl Postgres {
    /// Makes the database; `Err`: what is missing here.
    pub fn found(site: &Site) -> Result<Postgres, BenchError> {
        let versions = fs::read_dir(VERSIONS).into_iter().flatten().flatten();
        let newest = versions.map(|version| version.path().join("bin")).max();
        let programs = newest.unwrap_or_default();
        let absent = ["postgres", "initdb", "pgbench", "psql", "pg_ctl"]
            .into_iter()
            .find(|name| !programs.join(name).is_file());
        if absent.is_some() || !is_here("setpriv") || tool("id", &["-u", USER]).is_err() {
            let what = "there is no PostgreSQL (package postgresql)";
            return Err(BenchError::Asked(what.to_owned()));
        }
        // Others may pass through; what is in it stays its owner's.
        let through = fs::Permissions::from_mode(0o711);
        fs::set_permissions(site.folder(), through).context("let PostgreSQL through to its folder")?;
        let beside = site.folder().join("postgres");
        fs::create_dir(&beside).context("make a folder for PostgreSQL")?;
        tool("chown", &[USER, &beside.to_string_lossy()])?;
        let mut postgres = Postgres {
            programs,
            template: beside.join("template"),
            beside,
            version: String::new(),
        };
        if finish(&mut postgres.as_user(Path::new("test"), &["-x", "."])).is_err() {
            return Err(BenchError::Asked(format!(
                "its user `{USER}` cannot get through to {}; choose another folder with --dir",
                postgres.beside.display()
            )));
        }
        postgres.version = postgres.run(&postgres.template, "postgres", &["--version"])?;
        let quick = ["--auth=trust", "--locale=C", "--no-sync"];
        postgres.run(&postgres.template, "initdb", &quick)?;
        let server = postgres.start(site, &postgres.template)?;
        let fill = ["--initialize", "--quiet", "--scale", SCALE];
        postgres.run(&postgres.template, "pgbench", &fill)?;
        postgres.stop(server, &postgres.template)?;
        Ok(postgres)
    }

    /// Its version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Copies it to `folder`, runs it there, and measures.
    pub(super) fn measure(
        &self,
        site: &Site,
        folder: &Path,
        plan: &Plan,
    ) -> Result<Transactions, BenchError> {
        let data = folder.join("postgres");
        let (from, to) = (self.template.to_string_lossy(), data.to_string_lossy());
        tool("cp", &["-a", &from, &to])?;
        tool("sync", &[])?;
        let server = self.start(site, &data)?;
        let (mut one, mut eight) = (vec![], vec![]);
        for _ in 0..plan.rounds {
            one.push(self.bench(&data, 1, plan.cap)?);
            eight.push(self.bench(&data, CLIENTS, plan.cap)?);
        }
        let told: u64 = one.iter().chain(&eight).map(|run| run.transactions).sum();
        let ask = [
            "--no-align",
            "--tuples-only",
            "--command",
            "select count(*) from pgbench_history",
        ];
        let found = self.run(&data, "psql", &ask)?;
        if found != told.to_string() {
            let why = format!("{found} transactions are there, {told} were acknowledged");
            return Err(BenchError::Wrong { place: data, why });
        }
        self.stop(server, &data)?;
        let of = |runs: &[Run], field: fn(&Run) -> f64| median(runs.iter().map(field).collect());
        Ok(Transactions {
            one: of(&one, |run| run.per_second),
            one_ms: of(&one, |run| run.average_ms),
            eight: of(&eight, |run| run.per_second),
            eight_ms: of(&eight, |run| run.average_ms),
        })
    }

    fn bench(&self, data: &Path, clients: usize, cap: Duration) -> Result<Run, BenchError> {
        // It counts in whole seconds, and the time in which clients connect among them.
        let seconds = (cap * 6).as_secs_f64().ceil().max(2.0).to_string();
        let clients = clients.to_string();
        let flags = ["--no-vacuum", "--time", &seconds, "--client", &clients];
        let said = self.run(data, "pgbench", &flags)?;
        Run::parse(&said).ok_or_else(|| BenchError::Asked(format!("pgbench told no figures: {said}")))
    }

    /// A program of somebody's, as the server's user.
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
            .current_dir(&self.beside);
        command
    }

    /// One of its programs, to its end.
    fn run(&self, data: &Path, program: &str, arguments: &[&str]) -> Result<String, BenchError> {
        let mut command = self.as_user(&self.programs.join(program), arguments);
        command
            .env("PGDATA", data)
            .env("PGHOST", &self.beside)
            .env("PGDATABASE", "postgres");
        finish(&mut command)
    }

    /// Starts the server, which is killed with this process if it comes to that.
    fn start(&self, site: &Site, data: &Path) -> Result<Child, BenchError> {
        let program = self.programs.join("postgres");
        let [reuid, regid] = ["reuid", "regid"].map(|id| format!("--{id}={USER}"));
        let (program, data_text) = (program.to_string_lossy(), data.to_string_lossy());
        let beside = self.beside.to_string_lossy();
        let words = [
            "--pdeathsig",
            "KILL",
            &reuid,
            &regid,
            "--clear-groups",
            &program,
            "-D",
            &data_text,
            "-k",
            &beside,
            "-c",
            "listen_addresses=",
            "-c",
            "shared_buffers=64MB",
            "-c",
            "max_wal_size=128MB",
        ];
        let server = Child::start(Path::new("setpriv"), words, "postgres", site.folder())?;
        let deadline = Instant::now() + PATIENCE;
        while self.run(data, "psql", &["--command", "select 1"]).is_err() {
            if Instant::now() > deadline {
                return Err(server.failed("it does not answer"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// Lets it write everything: whoever is killed leaves its children for a moment, and what they have open.
    fn stop(&self, server: Child, data: &Path) -> Result<(), BenchError> {
        self.run(data, "pg_ctl", &["stop", "--mode=fast", "--wait"])?;
        drop(server);
        Ok(())
    }
}

/// What pgbench says at its end.
#[derive(Default)]
struct Run {
    transactions: u64,
    per_second: f64,
    average_ms: f64,
}

impl Run {
    fn parse(said: &str) -> Option<Run> {
        let after = |name: &str| {
            let rest = said.lines().find_map(|line| line.strip_prefix(name))?;
            rest.split([' ', '/']).next()
        };
        let transactions = after("number of transactions actually processed: ")?;
        let transactions = transactions.parse().ok()?;
        if transactions == 0 {
            // On a very busy machine; it tells no rates then.
            return Some(Run::default());
        }
        Some(Run {
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
    fn what_pgbench_says_is_read() {
        let said = "pgbench (15.1)\nscaling factor: 4\nnumber of transactions actually processed: 3210\n\
                    number of failed transactions: 0 (0.000%)\nlatency average = 0.623 ms\n\
                    initial connection time = 2.1 ms\ntps = 1605.17 (without initial connection time)\n";
        let run = Run::parse(said).unwrap();
        assert_eq!(
            (run.transactions, run.per_second, run.average_ms),
            (3210, 1605.17, 0.623)
        );
        assert!(Run::parse("pgbench: error: no connection").is_none());
        let none = Run::parse("number of transactions actually processed: 0\n").unwrap();
        assert_eq!((none.transactions, none.per_second), (0, 0.0));
    }
}
