//! MariaDB (InnoDB) on a volume: server and volume are killed while clients transfer money. Then `CHECK
//! TABLE` and `innochecksum` must find nothing, the sums must match, and no acknowledged transaction may be
//! missing.

use std::fmt::Write;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::faults::harness::random::FaultsRandom;
use crate::users::file_system::FileSystem;
use crate::users::process::{PATIENCE, UserProcess, end, until};
use crate::users::rounds::Rounds;
use crate::users::testbed::{UsersTestbed, give_to};

const CLIENTS: u64 = 4;
const ACCOUNTS: u64 = 1000;
const TELLERS: u64 = 10;
/// More than a client gets through before the kill.
const SCRIPT: u64 = 30_000;
/// Pages of InnoDB's doublewrite buffer.
const DOUBLEWRITE: Range<u64> = 64..192;
const ROUND: Duration = Duration::from_millis(2500);

#[test]
#[ignore = "minutes: make users"]
fn mariadb_misses_no_commit_after_it_and_its_volume_were_killed() {
    let test = "mariadb_misses_no_commit_after_it_and_its_volume_were_killed";
    let programs = ["mariadbd", "mariadb-install-db", "mariadb", "innochecksum"];
    let Some(site) = UsersTestbed::new(test, FileSystem::Ext4, &programs) else {
        return;
    };
    let mut rounds = Rounds::new(2);
    let database = Mariadb::make(&site);
    let (mut acked, mut kills) = (0, 0);
    let mut server = database.start();
    database.make_tables();
    while rounds.another() {
        let clients: Vec<Client> = (0..CLIENTS)
            .map(|number| Client::start(&database, kills * CLIENTS + number, rounds.random.next()))
            .collect();
        rounds.let_it_run(ROUND);
        let look = || clients.iter().map(Client::told).collect();
        let before: Vec<u64> = if rounds.random.below(2) == 0 {
            server.kill();
            site.crash_after(look)
        } else {
            let before = site.crash_after(look);
            server.kill();
            before
        };
        let told: Vec<Told> = clients
            .into_iter()
            .zip(before)
            .map(|(client, before)| client.end(before))
            .collect();
        kills += 1;
        site.recover();
        server = database.start();
        told.iter().for_each(|told| database.has(told));
        acked += told.iter().map(|told| told.before).sum::<u64>();
        database.check();
        server.stop(Signal::TERM).unwrap();
        database.check_pages();
        server = database.start();
    }
    server.stop(Signal::TERM).unwrap();
    eprintln!("{} kills, {acked} acknowledged transactions", rounds.done());
    assert!(acked > 0, "no transaction was ever acknowledged");
    site.close();
}

struct Mariadb {
    data: PathBuf,
    beside: PathBuf,
}

impl Mariadb {
    fn make(site: &UsersTestbed) -> Mariadb {
        let (data, beside) = (site.mounted().join("mariadb"), site.path("beside"));
        for directory in [&data, &beside] {
            fs::create_dir(directory).unwrap();
            give_to("mysql", directory);
        }
        let mut install = Command::new("mariadb-install-db");
        install.args(["--no-defaults", "--user=mysql", "--skip-test-db"]);
        install.arg("--auth-root-authentication-method=normal");
        install.arg(format!("--datadir={}", data.display()));
        end(install.env("TMPDIR", &beside), PATIENCE).unwrap();
        Mariadb { data, beside }
    }

    fn socket(&self) -> PathBuf {
        self.beside.join("socket")
    }

    /// Starts the server, and waits until it has recovered.
    fn start(&self) -> UserProcess {
        let log = self.beside.join("log");
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let mut command = Command::new("mariadbd");
        // One that starts removes what another has put into the same one.
        command.env("TMPDIR", &self.beside);
        command.args(["--no-defaults", "--user=mysql", "--skip-networking"]);
        // Small logs, so that checkpoints are part of every run; and every commit durable.
        command.args(["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=8M"]);
        command.args(["--innodb-flush-log-at-trx-commit=1"]);
        for (option, path) in [("datadir", &self.data), ("socket", &self.socket())] {
            command.arg(format!("--{option}={}", path.display()));
        }
        let mut server = UserProcess::start(command.stdout(file.try_clone().unwrap()).stderr(file));
        until("MariaDB answers", || {
            let ended = server.child().try_wait().unwrap();
            assert!(
                ended.is_none(),
                "MariaDB ended: {}",
                fs::read_to_string(&log).unwrap_or_default()
            );
            self.ask("select 1").is_ok()
        });
        server
    }

    fn client(&self) -> Command {
        let mut command = Command::new("mariadb");
        command.args(["--no-defaults", "--user=root", "--batch", "--skip-column-names"]);
        command.arg(format!("--socket={}", self.socket().display()));
        command
    }

    fn ask(&self, query: &str) -> Result<String, String> {
        end(self.client().args(["--execute", query]), PATIENCE)
    }

