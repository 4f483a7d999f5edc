//! The mix of several users between nodes, each a process with its own module. They visit each other's
//! modules, and one is killed again and again. At the end every node has the database that the same users
//! produce one after the other.
//!
//! A process is this test binary, started again with the name of one test. It reports the number of its
//! user's commits until it is told to stop, and on another request the result of its audit.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::region::{SharedTestbed, join};
use netram_oo7::operation::mix::{MixClient, OperationMix, perform};
use netram_oo7::user::{self, LockAcquisition, MixUser};
use netram_oo7::{DatabaseAudit, Oo7Parameters, Oo7Store, Oo7Transaction, PlainStore, audit, build};
use netram_rvm::RestoreMode;
use netram_shared_machine::{LockId, LockMode};

const DIRECTORY_VARIABLE: &str = "NETRAM_TEST_PLACE";
const MODULE_VARIABLE: &str = "NETRAM_TEST_MODULE";
const MODULES: u32 = 2;
/// Minimum number of commits of each user before it is disturbed.
const TRANSACTIONS: u64 = 40;
const SEED: u64 = 3;
/// Longer than any wait of a test.
const LINE_TIMEOUT: Duration = Duration::from_secs(60);
const MIX: OperationMix = OperationMix {
    private_read: 15,
    shared_read: 15,
    private_write: 35,
    shared_write: 35,
    operations: 4,
};

fn parameters() -> Oo7Parameters {
    "tiny-3".parse::<Oo7Parameters>().unwrap().with_modules(MODULES)
}

/// A region with a database.
fn world() -> SharedTestbed {
    let parameters = parameters();
    let world = SharedTestbed::new(user::locks(MODULES), parameters.lock_span_bytes());
    let node = world.join("builder");
    let store = user::create(&node, &parameters).unwrap();
    build(&store, &parameters).unwrap();
    drop(store);
    node.leave().unwrap();
    world
}

fn audited(store: &impl Oo7Store) -> DatabaseAudit {
    let mut open = store.begin().unwrap();
    audit(&mut open, &parameters(), true).unwrap()
}

/// The database after this number of transactions of each module's user.
fn expected(transactions: [u64; MODULES as usize]) -> DatabaseAudit {
    let parameters = parameters();
    let plain = PlainStore::default();
    build(&plain, &parameters).unwrap();
    for (module, transactions) in (1..).zip(transactions) {
        let mut client = MixClient::new(MIX, &parameters, module, SEED);
        for _ in 0..transactions {
            let mut open = plain.begin().unwrap();
            for step in client.choose(&mut open).unwrap() {
                perform(&mut open, &step).unwrap();
            }
            open.commit().unwrap();
        }
    }
    audited(&plain)
}

fn say(words: &str) {
    // A line of its own, whatever the test harness has printed before.
    writeln!(std::io::stdout(), "\n{words}").expect("somebody reads");
}

/// Not a test of its own: a node with the user of a module.
#[test]
#[ignore = "a process of the other tests"]
fn user() {
    let (Some(place), Some(module)) = (
        std::env::var_os(DIRECTORY_VARIABLE).map(PathBuf::from),
        number(MODULE_VARIABLE),
    ) else {
        return;
    };
    // If it ever hangs, it ends, and the test with it.
    std::thread::spawn(|| {
        std::thread::sleep(2 * LINE_TIMEOUT);
        std::process::exit(3);
    });
    let node = join(&place, &format!("user-{module}"));
    let parameters = parameters();
    let mut user = MixUser::new(&node, &parameters, MIX, module, SEED, LockAcquisition::AsMet).unwrap();
    let stop = std::thread::spawn(wait_for_word);
    while !stop.is_finished() {
        say(&format!("committed {}", user.committed()));
        user.transact().unwrap();
    }
    say(&format!("stopped {}", user.committed()));
    drop(user);
    wait_for_word();
    say(&format!(
        "audit {:?}",
        audited(&user::open(&node, &parameters).unwrap())
    ));
    node.leave().unwrap();
}

/// Waits for a line from the test.
fn wait_for_word() {
    let _ = std::io::stdin().lines().next();
}

fn number(variable: &str) -> Option<u32> {
    std::env::var(variable).ok()?.parse().ok()
}

/// A process with a user; killed at the end.
struct UserProcess {
    child: Child,
    lines: Receiver<String>,
}

