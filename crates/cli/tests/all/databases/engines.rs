//! Storage engines that programs have inside of them: a program a database, written in C but for SQLite's.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::common::{finish, skipped};
use crate::databases::scenario::TestDatabase;
use crate::databases::testbed::DatabaseTestbed;
use crate::users::process::{UserProcess, has};

/// Numbers that a program keeps; older ones it removes.
const KEPT: u64 = 1000;

struct Engine {
    /// The program, and its first arguments.
    program: Vec<PathBuf>,
    directory: PathBuf,
    /// Where it was compiled, if it was.
    _programs: Option<TempDir>,
}

impl Engine {
    fn command(&self, what: &str) -> Command {
        let mut command = Command::new(&self.program[0]);
        command.args(&self.program[1..]).arg(what).arg(&self.directory);
        command
    }
}

impl TestDatabase for Engine {
    fn start(&mut self) {}

    fn client(&self, from: u64, said: File) -> UserProcess {
        let mut command = self.command("write");
        UserProcess::start(command.arg(from.to_string()).stdout(said).stderr(Stdio::null()))
    }

    fn is_in_client(&self) -> bool {
        true
    }

    fn kill(&mut self) {}

    fn is_running(&mut self) -> bool {
        true
    }

    fn settle(&self) {}

    fn check(&self) -> u64 {
        let ran = finish(&mut self.command("check"));
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        let numbers: Vec<u64> = { ran.out.split_whitespace() }
            .map(|number| number.parse().unwrap())
            .collect();
        let [first, last] = numbers[..] else {
            panic!("{}", ran.out);
        };
        assert_eq!(first, last.saturating_sub(KEPT - 1).max(1).min(last));
        last
    }

    fn shorten(&mut self, _last: u64) {}
}

/// A program around an engine, which has its name.
fn in_c(
    ground: &DatabaseTestbed,
    name: &str,
    header: &str,
    package: &str,
    library: &str,
) -> Option<Box<dyn TestDatabase>> {
    if !Path::new("/usr/include").join(header).exists() {
        skipped(format_args!("no {header} here (`apt-get install {package}`)"));
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/all/databases/engines/{name}.c"));
    let programs = tempfile::tempdir().unwrap();
    let program = programs.path().join(name);
    let mut command = Command::new("cc");
    command.args(["-O1", "-Wall", "-o"]).arg(&program).arg(source);
    let ran = finish(command.arg(format!("-l{library}")));
    assert_eq!(ran.code, 0, "{}", ran.err);
    Some(Box::new(Engine {
        program: vec![program],
        directory: ground.kept(),
        _programs: Some(programs),
    }))
}

pub(crate) fn lmdb(ground: &DatabaseTestbed) -> Option<Box<dyn TestDatabase>> {
    in_c(ground, "lmdb", "lmdb.h", "liblmdb-dev", "lmdb")
}

pub(crate) fn berkeley_db(ground: &DatabaseTestbed) -> Option<Box<dyn TestDatabase>> {
    in_c(ground, "berkeley", "db.h", "libdb5.3-dev", "db")
}

pub(crate) fn rocksdb(ground: &DatabaseTestbed) -> Option<Box<dyn TestDatabase>> {
    in_c(ground, "rocks", "rocksdb/c.h", "librocksdb-dev", "rocksdb")
}

fn sqlite(ground: &DatabaseTestbed, mode: &str) -> Option<Box<dyn TestDatabase>> {
    if let Err(missing) = has("python3") {
        skipped(missing);
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/databases/engines/sqlite.py");
    Some(Box::new(Engine {
        program: vec!["python3".into(), script, mode.into()],
        directory: ground.kept(),
        _programs: None,
    }))
}

pub(crate) fn sqlite_wal(ground: &DatabaseTestbed) -> Option<Box<dyn TestDatabase>> {
    sqlite(ground, "wal")
}

pub(crate) fn sqlite_delete(ground: &DatabaseTestbed) -> Option<Box<dyn TestDatabase>> {
    sqlite(ground, "delete")
}
