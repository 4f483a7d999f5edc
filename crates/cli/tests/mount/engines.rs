//! Storage engines that programs have inside of them: their folder on a mount, written to one number a commit, killed, and looked at.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{Ran, finish, forks};
use crate::sqlite::last_said;
use crate::{Mounted, cannot_mount, wait_until};

/// A program around an engine; `None`: the engine is not here, and it was said aloud.
fn compiled(name: &str, header: &str, package: &str, library: &str, folder: &Path) -> Option<PathBuf> {
    if !Path::new("/usr/include").join(header).exists() {
        crate::common::skipped(format_args!("no {header} here (`apt-get install {package}`)"));
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/mount/engines/{name}.c"));
    let program = folder.join(name);
    let mut command = Command::new("cc");
    command.args(["-O1", "-Wall", "-o"]).arg(&program).arg(source);
    let ran = finish(command.arg(format!("-l{library}")));
    assert_eq!(ran.code, 0, "{}", ran.err);
    Some(program)
}

/// Numbers that are there: each up to the last.
fn numbers(ran: &Ran) -> u64 {
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let numbers: Vec<u64> = { ran.out.split_whitespace() }
        .map(|number| number.parse().unwrap())
        .collect();
    assert_eq!(numbers[0], numbers[1], "each of them");
    numbers[1]
}

fn engine(name: &str, header: &str, package: &str, library: &str) {
    if cannot_mount() {
        return;
    }
    let programs = tempfile::tempdir().unwrap();
    let Some(program) = compiled(name, header, package, library, programs.path()) else {
        return;
    };
    let mut mounted = Mounted::new(name, 2, "4MiB");
    let folder = mounted.dir().join("base");
    fs::create_dir(&folder).unwrap();
    let said = mounted.folder.path().join("said");
    fs::write(&said, "").unwrap();
    let mut last = 0;
    for round in 0..4_u64 {
        let mut writer = {
            let _alone = forks();
            Command::new(&program)
                .arg("write")
                .arg(&folder)
                .arg(last.to_string())
                .stdout(OpenOptions::new().append(true).open(&said).unwrap())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        wait_until("a commit", || {
            last_said(&said) > last || writer.try_wait().unwrap().is_some()
        });
        std::thread::sleep(Duration::from_millis(200 + round * 131));
        // The one or the other first.
        if round % 2 == 0 {
            writer.kill().unwrap();
            writer.wait().unwrap();
        }
        mounted.kill();
        // Whoever maps a file whose server is gone may wait for it, and may not be told.
        let _ = writer.kill();
        writer.wait().unwrap();
        mounted.mount();
        let there = numbers(&finish(Command::new(&program).arg("check").arg(&folder)));
        let said = last_said(&said);
        assert!(there >= said, "{said} were committed, and {there} are there");
        assert!(there > last, "nothing was committed in round {round}");
        last = there;
    }
    assert_eq!(mounted.unmount().code, 0);
    assert_eq!(
        numbers(&finish(Command::new(&program).arg("check").arg(&folder))),
        last
    );
}

#[test]
fn lmdb_has_what_it_committed() {
    engine("lmdb", "lmdb.h", "liblmdb-dev", "lmdb");
}

#[test]
fn berkeley_db_has_what_it_committed() {
    engine("berkeley", "db.h", "libdb5.3-dev", "db");
}

#[test]
fn rocksdb_has_what_it_wrote_synced() {
    engine("rocks", "rocksdb/c.h", "librocksdb-dev", "rocksdb");
}
