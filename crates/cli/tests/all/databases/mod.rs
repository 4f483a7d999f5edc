//! Databases as they are, on a mounted directory (`netram mount`) and on a volume (`netram volume attach`,
//! ext4): the database is killed, its client, the process that serves the directory or the device, a lender,
//! and all of them in turn. Every acknowledged commit is there afterwards, and the database's own check finds
//! nothing.
//!
//! `scenario` has a round, `survival` one in which only a mount's server is killed and nobody may notice,
//! `testbed` the storage; the other modules are databases. `NETRAM_KILL_ROUNDS` is
//! the number of rounds of the long tests (1,000); `NETRAM_KILL_SEED` replays their kills, as far as the
//! machine's timing allows.
//!
//! If a database is not installed, or this process may not mount, these tests are skipped with a line that
//! says so.

mod engines;
mod scenario;
mod servers;
mod services;
mod survival;
mod testbed;

/// For each database: every kind of kill once, and the long test, on either ground.
macro_rules! databases {
    ($($name:ident: $make:expr;)*) => { $(
        mod $name {
            use crate::databases::testbed::DatabaseTestbed;
            use crate::databases::{scenario, survival};

            const NAME: &str = stringify!($name);

            #[test]
            fn on_a_mount_keeps_its_commits() {
                scenario::each_kill_once(NAME, DatabaseTestbed::mount(NAME), $make);
            }

            #[test]
            fn on_a_volume_keeps_its_commits() {
                scenario::each_kill_once(NAME, DatabaseTestbed::volume(NAME), $make);
            }

            #[test]
            fn on_a_mount_notices_no_killed_server() {
                survival::no_kill_is_noticed(NAME, DatabaseTestbed::mount(NAME), $make, Some(20));
            }

            #[test]
            #[ignore = "minutes: scripts/soak.sh 3600 survival"]
            fn on_a_mount_notices_no_thousand_killed_servers() {
                survival::no_kill_is_noticed(NAME, DatabaseTestbed::mount(NAME), $make, None);
            }

            #[test]
            #[ignore = "minutes: scripts/soak.sh 3600 databases"]
            fn on_a_mount_loses_nothing_in_a_thousand_kills() {
                scenario::a_thousand_kills(NAME, DatabaseTestbed::mount(NAME), $make);
            }

            #[test]
            #[ignore = "minutes: scripts/soak.sh 3600 databases"]
            fn on_a_volume_loses_nothing_in_a_thousand_kills() {
                scenario::a_thousand_kills(NAME, DatabaseTestbed::volume(NAME), $make);
            }
        }
    )* };
}

databases! {
    lmdb: crate::databases::engines::lmdb;
    berkeley_db: crate::databases::engines::berkeley_db;
    rocksdb: crate::databases::engines::rocksdb;
    sqlite_wal: crate::databases::engines::sqlite_wal;
    sqlite_delete: crate::databases::engines::sqlite_delete;
    postgresql: crate::databases::servers::postgres::make;
    mariadb: crate::databases::servers::mariadb::make;
    redis: crate::databases::services::redis;
    etcd: crate::databases::services::etcd;
    kine: crate::databases::services::kine;
    jetstream: crate::databases::services::jetstream;
}
