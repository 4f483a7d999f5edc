//! A process takes the journal of one that was killed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::disk::LoopDisk;
use crate::common::start;
use crate::sqlite::{SqliteTestbed, finish, no_shell, said_bytes, wait_until};

/// Has the thread that looks after the journal be slow in settling once the files are synced, and say so.
const SLOW: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
int fsync(int fd) {
    char thread[32] = "", link[64], path[512] = "";
    prctl(PR_GET_NAME, thread);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!strcmp(thread, "netram-sqlite") && length > 7 && !strcmp(path + length - 7, "-netram")) {
        close(open(getenv("SETTLES"), O_CREAT | O_WRONLY, 0600));
        usleep(500000);
    }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}
"#;

/// Builds the library that slows syncs down. `None`: there is no compiler, and the test printed that it is
/// skipped.
fn slow(directory: &Path) -> Option<PathBuf> {
    let (source, library) = (directory.join("slow.c"), directory.join("slow.so"));
    fs::write(&source, SLOW).unwrap();
    let mut compile = Command::new("cc");
    compile
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(&source);
    match compile.output() {
        Ok(made) => {
            assert!(made.status.success(), "{made:?}");
            Some(library)
        }
        Err(error) => {
            crate::common::skipped(format_args!("there is no `cc`: {error}"));
            None
        }
    }
}

/// A process brought its commits to the disk, which takes as long as a sync, and then took the first free
/// journal and emptied it. Commits that the journal's owner had made in that time, until it was killed, were
/// lost once the power failed.
#[test]
fn commits_of_a_journals_owner_survive_another_process_that_takes_it() {
    if no_shell() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        crate::common::skipped("a loop device needs root");
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let Some(slow) = slow(directory.path()) else {
        return;
    };
    let Some(disk) = LoopDisk::of_mib(directory.path(), 256) else {
        return;
    };
    let mut site = SqliteTestbed::with(directory, Some(disk), "sqlite-seats", 2);
    // Large, so that its owner need not bring it to the disk in the test.
    site = site.with_journals(1, "16MiB");
    let made = site.shell("pragma journal_mode=wal;\ncreate table t(n integer primary key, filler);\n");
    assert_eq!(made.code, 0, "{}", made.err);
    let said = site.directory.path().join("said");
    let mut owner = site.patient_writer_to_wal(1, 3, &said);
    wait_until("it has the journal", || {
        site.seats_taken() == 1 && said_bytes(&said) > 200
    });
    let settles = site.directory.path().join("settles");
    let mut other = Idle::after_a_commit(&site, 2, &slow, &settles);
    // One that settles before it has the lock is in the middle of it now. One that asks for the lock first
    // waits.
    let until = Instant::now() + Duration::from_millis(500);
    while !settles.exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let before = said_bytes(&said);
    wait_until("the owner commits some more", || said_bytes(&said) > before + 200);
    owner.kill().unwrap();
    owner.wait().unwrap();
    if !settles.exists() {
        // It would check again in five seconds. A new process checks at once.
        other.kill();
        other = Idle::after_a_commit(&site, 5, &slow, &settles);
    }
    wait_until("the other one has the journal", || site.seats_taken() == 1);
    other.kill();
    site.disk.as_mut().unwrap().power_off();
    let recovered = finish(&mut site.netram("recover"));
    assert_eq!(recovered.code, 0, "{}", recovered.err);
    assert!(site.check(&said) > 10);
}

/// A process that has committed once and has nothing more to do: what it commits itself it would settle.
struct Idle {
    shell: Child,
    _input: ChildStdin,
}

impl Idle {
    fn after_a_commit(site: &SqliteTestbed, number: u64, slow: &Path, settles: &Path) -> Idle {
        let mut shell = Command::new("stdbuf");
        shell
            .args(["-oL", "sqlite3", "-batch", "-bail"])
            .env("LD_PRELOAD", slow)
            .env("SETTLES", settles);
        let mut shell = start(
            shell
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null()),
        );
        let mut input = shell.stdin.take().unwrap();
        let text = format!("pragma synchronous=full;\ninsert into t values({number}, 'x');\n.print done\n");
        input.write_all((site.prelude() + &text).as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "done\n");
        Idle { shell, _input: input }
    }

    fn kill(&mut self) {
        self.shell.kill().unwrap();
        self.shell.wait().unwrap();
    }
}

