//! Common software on an attached volume whose server is killed while it works: file systems with a workload
//! of small synced files, fio, an own fsx, stress-ng, PostgreSQL, MariaDB. After recovery, their own tools
//! and ours check that everything acknowledged is there.
//!
//! A test makes lenders (`netram lender serve`), a volume, a device (`netram volume attach`), and a file
//! system on it, with `testbed`; the other modules are workloads and their checks. If the machine lacks
//! something, the test is skipped with a line that begins with `SKIPPED`.
//!
//! `NETRAM_USERS_SECONDS` is the time for which each test repeats its rounds; without it each does a few.
//! `NETRAM_USERS_SEED` replays the moments of the kills, as far as the machine's timing allows. The tests
//! that `make test` leaves out are run by `make users`.

pub(crate) mod file_system;
mod files;
mod fio;
mod fsx;
mod mariadb;
mod operated;
mod postgres;
pub(crate) mod process;
mod rounds;
mod stress;
pub(crate) mod testbed;
