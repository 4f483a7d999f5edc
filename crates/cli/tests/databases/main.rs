//! Databases as they are, on a mounted folder (`netram mount`) and on a volume (`netram disk attach`, ext4): the database is killed, its client, whoever serves
//! the folder or the device, a lender, and all of them in turn. Every commit that was acknowledged is there afterwards, and the database's own check finds nothing.
//!
//! `story` tells a round, `ground` what is beneath; the other modules are databases. `NETRAM_KILL_ROUNDS` is how many rounds the long tests make (1,000),
//! `NETRAM_KILL_SEED` replays their kills, as far as a machine's timing lets itself be replayed.
//!
//! Where a database is not here, or this process may not mount, these tests say so and leave.

#[path = "../common/mod.rs"]
mod common;
mod engines;
#[path = "../users/file_system.rs"]
#[allow(dead_code, reason = "its other users need more of it")]
mod file_system;
mod ground;
#[path = "../users/process.rs"]
#[allow(dead_code, reason = "its other users need more of it")]
mod process;
#[path = "../faults/harness/random.rs"]
#[allow(dead_code, reason = "its other users need more of it")]
mod random;
mod servers;
#[path = "../users/site.rs"]
#[allow(dead_code, reason = "its other users need more of it")]
mod site;
mod story;

/// For each database: every kind of kill once, and the long test, on either ground.
macro_rules! databases {
    ($($name:ident: $make:expr;)*) => { $(
        mod $name {
            use crate::ground::Ground;
            use crate::story;

            const NAME: &str = stringify!($name);

            #[test]
            fn on_a_mount_has_what_it_committed() {
                story::each_kill_once(NAME, Ground::mount(NAME), $make);
            }

            #[test]
            fn on_a_volume_has_what_it_committed() {
                story::each_kill_once(NAME, Ground::volume(NAME), $make);
            }

            #[test]
            #[ignore = "minutes: scripts/soak.sh 3600 databases"]
            fn on_a_mount_loses_nothing_in_a_thousand_kills() {
                story::a_thousand_kills(NAME, Ground::mount(NAME), $make);
            }

            #[test]
            #[ignore = "minutes: scripts/soak.sh 3600 databases"]
            fn on_a_volume_loses_nothing_in_a_thousand_kills() {
                story::a_thousand_kills(NAME, Ground::volume(NAME), $make);
            }
        }
    )* };
}

databases! {
    lmdb: crate::engines::lmdb;
    berkeley_db: crate::engines::berkeley_db;
    rocksdb: crate::engines::rocksdb;
    sqlite_wal: crate::engines::sqlite_wal;
    sqlite_delete: crate::engines::sqlite_delete;
    postgresql: crate::servers::postgres::make;
    mariadb: crate::servers::mariadb::make;
}
