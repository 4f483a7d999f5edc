//! The program `netram`: one program for lenders, clients and whoever looks after them.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    netram_cli::main::<netram_cli::Netram>()
}
