//! A database's rounds of kills and recoveries, and the checks after each.

use std::fmt::{self, Display};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::mounted::wait_until;
use crate::databases::testbed::DatabaseTestbed;
use crate::faults::harness::random::FaultsRandom;
use crate::users::process::UserProcess;

/// A round's kill waits for so long at most, after the first commit.
pub(crate) const PAUSE: Duration = Duration::from_millis(150);
/// A lender is missed after half a second. Some kills come before that, some behind it.
const LENDER_PAUSE: Duration = Duration::from_millis(800);
/// Rounds of a long test after which its progress is printed and a volume's file system is checked.
const REPORT: u64 = 50;

/// A database of numbers. A client commits one after the other; old ones are removed.
pub(crate) trait TestDatabase {
    /// Starts its server, if it has one, and waits until that has recovered.
    fn start(&mut self);

    /// Starts a client that commits the numbers from `from` + 1 on, each in its own transaction, and writes
    /// each to `said` when it is acknowledged.
    fn client(&self, from: u64, said: File) -> UserProcess;

    /// Whether it is in the client's own process: then there is no server, and both are killed as one.
    fn is_in_client(&self) -> bool;

    /// SIGKILL, to all of its processes.
    fn kill(&mut self);

    /// Whether its server, if it has one, is the process that was started last.
    fn is_running(&mut self) -> bool;

    /// Waits until the transactions that a killed client had begun have ended.
    fn settle(&self);

    /// The last number that is there: after all before it were found which should be there, with what was
    /// put, and after the database's own check.
    fn check(&self) -> u64;

    /// Between rounds: older numbers may be removed.
    fn shorten(&mut self, last: u64);
}

/// Makes a database on some storage. `None`: it is not installed, and the test printed that it is skipped.
pub(crate) type Make = fn(&DatabaseTestbed) -> Option<Box<dyn TestDatabase>>;

/// The process that is killed, or the lender that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kill {
    /// All processes of the database.
    Database,
    /// The client alone; the database goes on.
    Client,
    /// The server of the storage alone; another takes its place without an error for the database.
    Server,
    /// The process that serves the storage, and then the database.
    GroundThenDatabase,
    DatabaseThenGround,
    /// A lender, with its memory, while commits go on; then the database.
    Lender,
    LenderThenGround,
    LenderThenDatabaseThenGround,
}

const KILLS: [Kill; 8] = [
    Kill::Database,
    Kill::Client,
    Kill::Server,
    Kill::GroundThenDatabase,
    Kill::DatabaseThenGround,
    Kill::Lender,
    Kill::LenderThenGround,
    Kill::LenderThenDatabaseThenGround,
];

impl Kill {
    fn can_be(self, database: &dyn TestDatabase, ground: &DatabaseTestbed) -> bool {
        match self {
            Kill::Client => !database.is_in_client(),
            Kill::Server => ground.replaces_servers(),
            _ => true,
        }
    }

    fn loses_lender(self) -> bool {
        matches!(
            self,
            Kill::Lender | Kill::LenderThenGround | Kill::LenderThenDatabaseThenGround
        )
    }
}

struct DatabaseScenario {
    ground: DatabaseTestbed,
    database: Box<dyn TestDatabase>,
    random: FaultsRandom,
    /// The last number in the database after the last round.
    last: u64,
    /// File with the numbers that clients reported as acknowledged.
    said: PathBuf,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    rounds: u64,
    kills: [u64; KILLS.len()],
    commits: u64,
    /// Numbers that were reported after the storage was killed, and are missing: see
    /// [`DatabaseTestbed::kill`].
    belied: u64,
}

impl Display for Counts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} rounds, {} commits, nothing lost",
            self.rounds, self.commits
        )?;
        for (kill, count) in KILLS.iter().zip(self.kills).filter(|(_, count)| *count > 0) {
            write!(out, "; {kill:?} {count}")?;
        }
        if self.belied > 0 {
            write!(out, "; {} belied by ext4", self.belied)?;
        }
        Ok(())
    }
}

/// Every kill that can be, once.
pub(crate) fn each_kill_once(name: &str, ground: Option<DatabaseTestbed>, make: Make) {
    let Some(mut story) = DatabaseScenario::new(name, ground, make, None) else {
        return;
    };
    for kill in KILLS {
        if kill.can_be(&*story.database, &story.ground) {
            story.round(kill, true);
        }
    }
    story.close();
}

/// Kills at random, as often as the environment says.
pub(crate) fn a_thousand_kills(name: &str, ground: Option<DatabaseTestbed>, make: Make) {
    let rounds = variable("NETRAM_KILL_ROUNDS").unwrap_or(1000);
    let Some(mut story) = DatabaseScenario::new(name, ground, make, variable("NETRAM_KILL_SEED")) else {
        return;
    };
    let on = if story.ground.is_mount() {
        "a mount"
    } else {
        "a volume"
    };
    let begun = Instant::now();
    for round in 1..=rounds {
        let kill = story.any_kill();
        let told = round % REPORT == 0;
        story.round(kill, told || round == rounds);
        if told || round == rounds {
            say(format_args!(
                "{name} on {on}, {} s: {}",
                begun.elapsed().as_secs(),
                story.counts
            ));
        }
    }
    story.close();
}

