//! The server of a mount is killed again and again while a database uses it. Neither the database nor its
//! client notices: both go on as the same processes, the log has no error, and every acknowledged number is
//! there.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Instant;

use crate::common::mounted::wait_until;
use crate::databases::scenario::{Make, PAUSE, TestDatabase, last_said, say, variable};
use crate::databases::testbed::DatabaseTestbed;
use crate::faults::harness::random::FaultsRandom;
use crate::users::process::UserProcess;

/// Kills between two checks of what is there.
const KILLS_BETWEEN_CHECKS: u64 = 10;
/// Rounds after which the progress of a long test is printed.
const REPORT: u64 = 100;
/// Words of a database's log that say that something has failed.
const COMPLAINTS: [&str; 9] = [
    "ERROR",
    "FATAL",
    "PANIC",
    "panic:",
    "[ERR]",
    "\"level\":\"error\"",
    "\"level\":\"fatal\"",
    "Input/output error",
    "not connected",
];

/// PostgreSQL's sentence about a client that the test has killed.
const CLIENT_KILLED: &str = "connection to client lost";

struct Survival {
    ground: DatabaseTestbed,
    database: Box<dyn TestDatabase>,
    random: FaultsRandom,
    said: PathBuf,
    /// The last number that was found by a check.
    last: u64,
    /// The database's log, and its length when the first server was killed.
    log: (PathBuf, usize),
}

/// Kills `rounds` servers, or as many as the environment says if `rounds` is `None`.
pub(crate) fn no_kill_is_noticed(
    name: &str,
    ground: Option<DatabaseTestbed>,
    make: Make,
    rounds: Option<u64>,
) {
    let Some(ground) = ground.filter(DatabaseTestbed::can_replace_servers) else {
        return;
    };
    let rounds = rounds.or_else(|| variable("NETRAM_KILL_ROUNDS")).unwrap_or(1000);
    let Some(mut story) = Survival::new(name, ground, make) else {
        return;
    };
    let (begun, mut killed) = (Instant::now(), 0);
    while killed < rounds {
        let kills = KILLS_BETWEEN_CHECKS.min(rounds - killed);
        story.stretch(kills);
        killed += kills;
        if killed % REPORT == 0 || killed == rounds {
            let (seconds, commits) = (begun.elapsed().as_secs(), story.last);
            say(format_args!(
                "{name}, {seconds} s: {killed} servers killed, {commits} commits, no error"
            ));
        }
    }
    story.close();
}

impl Survival {
    fn new(name: &str, ground: DatabaseTestbed, make: Make) -> Option<Survival> {
        let mut database = make(&ground)?;
        let random = variable("NETRAM_KILL_SEED").map_or_else(FaultsRandom::here, FaultsRandom);
        say(format_args!("{name}: NETRAM_KILL_SEED={}", random.0));
        database.start();
        ground.wait_for_members();
        let log = ground.beside().join("log");
        let length = fs::read(&log).map_or(0, |bytes| bytes.len());
        Some(Survival {
            said: ground.beside().join("said"),
            ground,
            database,
            random,
            last: 0,
            log: (log, length),
        })
    }

    /// One client commits while this many servers are killed; then what it reported is looked for.
    fn stretch(&mut self, kills: u64) {
        let mut client = self.client(self.last);
        for _ in 0..kills {
            self.wait_for_commit(&mut client);
            std::thread::sleep(PAUSE.mul_f64(self.random.below(1000) as f64 / 1000.0));
            self.ground.kill_server();
        }
        self.wait_for_commit(&mut client);
        client.kill();
        let told = self.told();
        self.database.settle();
        let there = self.database.check();
        assert!(there >= told, "{told} were told, {there} are there");
        assert!(self.database.is_running(), "the database has ended");
        self.assert_no_complaint();
        self.last = there;
        self.database.shorten(there);
    }

    fn client(&self, from: u64) -> UserProcess {
        self.database.client(from, File::create(&self.said).unwrap())
    }

    fn told(&self) -> u64 {
        last_said(&self.said).max(self.last)
    }

    /// Waits for a commit from here on. A client that got through all it had to do is followed by another.
    fn wait_for_commit(&mut self, client: &mut UserProcess) {
        let mut before = self.told();
        wait_until("a commit", || {
            let ended = client.child().try_wait().unwrap();
            if self.told() > before {
                return true;
            }
            if let Some(status) = ended {
                assert!(
                    status.success(),
                    "the client ended: {status}, {}",
                    self.complaint()
                );
                before = self.told();
                self.last = before;
                *client = self.client(before);
            }
            false
        });
    }

    fn complaint(&self) -> String {
        let (path, length) = &self.log;
        let log = fs::read(path).unwrap_or_default();
        let text = String::from_utf8_lossy(&log[*length..]).into_owned();
        let complains =
            |line: &&str| COMPLAINTS.iter().any(|word| line.contains(word)) && !line.ends_with(CLIENT_KILLED);
        text.lines().filter(complains).collect::<Vec<_>>().join("\n")
    }

    fn assert_no_complaint(&self) {
        let complaint = self.complaint();
        assert!(complaint.is_empty(), "the database's log: {complaint}");
    }

    fn close(mut self) {
        self.database.kill();
        self.ground.close();
    }
}