/// With no descriptor left a settling was refused the files that it opened anew, and that passed for a failed
/// disk: no process could commit or open the database any more.
#[test]
fn a_process_without_descriptors_is_no_failed_disk() {
    let site = SqliteTestbed::new("sqlite-descriptors", 1);
    let text = r"
db.execute('pragma journal_mode=wal')
db.execute('create table t(n, filler)')
until = time.time() + 30
while not os.path.exists(path + '-netram/slot-0') or time.time() > until: pass
db.execute('insert into t values(0, zeroblob(400000))')
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
held = []
try:
    while True: held.append(os.open('/dev/null', os.O_RDONLY))
except OSError: pass
# For the lock that settling takes: what it opens next is refused.
os.close(held.pop())
done = [0]
for n in range(1, 9):
    try:
        # Larger than a quarter of the journal: by the disk.
        db.execute('insert into t values(?, zeroblob(300000))', (n,))
        done.append(n)
    except sqlite3.OperationalError as error: print('refused', error)
for held in held: os.close(held)
db.execute('insert into t values(9, zeroblob(300000))')
done.append(9)
other = connect()
assert [n for n, in other.execute('select n from t order by n')] == done, done
print('committed', len(done))
";
    let Some(mut python) = site.python(text) else {
        return;
    };
    let ran = finish(&mut python);
    assert_eq!(ran.code, 0, "{} {}", ran.out, ran.err);
    assert!(ran.out.contains("committed"), "{}", ran.out);
    assert!(!ran.err.contains("the disk failed"), "{}", ran.err);
    let found = site.shell("pragma integrity_check;\n");
    assert_eq!(found.out.trim(), "ok", "{}", found.err);
}

/// The journals were opened one after the other: the first was fenced and read for a recovery that the last
/// one refused.
#[test]
fn a_refused_journal_leaves_the_others_as_they_were() {
    if no_shell() {
        return;
    }
    let site = SqliteTestbed::new("sqlite-refused", 1).with_journals(2, "4MiB");
    let made = site.shell("pragma journal_mode=wal;\ncreate table t(n integer primary key, filler);\n");
    assert_eq!(made.code, 0, "{}", made.err);
    let said = [0, 1].map(|number| site.directory.path().join(format!("said-{number}")));
    // SQLite's locks are not fair: a writer that never pauses can keep the other one waiting to its end.
    let mut writers = [0, 1].map(|number| site.patient_writer_to_wal(1 + number, 2, &said[number as usize]));
    wait_until("both have a journal", || {
        site.seats_taken() == 2 && said.iter().all(|said| said_bytes(said) > 40)
    });
    for writer in &mut writers {
        writer.kill().unwrap();
        writer.wait().unwrap();
    }
    let directory = PathBuf::from(format!("{}-netram", site.database().display()));
    let [first, last] = ["seat-0", "seat-1"].map(|seat| directory.join(seat).join("view"));
    let (before, whole) = (fs::read(&first).unwrap(), fs::read(&last).unwrap());
    fs::write(&last, vec![7; whole.len()]).unwrap();
    let refused = finish(&mut site.netram("recover"));
    assert_ne!(refused.code, 0);
    assert!(refused.err.contains("seat-1"), "{}", refused.err);
    assert!(
        fs::read(&first).unwrap() == before,
        "the first began a reign for nothing"
    );
    fs::write(&last, &whole).unwrap();
    let recovered = finish(&mut site.netram("recover"));
    assert_eq!(recovered.code, 0, "{}", recovered.err);
    assert!(said.iter().all(|said| site.check(said) > 10));
}
