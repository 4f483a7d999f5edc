//! A bank whose balances survive the program: each run adds 100 to an account, in a transaction.
//!
//! `netram play -- cargo run -p netram --example bank`: lenders and key come from NETRAM_LENDERS and
//! NETRAM_KEY_FILE.
#![allow(clippy::print_stdout, reason = "a program's output is its product")]

use std::time::Duration;

use netram::rvm::RestoreMode;
use netram::{Durability, Store};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Store::open_or_create("bank.log", 64 << 20)?; // after a crash, this recovers
    store.wait_for_lenders(Duration::from_secs(5))?; // before that, commits wait for the local disk
    let accounts = store.map_or_create("bank.data", 1 << 20)?;

    let mut deposit = store.begin(RestoreMode::Restore);
    let balance: u64 = accounts.get(64)?;
    deposit.set(&accounts, 64, &(balance + 100))?;
    let receipt = deposit.commit(Durability::Remote)?; // one round trip to the lenders

    println!(
        "balance {}; lenders that hold the commit: {}",
        balance + 100,
        receipt.votes.members
    );
    Ok(())
}
