//! The program `netram-lender`: for machines that lend memory and use none.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    netram_cli::main::<netram_cli::LenderProgram>()
}
