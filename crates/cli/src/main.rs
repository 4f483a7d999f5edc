//! The program `netram`: for lenders, clients and their operators.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    netram_cli::main::<netram_cli::Netram>()
}
