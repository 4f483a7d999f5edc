//! PostgreSQL: its log on a mount, and its data beside it; or all of it on a volume.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{finish, skipped};
use crate::databases::scenario::TestDatabase;
use crate::databases::servers::{DatabaseServer, ServerKind, as_user};
use crate::databases::testbed::DatabaseTestbed;
use crate::users::process::has;

/// Segments are recycled soon, and checkpoints are part of every run.
const SETTINGS: [&str; 5] = [
    "listen_addresses=",
    "min_wal_size=32MB",
    "max_wal_size=48MB",
    "shared_buffers=16MB",
    "restart_after_crash=off",
];

struct Postgres {
    programs: PathBuf,
    data: PathBuf,
    /// Sockets and logs.
    beside: PathBuf,
}

/// The programs of PostgreSQL, which Debian keeps apart.
fn programs() -> Option<PathBuf> {
    let mut versions: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|path| path.join("postgres").exists())
        .collect();
    versions.sort();
    versions.pop()
}

pub(crate) fn make(ground: &DatabaseTestbed) -> Option<Box<dyn TestDatabase>> {
    let (Some(programs), Ok(())) = (programs(), has("setpriv")) else {
        skipped("no PostgreSQL here (`apt-get install postgresql`)");
        return None;
    };
    ground.give_to("postgres");
    let beside = ground.beside();
    let kept = ground.kept();
    let on_volume = !ground.is_mount();
    let postgres = Postgres {
        programs,
        data: if on_volume { &kept } else { &beside }.join("data"),
        beside,
    };
    let mut initdb = postgres.program("initdb");
    initdb.args([
        "--auth=trust",
        "--username=postgres",
        "--locale=C",
        "--data-checksums",
    ]);
    initdb.arg("-D").arg(&postgres.data);
    if !on_volume {
        initdb.arg("-X").arg(&kept);
    }
    let made = finish(&mut initdb);
    assert_eq!(made.code, 0, "{}{}", made.out, made.err);
    let beside = postgres.beside.clone();
    Some(Box::new(DatabaseServer::new(postgres, beside)))
}

impl Postgres {
    fn program(&self, name: &str) -> Command {
        as_user("postgres", &self.programs.join(name), &self.beside)
    }

    fn psql(&self) -> Command {
        let mut command = self.program("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]);
        command.args(["-U", "postgres", "-h"]).arg(&self.beside);
        command
    }
}

impl ServerKind for Postgres {
    fn server(&self) -> Command {
        let mut command = self.program("postgres");
        command.arg("-D").arg(&self.data).arg("-k").arg(&self.beside);
        for setting in SETTINGS {
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

    fn preparation(&self) -> &str {
        "create table t(n int primary key, filler text); create extension amcheck"
    }

    fn insertion(&self, number: u64) -> String {
        format!("insert into t values({number}, repeat('x', {number} % 900));\n\\echo {number}")
    }

    fn sessions(&self) -> &str {
        "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
    }

    fn own_check(&self) -> &str {
        "select bt_index_parent_check('t_pkey', true); select * from verify_heapam('t')"
    }

    fn is_well(&self, line: &str) -> bool {
        // What a function without a result gives is an empty line.
        line.is_empty()
    }
}
