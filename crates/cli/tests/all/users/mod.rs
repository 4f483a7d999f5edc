//! What people put on a disk, put on an attached volume whose server is killed in mid-work: file systems with
//! a workload of small synced files, fio, an fsx of our own, stress-ng, PostgreSQL, MariaDB. Each is brought
//! back, and asked by its own tools and by ours whether all that it had acknowledged is there.
//!
//! A test makes lenders (`netram lender serve`), a volume, a device (`netram volume attach`), and a file system on it.
//! `testbed::Site` tells how; the other modules are workloads and what they demand. What a machine lacks is
//! skipped with a line that begins `SKIPPED`.
//!
//! `NETRAM_USERS_SECONDS` is how long each test goes on with its rounds; without it each does a few.
//! `NETRAM_USERS_SEED` replays the moments of the kills, as far as a machine's timing lets itself be
//! replayed. The tests that `make test` leaves out are run by `make users`.

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
