//! `netram key add`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_transport::ClusterKey;

use super::clients::{ClientsPath, key_path, limits, with_new_key};
use crate::output;

/// Name a client, with a key of its own and limits
///
/// Adds the client to a file of clients, which lenders and region servers are started with
/// (--clients), and writes its new key to a file. Limits are amounts, or `all`; rights are `yes` or
/// `no`. What is not said has a default: half of the lender, if there are several clients.
///
///   netram key add db1                              # writes db1.key
///   netram key add db1 memory=1GiB connections=64
///   netram key add backup data=2TiB status=no       # may have copies of volumes
///   netram key add fleet --key-file /etc/netram/key # clients that have the cluster key
///
/// Limits: memory, journals, sessions, connections, pages, data. Rights: status, shared.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct AddClient {
    /// The client's name: up to 32 letters, digits, `-`, `_` and `.`
    name: String,
    /// Its limits and rights
    #[arg(value_name = "LIMIT=AMOUNT")]
    limits: Vec<String>,
    #[command(flatten)]
    clients: ClientsPath,
    /// File for the client's new key [default: NAME.key]
    #[arg(long, value_name = "FILE", conflicts_with = "key_file")]
    out: Option<PathBuf>,
    /// Take the key in this file instead of a new one
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

impl AddClient {
    pub(super) fn run(self) -> Result<ExitCode> {
        let limits = limits(&self.limits)?;
        let Some(file) = self.key_file else {
            let out = key_path(self.out, &self.name);
            with_new_key(&out, &self.clients, |file, key| {
                file.add(&self.name, key, &limits)
            })?;
            return Ok(ExitCode::SUCCESS);
        };
        let key = ClusterKey::load(&file).with_context(|| format!("loading {}", file.display()))?;
        self.clients.change(|file| file.add(&self.name, &key, &limits))?;
        output::line(format_args!(
            "client `{}` has the key in {}",
            self.name,
            file.display()
        ))?;
        self.clients.tell()?;
        Ok(ExitCode::SUCCESS)
    }
}
