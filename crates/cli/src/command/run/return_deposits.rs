//! `netram give-back`: waits for the end of a program under `netram run`, and frees its pages at lenders.

use std::io::{self, Read};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_far::OwnerKey;
use netram_far::run::{RunSettings, SETTINGS};
use netram_transport::owner::SECRET_BYTES;
use zeroize::Zeroizing;

/// Free the pages that a program left at lenders; only `netram run` starts it
///
/// The settings come from the environment, the key of the program's deposits from standard input, which ends
/// with the program.
#[derive(Debug, Args)]
pub struct ReturnDeposits {}

impl ReturnDeposits {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let text = std::env::var(SETTINGS).with_context(|| format!("{SETTINGS}, which `netram run` sets"))?;
        let settings: RunSettings = text.parse()?;
        let mut seed = Zeroizing::new([0; SECRET_BYTES]);
        let mut input = io::stdin().lock();
        input
            .read_exact(&mut seed[..])
            .context("the key of the program's deposits, from `netram run`")?;
        // Only the end comes after it.
        io::copy(&mut input, &mut io::sink())?;
        let config = settings.arena().context("the cluster key")?.remote_pages;
        netram_far::give_back(&config, &OwnerKey::from_seed(&seed));
        Ok(ExitCode::SUCCESS)
    }
}
