//! Database servers, their log on a mount: database, mount and a lender are killed, and every commit that a client was told of is there.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Ran, finish, forks};
use crate::sqlite::last_said;
use crate::{Mounted, cannot_mount, wait_until};

/// A server of one of them.
trait Database {
    /// Where it is.
    fn folder(&self) -> &Path;
    /// The server, in the foreground.
    fn server(&self) -> Command;
    /// A client that does what a file says, and stops where something fails.
    fn client(&self, script: &Path) -> Command;
    /// A client that asks this.
    fn asking(&self, question: &str) -> Command;
    /// Inserts a number with a filler, and says the number.
    fn insertion(&self, number: u64, filler: &str) -> String;
}

/// One that runs.
struct Running {
    database: Box<dyn Database>,
    child: Option<Child>,
}

impl Running {
    fn start(&mut self) {
        let path = self.database.folder().join("log");
        let log = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let mut command = self.database.server();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(crate::common::start(&mut command));
        for _ in 0..1200 {
            if self.ask("select 1").code == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("it did not start: {}", fs::read_to_string(path).unwrap());
    }

    fn ask(&self, question: &str) -> Ran {
        finish(&mut self.database.asking(question))
    }

    /// SIGKILL, to all of its processes.
    fn kill(&mut self) {
        let mut server = self.child.take().expect("it runs");
        let id = server.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        server.kill().unwrap();
        for child in children.split_whitespace() {
            if let Some(pid) = child.parse().ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        server.wait().unwrap();
        let gone = |child: &str| !Path::new(&format!("/proc/{child}")).exists();
        for _ in 0..200 {
            if children.split_whitespace().all(gone) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
    }
}

fn number_of(user: &str) -> Option<u32> {
    let ran = finish(Command::new("id").args(["-u", user]));
    ran.out.trim().parse().ok()
}

fn as_user(user: u32, program: &Path, folder: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args([format!("--reuid={user}"), format!("--regid={user}")])
        .args(["--clear-groups", "--"])
        .arg(program)
        .current_dir(folder);
    command
}

/// A folder of its own, which is the user's like the mount.
fn room_for(name: &str, user: u32, mounted: &Mounted) -> PathBuf {
    let folder = mounted.folder.path().join(name);
    fs::create_dir(&folder).unwrap();
    for path in [mounted.folder.path(), &folder, &mounted.dir()] {
        chown(path, Some(user), Some(user)).unwrap();
    }
    folder
}

fn survives(database: Box<dyn Database>, mounted: &mut Mounted) {
    let mut running = Running {
        database,
        child: None,
    };
    running.start();
    let made = running.ask("create table t(n bigint primary key, filler text)");
    assert_eq!(made.code, 0, "{}", made.err);
    let said = mounted.folder.path().join("said");
    fs::write(&said, "").unwrap();
    let mut last = 0_u64;
    for round in 0..5_u64 {
        let script = running.database.folder().join("script");
        let mut lines = File::create(&script).unwrap();
        for number in last + 1..last + 20_000 {
            let filler = "x".repeat((number % 900) as usize);
            writeln!(lines, "{}", running.database.insertion(number, &filler)).unwrap();
        }
        drop(lines);
        let mut client = {
            let _alone = forks();
            let mut command = running.database.client(&script);
            command
                .stdout(OpenOptions::new().append(true).open(&said).unwrap())
                .stderr(Stdio::null());
            command.spawn().unwrap()
        };
        wait_until("a commit", || {
            last_said(&said) > last || client.try_wait().unwrap().is_some()
        });
        std::thread::sleep(Duration::from_millis(200 + round * 170));
        match round {
            // The database; the mount beneath it; a lender, and then both.
            0 => running.kill(),
            1 => {
                mounted.kill();
                running.kill();
            }
            2 => {
                running.kill();
                mounted.kill();
            }
            _ => {
                mounted.lenders.truncate(2);
                std::thread::sleep(Duration::from_millis(700));
                mounted.kill();
                running.kill();
            }
        }
        client.wait().unwrap();
        if mounted.server.is_none() {
            mounted.mount();
        }
        running.start();
        let there = running.ask("select count(*), coalesce(max(n), 0) from t");
        assert_eq!(there.code, 0, "{}", there.err);
        let numbers: Vec<u64> = { there.out.split(['|', '\t', '\n']) }
            .filter_map(|number| number.trim().parse().ok())
            .collect();
        assert_eq!(numbers[0], numbers[1], "each of them");
        let (there, said) = (numbers[1], last_said(&said));
        assert!(there >= said, "{said} were committed, and {there} are there");
        assert!(there > last, "nothing was committed in round {round}");
        last = there;
    }
}

/// The programs of PostgreSQL, which Debian keeps apart.
fn postgres_programs() -> Option<PathBuf> {
    let mut versions: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|path| path.join("postgres").exists())
        .collect();
    versions.sort();
    versions.pop()
}

struct Postgres {
    programs: PathBuf,
    folder: PathBuf,
    user: u32,
}

impl Postgres {
    fn program(&self, name: &str) -> Command {
        as_user(self.user, &self.programs.join(name), &self.folder)
    }

    fn psql(&self) -> Command {
        let mut command = self.program("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]);
        command.args(["-U", "postgres", "-h"]).arg(&self.folder);
        command
    }
}

impl Database for Postgres {
    fn folder(&self) -> &Path {
        &self.folder
    }

    fn server(&self) -> Command {
        let mut command = self.program("postgres");
        command
            .arg("-D")
            .arg(self.folder.join("data"))
            .arg("-k")
            .arg(&self.folder);
        // Segments are recycled soon.
        for setting in ["listen_addresses=", "min_wal_size=32MB", "max_wal_size=48MB"] {
            command.args(["-c", setting]);
        }
        command
    }

    fn client(&self, script: &Path) -> Command {
        let mut command = self.psql();
        command.arg("-f").arg(script);
        command
    }

    fn asking(&self, question: &str) -> Command {
        let mut command = self.psql();
        command.args(["-c", question]);
        command
    }

    fn insertion(&self, number: u64, filler: &str) -> String {
        format!("insert into t values({number}, '{filler}');\n\\echo {number}")
    }
}

#[test]
fn postgresql_has_every_commit_that_it_acknowledged() {
    if cannot_mount() {
        return;
    }
    let (Some(programs), Some(user)) = (postgres_programs(), number_of("postgres")) else {
        crate::common::skipped("no PostgreSQL here (`apt-get install postgresql`)");
        return;
    };
    let mut mounted = Mounted::new("postgresql", 3, "4MiB");
    let postgres = Postgres {
        programs,
        folder: room_for("postgres", user, &mounted),
        user,
    };
    let mut initdb = postgres.program("initdb");
    initdb.args(["--auth=trust", "--username=postgres", "-D"]);
    let made = finish(
        initdb
            .arg(postgres.folder.join("data"))
            .arg("-X")
            .arg(mounted.dir()),
    );
    assert_eq!(made.code, 0, "{}{}", made.out, made.err);
    survives(Box::new(postgres), &mut mounted);
}

struct Mariadb {
    folder: PathBuf,
    redo: PathBuf,
    user: u32,
}

impl Mariadb {
    fn words(&self, command: &mut Command) {
        let option = |name: &str, path: &Path| format!("--{name}={}", path.display());
        command
            .arg("--no-defaults")
            .arg(option("datadir", &self.folder.join("data")));
        command.arg(option("innodb-log-group-home-dir", &self.redo));
        command.args(["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M"]);
    }

    fn program(&self) -> Command {
        let mut command = as_user(self.user, Path::new("mariadb"), &self.folder);
        let socket = self.folder.join("socket");
        command.args(["--no-defaults", "-N", "-B", "-n", "--user=root"]);
        command.arg(format!("--socket={}", socket.display())).arg("test");
        command
    }
}

impl Database for Mariadb {
    fn folder(&self) -> &Path {
        &self.folder
    }

    fn server(&self) -> Command {
        let mut command = as_user(self.user, Path::new("/usr/sbin/mariadbd"), &self.folder);
        self.words(&mut command);
        command.args([
            "--skip-networking",
            "--skip-grant-tables",
            "--innodb-flush-log-at-trx-commit=1",
        ]);
        let socket = self.folder.join("socket");
        command.arg(format!("--socket={}", socket.display()));
        command.arg(format!("--pid-file={}", self.folder.join("pid").display()));
        command
    }

    fn client(&self, script: &Path) -> Command {
        let mut command = self.program();
        command.stdin(File::open(script).unwrap());
        command
    }

    fn asking(&self, question: &str) -> Command {
        let mut command = self.program();
        command.args(["-e", question]);
        command
    }

    fn insertion(&self, number: u64, filler: &str) -> String {
        format!("insert into t values({number}, '{filler}'); select {number};")
    }
}

#[test]
fn mariadb_has_every_commit_that_it_acknowledged() {
    if cannot_mount() {
        return;
    }
    let (true, Some(user)) = (Path::new("/usr/sbin/mariadbd").exists(), number_of("mysql")) else {
        crate::common::skipped("no MariaDB here (`apt-get install mariadb-server`)");
        return;
    };
    let mut mounted = Mounted::new("mariadb", 3, "4MiB");
    let mariadb = Mariadb {
        folder: room_for("mariadb", user, &mounted),
        redo: mounted.dir(),
        user,
    };
    let mut install = as_user(user, Path::new("mariadb-install-db"), &mariadb.folder);
    mariadb.words(&mut install);
    let made = finish(install.args(["--auth-root-authentication-method=normal"]));
    assert_eq!(made.code, 0, "{}{}", made.out, made.err);
    survives(Box::new(mariadb), &mut mounted);
}