    fn make_tables(&self) {
        self.ask(&format!(
            "create database bank; use bank;
            create table account (id int primary key, balance bigint not null) engine=innodb;
            create table teller (id int primary key, balance bigint not null) engine=innodb;
            create table history (client int, number int, delta bigint not null, filler char(80) not null,
                primary key (client, number), key (delta)) engine=innodb;
            insert into account select seq, 0 from seq_0_to_{};
            insert into teller select seq, 0 from seq_0_to_{};",
            ACCOUNTS - 1,
            TELLERS - 1
        ))
        .unwrap();
    }

    /// Checks that the database has all transactions of a client up to the last that was acknowledged before
    /// the kill, and at most one more than were ever acknowledged.
    fn has(&self, told: &Told) {
        let client = told.client;
        let query =
            format!("select count(*), coalesce(max(number), 0) from bank.history where client = {client}");
        let said = self.ask(&query).unwrap();
        let found: Vec<u64> = said
            .split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect();
        assert_eq!(found[0], found[1], "client {client} has gaps");
        assert!(
            (told.before..=told.after + 1).contains(&found[1]),
            "{told:?}, and {} are there",
            found[1]
        );
    }

    fn check(&self) {
        let sums = "select (select sum(balance) from bank.account), (select sum(balance) from bank.teller), \
                    (select coalesce(sum(delta), 0) from bank.history)";
        let said = self.ask(sums).unwrap();
        let books: Vec<&str> = said.split_whitespace().collect();
        assert!(
            books.iter().all(|sum| *sum == books[0]),
            "the books differ: {said}"
        );
        let said = self
            .ask("check table bank.account, bank.teller, bank.history extended")
            .unwrap();
        let fine = |line: &str| line.ends_with("\tOK");
        assert!(said.lines().count() == 3 && said.lines().all(fine), "{said}");
    }

    /// The checksum of every page, of a server that has ended in good order. On any disk a killed one leaves
    /// pages that do not check in the system tablespace's doublewrite buffer, which it has read and is done
    /// with.
    fn check_pages(&self) {
        let tables = fs::read_dir(self.data.join("bank")).unwrap().flatten();
        let tables: Vec<PathBuf> = tables
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "ibd"))
            .collect();
        assert_eq!(tables.len(), 3, "{tables:?}");
        let check = |pages: &[String], file: &Path| {
            end(Command::new("innochecksum").args(pages).arg(file), PATIENCE).unwrap();
        };
        tables.iter().for_each(|table| check(&[], table));
        let system = self.data.join("ibdata1");
        check(&[format!("--end-page={}", DOUBLEWRITE.start - 1)], &system);
        check(&[format!("--start-page={}", DOUBLEWRITE.end)], &system);
    }
}

/// A client with a script of transactions; it prints the number of each that was acknowledged.
struct Client {
    number: u64,
    told: PathBuf,
    process: UserProcess,
}

impl Client {
    fn start(database: &Mariadb, number: u64, seed: u64) -> Client {
        let file = |what: &str| database.beside.join(format!("client-{number}.{what}"));
        let (script, told) = (file("sql"), file("told"));
        fs::write(&script, transactions(number, seed)).unwrap();
        let mut command = database.client();
        command.args(["--unbuffered", "--execute"]);
        command.arg(format!("source {}", script.display()));
        command.stdout(File::create(&told).unwrap()).stderr(Stdio::null());
        Client {
            number,
            told,
            process: UserProcess::start(&mut command),
        }
    }

    /// Returns the last transaction that was acknowledged to the client.
    fn told(&self) -> u64 {
        last_line(&self.told)
    }

    /// Waits until the client ends, with its server.
    fn end(mut self, before: u64) -> Told {
        until("a client ends", || {
            self.process.child().try_wait().unwrap().is_some()
        });
        Told {
            client: self.number,
            before,
            after: self.told(),
        }
    }
}

/// The last transactions acknowledged to a client: before the kill, and ever.
#[derive(Debug)]
struct Told {
    client: u64,
    before: u64,
    after: u64,
}

fn transactions(client: u64, seed: u64) -> String {
    let mut random = FaultsRandom(seed);
    let mut text = String::from("use bank;\n");
    for number in 1..=SCRIPT {
        let (account, teller) = (random.below(ACCOUNTS), random.below(TELLERS));
        let delta = random.below(10_000) as i64 - 5_000;
        writeln!(
            text,
            "begin; update account set balance = balance + {delta} where id = {account}; \
             update teller set balance = balance + {delta} where id = {teller}; \
             insert into history values ({client}, {number}, {delta}, repeat('x', 80)); commit; select {number};"
        )
        .expect("a string takes anything");
    }
    text
}

/// The number in the last whole line.
fn last_line(path: &Path) -> u64 {
    let text = fs::read_to_string(path).unwrap();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().last().map_or(0, |line| line.parse().unwrap())
}
