//! PostgreSQL on a volume: server and volume are killed under pgbench, in either order. Then its own checks
//! must find nothing, the sums must match, and no acknowledged transaction may be missing.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use crate::users::file_system::FileSystem;
use crate::users::process::{PATIENCE, UserProcess, end, until};
use crate::users::rounds::Rounds;
use crate::users::testbed::{UsersTestbed, give_to};

const CLIENTS: u64 = 4;
const ROUND: Duration = Duration::from_millis(2500);
/// Small logs, so that checkpoints and recycled files are part of every run.
const SETTINGS: [&str; 6] = [
    "listen_addresses=",
    "max_wal_size=48MB",
    "min_wal_size=32MB",
    "checkpoint_timeout=30s",
    "shared_buffers=16MB",
    "restart_after_crash=off",
];

#[test]
fn postgresql_misses_no_commit_after_it_and_its_volume_were_killed() {
    let test = "postgresql_misses_no_commit_after_it_and_its_volume_were_killed";
    let programs = [&format!("{}/initdb", programs().display()), "setpriv", "psql"];
    let Some(site) = UsersTestbed::new(test, FileSystem::Ext4, &programs) else {
        return;
    };
    let mut rounds = Rounds::new(2);
    let database = Postgres::make(&site);
    let (mut acked, mut doubtful, mut kills) = (0, 0, 0);
    let mut server = database.start();
    database.run("pgbench", &["--initialize", "--quiet"]).unwrap();
    while rounds.another() {
        let mut clients = database.start_clients(kills);
        rounds.let_it_run(ROUND);
        // The server first: then what it has not written yet is lost. Or the volume first: then its writes
        // fail.
        let killed = if rounds.random.below(2) == 0 {
            server.kill();
            site.crash_after(SystemTime::now)
        } else {
            let killed = site.crash_after(SystemTime::now);
            server.kill();
            killed
        };
        // They end when their server has, and only then have their logs been written out.
        until("the clients end", || {
            clients.child().try_wait().unwrap().is_some()
        });
        let told = database.told(killed);
        acked += told.0;
        doubtful += told.1 + CLIENTS;
        kills += 1;
        site.recover();
        server = database.start();
        database.check(acked, doubtful);
        server.stop(Signal::INT).unwrap();
        database.run("pg_checksums", &["--check"]).unwrap();
        server = database.start();
    }
    server.stop(Signal::INT).unwrap();
    eprintln!("{} kills, {acked} acknowledged transactions", rounds.done());
    assert!(acked > 0, "no transaction was ever acknowledged");
    site.close();
}

/// Debian's place, or wherever the path leads.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let newest = versions.map(|version| version.path().join("bin")).max();
    newest.unwrap_or_default()
}

/// Lenders join the volume and leave it under pgbench, its rule changes, and both are killed in the midst.
#[test]
fn postgresql_misses_no_commit_while_lenders_joined_and_left() {
    let test = "postgresql_misses_no_commit_while_lenders_joined_and_left";
    let programs = [&format!("{}/initdb", programs().display()), "setpriv", "psql"];
    let Some(mut site) = UsersTestbed::new(test, FileSystem::Ext4, &programs) else {
        return;
    };
    let mut rounds = Rounds::new(1);
    let database = Postgres::make(&site);
    let (mut acked, mut doubtful, mut kills) = (0, 0, 0);
    let mut server = database.start();
    database.run("pgbench", &["--initialize", "--quiet"]).unwrap();
    while rounds.another() {
        site.wait_for_members();
        let mut clients = database.start_clients(kills);
        rounds.let_it_run(ROUND);
        site.exchange_lenders();
        site.begin_change(rounds.random.below(2) == 0);
        let killed = site.crash_after(SystemTime::now);
        server.kill();
        until("the clients end", || {
            clients.child().try_wait().unwrap().is_some()
        });
        let told = database.told(killed);
        acked += told.0;
        doubtful += told.1 + CLIENTS;
        kills += 1;
        site.recover();
        server = database.start();
        database.check(acked, doubtful);
    }
    server.stop(Signal::INT).unwrap();
    eprintln!("{} kills, {acked} acknowledged transactions", rounds.done());
    assert!(acked > 0, "no transaction was ever acknowledged");
    site.close();
}