/// A number that the environment gives.
pub(crate) fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Past the test harness, so that it is seen while the test runs.
pub(crate) fn say(what: impl Display) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

impl DatabaseScenario {
    fn new(
        name: &str,
        ground: Option<DatabaseTestbed>,
        make: Make,
        seed: Option<u64>,
    ) -> Option<DatabaseScenario> {
        let ground = ground?;
        let mut database = make(&ground)?;
        let random = seed.map_or_else(FaultsRandom::here, FaultsRandom);
        say(format_args!("{name}: NETRAM_KILL_SEED={}", random.0));
        database.start();
        ground.wait_for_members();
        Some(DatabaseScenario {
            said: ground.beside().join("said"),
            ground,
            database,
            random,
            last: 0,
            counts: Counts::default(),
        })
    }

    fn any_kill(&mut self) -> Kill {
        loop {
            let kill = KILLS[self.random.below(KILLS.len() as u64) as usize];
            // Lenders are lost less often: such a round takes three times as long.
            let is_rare = kill.loses_lender() && self.random.below(3) > 0;
            if !is_rare && kill.can_be(&*self.database, &self.ground) {
                return kill;
            }
        }
    }

    fn pause(&mut self, at_most: Duration) {
        std::thread::sleep(at_most.mul_f64(self.random.below(1000) as f64 / 1000.0));
    }

    /// A client commits, a process is killed, and what was acknowledged is there.
    fn round(&mut self, kill: Kill, checked: bool) {
        let mut client = self.database.client(self.last, File::create(&self.said).unwrap());
        self.wait_for_commit(&mut client, self.last);
        self.pause(PAUSE);
        let told = self.let_happen(kill, &mut client);
        // Without its server it has nothing left to do, but only a kill makes sure that it reports nothing
        // more.
        client.kill();
        let ever = self.told();
        // Recovery is by those that are left, or an empty one is there already.
        let early = self.random.below(2) == 0;
        if early {
            self.ground.replace_lender();
        }
        self.ground.recover(checked);
        self.database.start();
        let there = self.database.check();
        let (round, last) = (self.counts.rounds, self.last);
        let context = format!("round {round}, {kill:?}: from {last} on, {told} and later {ever} were told");
        assert!(there >= told, "{context}: {there} are there");
        assert!(
            there > last,
            "{context}: {there} are there, nothing was committed"
        );
        if kill.loses_lender() {
            self.ground.replace_lender();
            self.ground.wait_for_members();
        }
        self.counts.rounds += 1;
        self.counts.kills[KILLS.iter().position(|other| *other == kill).expect("it is one")] += 1;
        self.counts.commits += told - last;
        self.counts.belied += ever.saturating_sub(there);
        self.last = there;
        self.database.shorten(there);
    }

    /// Kills, and returns the last number that was acknowledged to the client.
    fn let_happen(&mut self, kill: Kill, client: &mut UserProcess) -> u64 {
        let (said, last) = (self.said.clone(), self.last);
        let told = move || last_said(&said).max(last);
        if kill.loses_lender() {
            let which = self.random.next();
            self.ground.lose_lender(which);
            self.pause(LENDER_PAUSE);
        }
        match kill {
            Kill::Database => self.kill_database(client),
            Kill::Client => {
                client.child().kill().unwrap();
                self.database.settle();
            }
            Kill::Server | Kill::Lender => {
                if kill == Kill::Server {
                    self.ground.kill_server();
                }
                self.wait_for_commit(client, self.told());
                self.pause(PAUSE);
                self.kill_database(client);
            }
            Kill::GroundThenDatabase | Kill::LenderThenGround => {
                let told = self.ground.kill(told);
                self.pause(PAUSE / 3);
                self.kill_database(client);
                return told;
            }
            Kill::DatabaseThenGround | Kill::LenderThenDatabaseThenGround => {
                self.kill_database(client);
                return self.ground.kill(told);
            }
        }
        self.told()
    }

    fn kill_database(&mut self, client: &mut UserProcess) {
        if self.database.is_in_client() {
            let _ = client.child().kill();
            let _ = client.child().wait();
        }
        self.database.kill();
    }

    fn told(&self) -> u64 {
        last_said(&self.said).max(self.last)
    }

    fn wait_for_commit(&self, client: &mut UserProcess, after: u64) {
        wait_until("a commit", || {
            if self.told() > after {
                return true;
            }
            let ended = client.child().try_wait().unwrap();
            assert!(ended.is_none(), "the client ended: {ended:?}");
            false
        });
    }

    /// Closes everything in order; nothing is lost.
    fn close(mut self) {
        self.database.kill();
        say(&self.counts);
        self.ground.close();
    }
}

/// Returns the last acknowledged number of a file with one number on each line; the last line may be cut.
pub(crate) fn last_said(said: &Path) -> u64 {
    let text = fs::read_to_string(said).unwrap();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let mut numbers = whole.lines().rev().filter_map(|line| line.trim().parse().ok());
    numbers.next().unwrap_or(0)
}
