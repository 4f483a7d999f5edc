//! Real processes under real faults: a client and its lenders are killed, stopped, cut off and given bad
//! disks. After each fault everything acknowledged is there.
//!
//! A test starts `netram lender serve` processes and a client process (`worker`, this test binary again),
//! causes one fault, and lets a later client process compare what it recovers with what the earlier ones
//! acknowledged. If the machine cannot do something (no root, no loop devices, no strace), it is skipped with
//! a line that begins with `SKIPPED`.
//!
//! `NETRAM_FAULT_SEED` replays the kill points of a run, which every failed test prints;
//! `NETRAM_FAULT_ROUNDS` multiplies how often each fault is tried.

mod bad_files;
mod bad_peers;
mod data_disk;
mod descriptors;
mod drain;
mod elastic;
mod failing_disk;
mod full_disk;
mod gibibyte;
mod grow;
pub(crate) mod harness;
mod kill;
mod multicast;
mod partition;
mod pause;
mod power;
mod pressure;
mod refused;
mod shared_cast;
mod silent;
mod spill;
mod worker;
