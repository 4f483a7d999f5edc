//! The targets that `netram dashboard` and `netram top` ask.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use netram_discover::ClusterFile;
use netram_discover::cluster_file::CLUSTER_VARIABLE;
use netram_watch::source::{CollectorSettings, PageTarget, ViewCollector};
use netram_watch::view::ClusterView;

use crate::options::{SecurityArgs, lenders_in_environment, named_addresses};

/// The targets that are asked.
#[derive(Debug, Args)]
pub(super) struct WatchArgs {
    /// Page of metrics of a process, whose journals are shown, too: HOST:PORT or unix:/PATH; repeat
    /// it for several
    #[arg(long, value_name = "PAGE")]
    scrape: Vec<PageTarget>,
    /// Cluster file to use in place of the usual one
    #[arg(long, value_name = "FILE", env = CLUSTER_VARIABLE)]
    cluster: Option<PathBuf>,
    #[command(flatten)]
    security: SecurityArgs,
    /// Show the cluster in this file of JSON, and ask nobody
    #[arg(long, value_name = "FILE", hide = true)]
    view: Option<PathBuf>,
}

impl WatchArgs {
    /// Begins to ask.
    pub(super) fn collector(self) -> Result<ViewCollector> {
        if let Some(path) = &self.view {
            let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
            let mut view: ClusterView = serde_json::from_slice(&text)?;
            view.sort();
            return Ok(ViewCollector::fixed(view));
        }
        let security = self.security.security()?;
        let (_, lenders) = named_addresses(&lenders_in_environment()?)?;
        let cluster = self.cluster;
        let read = move || match &cluster {
            Some(path) => ClusterFile::read(path).map_err(|error| error.to_string()),
            None => ClusterFile::load().map_err(|error| error.to_string()),
        };
        // A wrong file is told at once; later it is a remark.
        read().map_err(anyhow::Error::msg)?;
        let settings = CollectorSettings {
            cluster: Box::new(read),
            lenders,
            security,
            pages: self.scrape,
            uses: Box::new(journal_uses),
        };
        ViewCollector::start(settings).context("starting the threads that ask")
    }
}

/// The uses of journals of this machine: directory, kind, and name.
#[cfg(feature = "products")]
fn journal_uses() -> Vec<(String, String, String)> {
    let uses = super::volume::journal_uses()
        .into_iter()
        .chain(super::mount::journal_uses());
    let text = |path: PathBuf| path.display().to_string();
    uses.map(|(journal, kind, name)| (text(journal), kind.to_owned(), text(name)))
        .collect()
}

#[cfg(not(feature = "products"))]
fn journal_uses() -> Vec<(String, String, String)> {
    Vec::new()
}
