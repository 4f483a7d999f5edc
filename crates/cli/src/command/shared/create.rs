//! `netram shared create`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_proto::journal::CommitRule;
use netram_shared::server::{LOG_BYTES_DEFAULT, RegionPlan, RegionStore, Spans};
use netram_store::StoreSettings;
use netram_transport::NetAddress;
use serde_json::json;

use crate::command::rvm::inspection::number;
use crate::options::{SizeArg, UsageError};
use crate::output;

/// Make a shared region
///
/// A new directory with a sparse region of zeros, readable by its owner only: it
/// will have the keys of its nodes' journals. What is said of lenders here is
/// what nodes are told (nodes.toml in the directory, which may be edited).
///
/// A list of spans has a line for each: LOCK OFFSET LENGTH, all multiples of 8
/// but for the lock; # begins a remark. Bytes without a lock cannot be written.
///
///   netram shared create /var/lib/netram/plan --size 1GiB --span-size 64KiB \
///       --lender tcp://10.0.0.2:7420 --lender tcp://10.0.0.3:7420
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct CreateRegion {
    /// The new directory
    region: PathBuf,
    /// Bytes of the region, a multiple of 4096
    #[arg(long, value_name = "SIZE")]
    size: SizeArg,
    /// Bytes of each lock's span; the locks are called 0, 1, 2 and so on. Without it, and without a list: one
    /// lock
    #[arg(long, value_name = "SIZE", conflicts_with = "spans")]
    span_size: Option<SizeArg>,
    /// A list of the spans
    #[arg(long, value_name = "FILE")]
    spans: Option<PathBuf>,
    /// The address that all nodes map the region at, for pointers in it: 0x500000000000. Otherwise each where
    /// it likes
    #[arg(long, value_name = "ADDRESS", value_parser = number)]
    address: Option<u64>,
    /// Bytes of the server's log: what may be merged before the region's file has it
    #[arg(long, value_name = "SIZE", default_value_t = SizeArg(LOG_BYTES_DEFAULT))]
    log_size: SizeArg,
    /// A lender that nodes' journals may have; several may be given, in order of preference
    #[arg(long, value_name = "ADDRESS")]
    lender: Vec<NetAddress>,
    /// How many lenders hold a copy of a node's commit; the others are spares
    #[arg(long, value_name = "COUNT")]
    members: Option<usize>,
    /// How many of them must hold a commit: all, any, or a number
    #[arg(long, value_name = "RULE")]
    rule: Option<CommitRule>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl CreateRegion {
    pub(super) fn run(self) -> Result<ExitCode> {
        let what = || format!("making {}", self.region.display());
        let nodes_settings = self.nodes_settings()?;
        let plan = RegionPlan {
            bytes: self.size.0,
            address: self.address.unwrap_or(0),
            spans: self.spans()?,
            log_bytes: self.log_size.0,
            nodes_settings,
        };
        let id = RegionStore::create(&self.region, &plan).with_context(what)?;
        match self.json {
            true => output::json(&json!({
                "region": self.region,
                "id": id.to_string(),
                "bytes": plan.bytes,
                "locks": plan.spans.len(),
            }))?,
            false => output::line(format_args!(
                "region {}, {}, {}",
                self.region.display(),
                output::bytes(plan.bytes),
                output::count(plan.spans.len() as u64, "lock")
            ))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn spans(&self) -> Result<Spans> {
        let spans = match (&self.spans, self.span_size) {
            (Some(path), _) => {
                let text = std::fs::read_to_string(path);
                let text = text.with_context(|| format!("reading {}", path.display()))?;
                return Spans::parse(self.size.0, &text).with_context(|| path.display().to_string());
            }
            (None, Some(span)) => Spans::even(self.size.0, span.0),
            (None, None) => Spans::even(self.size.0, self.size.0),
        };
        Ok(spans.map_err(|error| UsageError(error.to_string()))?)
    }

    /// The contents of the nodes' settings file, which are read as a node will.
    fn nodes_settings(&self) -> Result<String> {
        let mut table = toml::Table::new();
        let lenders: Vec<toml::Value> = self.lender.iter().map(|one| one.to_string().into()).collect();
        if !lenders.is_empty() {
            table.insert("lenders".to_owned(), lenders.into());
        }
        if let Some(members) = self.members {
            table.insert("members".to_owned(), i64::try_from(members)?.into());
        }
        if let Some(rule) = self.rule {
            table.insert("rule".to_owned(), rule.to_string().into());
        }
        let text = toml::to_string(&table)?;
        StoreSettings::parse(&text, Path::new("nodes.toml"))?;
        Ok(text)
    }
}