struct Postgres {
    data: PathBuf,
    /// Sockets and logs, which are not on the volume.
    beside: PathBuf,
}

impl Postgres {
    fn make(site: &UsersTestbed) -> Postgres {
        let (data, beside) = (site.mounted().join("postgres"), site.path("beside"));
        for directory in [&data, &beside] {
            fs::create_dir(directory).unwrap();
            give_to("postgres", directory);
        }
        let made = Postgres { data, beside };
        made.run("initdb", &["--data-checksums", "--auth=trust", "--locale=C"])
            .unwrap();
        made
    }

    /// One of its programs, as its user, whom it insists on.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=postgres", "--regid=postgres", "--clear-groups"])
            .arg(programs().join(program))
            .env("PGDATA", &self.data)
            .env("PGHOST", &self.beside)
            .env("PGDATABASE", "postgres")
            .current_dir(&self.beside);
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        end(self.command(program).args(arguments), PATIENCE)
    }

    /// Starts the server, and waits until it has recovered.
    fn start(&self) -> UserProcess {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.beside.join("log"))
            .unwrap();
        let mut command = self.command("postgres");
        command.arg("-k").arg(&self.beside);
        for setting in SETTINGS {
            command.args(["-c", setting]);
        }
        let mut server = UserProcess::start(command.stdout(log.try_clone().unwrap()).stderr(log));
        until("PostgreSQL answers", || {
            let ended = server.child().try_wait().unwrap();
            assert!(ended.is_none(), "PostgreSQL ended: {}", self.log());
            self.run("pg_isready", &[]).is_ok()
        });
        server
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.beside.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// Starts clients, which run until their server is gone and log each acknowledged transaction.
    fn start_clients(&self, round: u64) -> UserProcess {
        let mut command = self.command("pgbench");
        command
            .args(["--no-vacuum", "--time=3600", "--log", "--client"])
            .args([&CLIENTS.to_string(), &format!("--log-prefix=round{round}")]);
        UserProcess::start(command.stdout(Stdio::null()).stderr(Stdio::null()))
    }

    /// Returns the number of transactions acknowledged in this round, before the kill and after it.
    fn told(&self, killed: SystemTime) -> (u64, u64) {
        let killed = killed.duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let (mut before, mut after) = (0, 0);
        for entry in fs::read_dir(&self.beside).unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with("round") {
                for line in fs::read_to_string(entry.path()).unwrap().lines() {
                    // Client, number, time taken, script, seconds, microseconds.
                    let fields: Vec<f64> = line.split(' ').flat_map(str::parse).collect();
                    match fields[4] + fields[5] / 1e6 < killed {
                        true => before += 1,
                        false => after += 1,
                    }
                }
                fs::remove_file(entry.path()).unwrap();
            }
        }
        (before, after)
    }

    /// `doubtful`: transactions that may have been under way at a kill.
    fn check(&self, acked: u64, doubtful: u64) {
        let ask = |query: &str| {
            let said = self.run("psql", &["--no-align", "--tuples-only", "--command", query]);
            said.unwrap().trim().to_owned()
        };
        let history: u64 = ask("select count(*) from pgbench_history").parse().unwrap();
        assert!(
            (acked..=acked + doubtful).contains(&history),
            "{acked} transactions were acknowledged, at most {doubtful} in doubt, and {history} are there"
        );
        let books = ask(
            "select (select sum(abalance) from pgbench_accounts), (select sum(bbalance) from pgbench_branches), \
             (select sum(tbalance) from pgbench_tellers), (select coalesce(sum(delta), 0) from pgbench_history)",
        );
        let sums: Vec<&str> = books.split('|').collect();
        assert!(
            sums.iter().all(|sum| *sum == sums[0]),
            "the books differ: {books}"
        );
        let checks = ["--install-missing", "--heapallindexed", "--parent-check"];
        self.run("pg_amcheck", &checks).unwrap();
    }
}
