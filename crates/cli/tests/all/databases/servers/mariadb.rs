//! MariaDB (InnoDB): its redo log on a mount, and its data beside it; or all of it on a volume.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{finish, skipped};
use crate::databases::scenario::TestDatabase;
use crate::databases::servers::{DatabaseServer, ServerKind, as_user};
use crate::databases::testbed::DatabaseTestbed;
use crate::users::process::has;

/// Small logs, so that checkpoints are part of every run.
const SETTINGS: [&str; 5] = [
    "--skip-networking",
    "--skip-grant-tables",
    "--innodb-log-file-size=8M",
    "--innodb-buffer-pool-size=32M",
    "--innodb-flush-log-at-trx-commit=1",
];

struct Mariadb {
    data: PathBuf,
    redo: PathBuf,
    /// Sockets and logs.
    beside: PathBuf,
}

pub(crate) fn make(ground: &DatabaseTestbed) -> Option<Box<dyn TestDatabase>> {
    for program in ["mariadbd", "mariadb", "mariadb-install-db", "setpriv"] {
        if let Err(missing) = has(program) {
            skipped(format_args!("{missing} (`apt-get install mariadb-server`)"));
            return None;
        }
    }
    ground.give_to("mysql");
    let (kept, beside) = (ground.kept(), ground.beside());
    let (data, redo) = match ground.is_mount() {
        true => (beside.join("data"), kept),
        false => (kept.join("data"), kept.join("data")),
    };
    let mariadb = Mariadb { data, redo, beside };
    let mut install = as_user("mysql", Path::new("mariadb-install-db"), &mariadb.beside);
    mariadb.files(&mut install);
    let made = finish(install.args(["--auth-root-authentication-method=normal"]));
    assert_eq!(made.code, 0, "{}{}", made.out, made.err);
    let beside = mariadb.beside.clone();
    Some(Box::new(DatabaseServer::new(mariadb, beside)))
}

impl Mariadb {
    /// Where it has what.
    fn files(&self, command: &mut Command) {
        command.arg("--no-defaults");
        for (option, path) in [("datadir", &self.data), ("innodb-log-group-home-dir", &self.redo)] {
            command.arg(format!("--{option}={}", path.display()));
        }
        command.arg("--innodb-log-file-size=8M");
    }

    fn beside(&self, name: &str) -> String {
        self.beside.join(name).display().to_string()
    }

    fn program(&self) -> Command {
        let mut command = as_user("mysql", Path::new("mariadb"), &self.beside);
        command.args(["--no-defaults", "-N", "-B", "-n", "--user=root"]);
        command
            .arg(format!("--socket={}", self.beside("socket")))
            .arg("test");
        command
    }
}

impl ServerKind for Mariadb {
    fn server(&self) -> Command {
        let mut command = as_user("mysql", Path::new("mariadbd"), &self.beside);
        self.files(&mut command);
        command.args(SETTINGS);
        command.arg(format!("--socket={}", self.beside("socket")));
        command.arg(format!("--pid-file={}", self.beside("pid")));
        command
    }

    fn client(&self, script: &Path) -> Command {
        let mut command = self.program();
        command
            .arg("--execute")
            .arg(format!("source {}", script.display()));
        command
    }

    fn asking(&self, question: &str) -> Command {
        let mut command = self.program();
        command.args(["--execute", question]);
        command
    }

    fn preparation(&self) -> &str {
        "create table t(n bigint primary key, filler text) engine=innodb"
    }

    fn insertion(&self, number: u64) -> String {
        format!("insert into t values({number}, repeat('x', {number} % 900)); select {number};")
    }

    fn sessions(&self) -> &str {
        "select count(*) from information_schema.processlist where id <> connection_id() and command <> 'Daemon'"
    }

    fn own_check(&self) -> &str {
        "check table t extended"
    }

    fn is_well(&self, line: &str) -> bool {
        line.ends_with("\tOK")
    }
}
