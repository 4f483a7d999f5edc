//! Storage engines that programs have inside of them: a program a database, written in C but for SQLite's.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::common::{finish, skipped};
use crate::databases::ground::Ground;
use crate::databases::story::Database;
use crate::users::process::{Running, has};

/// Numbers that a program keeps; older ones it removes.
const KEPT: u64 = 1000;

struct Engine {
    /// The program, and what it is told before anything else.
    program: Vec<PathBuf>,
    folder: PathBuf,
    /// Where it was compiled, if it was.
    _programs: Option<TempDir>,
}

impl Engine {
    fn command(&self, what: &str) -> Command {
        let mut command = Command::new(&self.program[0]);
        command.args(&self.program[1..]).arg(what).arg(&self.folder);
        command
    }
}

impl Database for Engine {
    fn start(&mut self) {}

    fn client(&self, from: u64, said: File) -> Running {
        let mut command = self.command("write");
        Running::start(command.arg(from.to_string()).stdout(said).stderr(Stdio::null()))
    }

    fn is_in_client(&self) -> bool {
        true
    }

    fn kill(&mut self) {}

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
    ground: &Ground,
    name: &str,
    header: &str,
    package: &str,
    library: &str,
) -> Option<Box<dyn Database>> {
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
        folder: ground.kept(),
        _programs: Some(programs),
    }))
}

pub(crate) fn lmdb(ground: &Ground) -> Option<Box<dyn Database>> {
    in_c(ground, "lmdb", "lmdb.h", "liblmdb-dev", "lmdb")
}

pub(crate) fn berkeley_db(ground: &Ground) -> Option<Box<dyn Database>> {
    in_c(ground, "berkeley", "db.h", "libdb5.3-dev", "db")
}

pub(crate) fn rocksdb(ground: &Ground) -> Option<Box<dyn Database>> {
    in_c(ground, "rocks", "rocksdb/c.h", "librocksdb-dev", "rocksdb")
}

fn sqlite(ground: &Ground, mode: &str) -> Option<Box<dyn Database>> {
    if let Err(missing) = has("python3") {
        skipped(missing);
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/databases/engines/sqlite.py");
    Some(Box::new(Engine {
        program: vec!["python3".into(), script, mode.into()],
        folder: ground.kept(),
        _programs: None,
    }))
}

pub(crate) fn sqlite_wal(ground: &Ground) -> Option<Box<dyn Database>> {
    sqlite(ground, "wal")
}

pub(crate) fn sqlite_delete(ground: &Ground) -> Option<Box<dyn Database>> {
    sqlite(ground, "delete")
}