impl UserProcess {
    fn start(place: &Path, module: u32) -> UserProcess {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "users::user", "--ignored", "--nocapture"])
            .env(DIRECTORY_VARIABLE, place)
            .env(MODULE_VARIABLE, module.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (say, said) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // The receiver is gone if the test needs no more lines.
                let _ = say.send(line);
            }
        });
        UserProcess { child, lines: said }
    }

    /// Text after the prefix `begins` in the next line that has it.
    fn read_line_after(&self, begins: &str) -> String {
        loop {
            let line = self
                .lines
                .recv_timeout(LINE_TIMEOUT)
                .expect("the process goes on");
            if let Some(rest) = line.strip_prefix(begins) {
                return rest.to_owned();
            }
        }
    }

    /// Waits until it has committed `more` transactions. Returns the number of commits at first and at the
    /// end.
    fn works(&self, more: u64) -> (u64, u64) {
        let next = || self.read_line_after("committed ").parse().unwrap();
        let first = next();
        let mut told = first;
        while told < first + more {
            told = next();
        }
        (first, told)
    }

    /// Waits for `more` commits beyond those reported so far.
    fn goes_on(&self, more: u64) {
        self.lines.try_iter().for_each(drop);
        self.works(more);
    }

    fn tell(&mut self) {
        writeln!(self.child.stdin.as_mut().unwrap()).unwrap();
    }

    /// Stops the user; returns the number of its commits.
    fn stop(&mut self) -> u64 {
        self.tell();
        self.read_line_after("stopped ").parse().unwrap()
    }

    /// After all users have stopped: result of the node's audit.
    fn audit(mut self) -> String {
        self.tell();
        let audit = self.read_line_after("audit ");
        assert!(self.child.wait().unwrap().success());
        audit
    }

    /// Kills it (SIGKILL); returns the number of commits that it reported.
    fn kill(mut self, told: u64) -> u64 {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let rest = self.lines.iter();
        let commits = rest.filter_map(|line| line.strip_prefix("committed ")?.parse().ok());
        commits.last().unwrap_or(told)
    }
}

impl Drop for UserProcess {
    fn drop(&mut self) {
        // After a failure it may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn users_in_two_processes_agree_on_the_database() {
    let world = world();
    let mut users = [1, 2].map(|module| UserProcess::start(world.directory.path(), module));
    for user in &users {
        user.works(TRANSACTIONS);
    }
    let committed = users.each_mut().map(UserProcess::stop);
    let expected = format!("{:?}", expected(committed));
    for user in users {
        assert_eq!(user.audit(), expected);
    }
    // A node that joins now gets the whole database.
    let late = world.join("late");
    let found = audited(&user::open(&late, &parameters()).unwrap());
    assert_eq!(format!("{found:?}"), expected);
}

#[test]
fn a_killed_user_continues_where_it_was() {
    let world = world();
    let place = world.directory.path();
    let mut other = UserProcess::start(place, 2);
    let mut told = 0;
    for _ in 0..3 {
        let user = UserProcess::start(place, 1);
        let (found, newest) = user.works(TRANSACTIONS);
        // The last commit before the kill may not have been reported.
        assert!((told..=told + 1).contains(&found), "{found} after {told}");
        told = user.kill(newest);
        other.goes_on(TRANSACTIONS);
    }
    let mut user = UserProcess::start(place, 1);
    let (found, _) = user.works(TRANSACTIONS);
    assert!((told..=told + 1).contains(&found), "{found} after {told}");
    let expected = format!("{:?}", expected([user.stop(), other.stop()]));
    for user in [user, other] {
        assert_eq!(user.audit(), expected);
    }
}

#[test]
fn a_transaction_that_dies_of_a_lock_is_retried_unchanged() {
    let world = world();
    let nodes = ["holder", "user"].map(|name| world.join(name));
    let mut user = MixUser::new(&nodes[1], &parameters(), MIX, 2, SEED, LockAcquisition::AsMet).unwrap();
    let mut holder = nodes[0].begin(RestoreMode::Restore).unwrap();
    holder.acquire(LockId(1), LockMode::Exclusive).unwrap();
    // With this seed the second user works in its own module first, and then in the other.
    assert!(!user.attempt().unwrap());
    assert_eq!((user.done().died, user.committed()), (1, 0));
    holder.abort();
    assert!(user.attempt().unwrap());
    assert_eq!((user.done().died, user.done().lost, user.committed()), (1, 0, 1));
    drop(user);
    assert_eq!(
        audited(&user::open(&nodes[0], &parameters()).unwrap()),
        expected([0, 1])
    );
}
