//! The laboratory as users run it: real processes, real sockets, real disks.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

/// Shared helpers of the tests, with the laboratory's program in place of `netram`.
mod common {
    pub(crate) use netram_testkit::{
        CommandOutput, LenderProcess, finish, forks, lab as netram, library, mounted, ran, run_lab as run,
        skipped, start,
    };
}
mod command_line;
mod databases_compared;
mod demo;
mod failures;
mod far_compared;
mod mounted_oo7;
mod pagesim;
mod paper;
mod paper_lnd;
mod paper_osdi94;
mod peers;
mod rvm_bash;
mod shared_figures;
mod volume_figures;
