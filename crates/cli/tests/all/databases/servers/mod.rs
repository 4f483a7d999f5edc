//! Databases that are servers of their own, with clients beside them.

pub(crate) mod mariadb;
pub(crate) mod postgres;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{CommandOutput, finish};
use crate::databases::scenario::TestDatabase;
use crate::users::process::{UserProcess, until};

/// More than a client gets through before the kill.
const SCRIPT: u64 = 8000;
/// The table is emptied when it has more.
const KEPT: u64 = 5000;

/// The differences between database servers.
pub(crate) trait ServerKind {
    /// The server, in the foreground.
    fn server(&self) -> Command;

    /// Returns a client that runs a script and stops at the first error.
    fn client(&self, script: &Path) -> Command;

    /// A client that asks this.
    fn asking(&self, question: &str) -> Command;

    /// Returns the statements that are run once, after the first start.
    fn preparation(&self) -> &str;

    /// Returns the statements that insert a number and print it once it is committed.
    fn insertion(&self, number: u64) -> String;

    /// How many other clients there are.
    fn sessions(&self) -> &str;

    /// Has the database check its table, which is `t(n, filler)`. Something follows that asks for one line
    /// more.
    fn own_check(&self) -> &str;

    /// Whether a line of the check's output, which may be empty, says that the database is sound.
    fn is_well(&self, line: &str) -> bool;
}

pub(crate) struct DatabaseServer<K> {
    kind: K,
    beside: PathBuf,
    running: Option<UserProcess>,
    /// The first number that is in the table, if it is not empty.
    first: u64,
    is_prepared: bool,
}

impl<K: ServerKind> DatabaseServer<K> {
    pub(crate) fn new(kind: K, beside: PathBuf) -> DatabaseServer<K> {
        DatabaseServer {
            kind,
            beside,
            running: None,
            first: 1,
            is_prepared: false,
        }
    }

    fn ask(&self, question: &str) -> CommandOutput {
        finish(&mut self.kind.asking(question))
    }

    fn sure(&self, question: &str) -> String {
        let ran = self.ask(question);
        assert_eq!(ran.code, 0, "{question}: {}", ran.err);
        ran.out
    }
}

impl<K: ServerKind> TestDatabase for DatabaseServer<K> {
    fn start(&mut self) {
        if self.running.is_some() {
            return;
        }
        let path = self.beside.join("log");
        let log = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let mut command = self.kind.server();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let mut running = UserProcess::start(&mut command);
        until("the database answers", || {
            let ended = running.child().try_wait().unwrap();
            let log = || std::fs::read_to_string(&path).unwrap_or_default();
            assert!(ended.is_none(), "it ended: {}", log());
            self.ask("select 1").code == 0
        });
        self.running = Some(running);
        if !std::mem::replace(&mut self.is_prepared, true) {
            self.sure(self.kind.preparation());
        }
    }

    fn client(&self, from: u64, said: File) -> UserProcess {
        let path = self.beside.join("script");
        let lines: String = (from + 1..=from + SCRIPT)
            .map(|number| self.kind.insertion(number) + "\n")
            .collect();
        File::create(&path).unwrap().write_all(lines.as_bytes()).unwrap();
        let mut command = self.kind.client(&path);
        UserProcess::start(command.stdout(said).stderr(Stdio::null()))
    }

    fn is_in_client(&self) -> bool {
        false
    }

    fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.kill();
        }
    }

    fn is_running(&mut self) -> bool {
        let running = self.running.as_mut();
        running.is_some_and(|running| matches!(running.child().try_wait(), Ok(None)))
    }

    fn settle(&self) {
        until("the killed client's session is over", || {
            self.sure(self.kind.sessions()).trim() == "0"
        });
    }

    fn check(&self) -> u64 {
        let first = self.first;
        let said = self.sure(&format!(
            "{}; select count(*), coalesce(min(n), {first}), coalesce(max(n), {first} - 1), \
             coalesce(sum(case when filler = repeat('x', mod(n, 900)) then 0 else 1 end), 0) from t",
            self.kind.own_check()
        ));
        let mut lines: Vec<&str> = said.lines().collect();
        let numbers: Vec<u64> = { lines.pop().unwrap().split(['|', '\t']) }
            .map(|number| number.trim().parse().unwrap())
            .collect();
        assert!(lines.iter().all(|line| self.kind.is_well(line)), "{said}");
        let [count, lowest, last, wrong] = numbers[..] else {
            panic!("{said}");
        };
        assert_eq!((lowest, wrong), (first, 0), "{said}");
        assert_eq!(last + 1 - first, count, "each of them, from {first} on: {said}");
        last
    }

    fn shorten(&mut self, last: u64) {
        if last > self.first + KEPT {
            self.sure("truncate table t");
            self.first = last + 1;
        }
    }
}

/// A program that is another user's.
pub(crate) fn as_user(user: &str, program: &Path, directory: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args([format!("--reuid={user}"), format!("--regid={user}")])
        .args(["--clear-groups", "--"])
        .arg(program)
        .current_dir(directory)
        // A MariaDB that starts removes what another has put into the same one.
        .env("TMPDIR", directory);
    command
}
