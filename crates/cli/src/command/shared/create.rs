//! `netram shared create`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_journal::settings::{JournalSettings, LenderName};
use netram_proto::journal::CommitRule;
use netram_shared::server::{LOG_BYTES_DEFAULT, RegionPlan, RegionStore, Spans};
use serde_json::json;

use crate::command::lender::probe::reasons_to_wait;
use crate::command::rvm::inspection::number;
use crate::options::{LENDERS_VARIABLE, SizeArg, UsageError, named_addresses, security};
use crate::output;
use crate::settings::{owned, put, written};

/// Create a shared region
///
/// The new directory is readable by its owner only: it will have the keys of the nodes' journals.
/// Lenders given here go to nodes.toml in it, which nodes receive and which may be edited. The
/// region's file is sparse and reads as zeros.
///
/// Each byte of a region is under one lock, or under none and then read-only. --span-size divides
/// the region evenly; --spans reads a list with a line for each span: LOCK OFFSET LENGTH, the last
/// two multiples of 8, where # begins a comment.
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
    /// Bytes under each lock: lock 0 covers the first of these spans, lock 1 the second, and so on
    /// [default: one lock for all]
    #[arg(long, value_name = "SIZE", conflicts_with = "spans")]
    span_size: Option<SizeArg>,
    /// File with a list of spans
    #[arg(long, value_name = "FILE")]
    spans: Option<PathBuf>,
    /// Address at which all nodes map the region, so that it may have pointers: 0x500000000000
    /// [default: each node chooses]
    #[arg(long, value_name = "ADDRESS", value_parser = number)]
    address: Option<u64>,
    /// Bytes of the server's log: how much can be committed before the region's file has it
    #[arg(long, value_name = "SIZE", default_value_t = SizeArg(LOG_BYTES_DEFAULT))]
    log_size: SizeArg,
    /// Lender for the nodes' journals, in order of preference; repeat it for several. `auto`: those
    /// that each node finds
    #[arg(long, value_name = "ADDRESS", env = LENDERS_VARIABLE, value_delimiter = ',')]
    lender: Vec<LenderName>,
    /// Number of lenders that hold a copy of a commit; the others are spares [default: 2, or all if
    /// fewer]
    #[arg(long, value_name = "COUNT")]
    members: Option<usize>,
    /// Number of them that must hold a commit before it is durable: all, any, or a number
    /// [default: all]
    #[arg(long, value_name = "RULE")]
    rule: Option<CommitRule>,
    /// File with the cluster key, to ask the lenders whether they can be reached
    /// [default: ~/.config/netram/key if there is one and you are not root, /etc/netram/key]
    #[arg(long, value_name = "FILE", env = "NETRAM_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// Ask the lenders without key and encryption; only for lenders on this machine
    #[arg(long)]
    insecure: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl CreateRegion {
    pub(super) fn run(self) -> Result<ExitCode> {
        let what = || format!("creating {}", self.region.display());
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
        self.remark_waiting();
        Ok(ExitCode::SUCCESS)
    }

    /// Says on standard error why commits of nodes would wait for the disk. Whether lenders are in a node's
    /// power domain only the node can say.
    fn remark_waiting(&self) {
        if self.lender.is_empty() {
            return output::remark(format_args!(
                "no --lender was given: commits wait for the nodes' disks until {} names lenders",
                self.region.join("nodes.toml").display()
            ));
        }
        // With `auto` each node finds its own.
        let Ok((false, lenders)) = named_addresses(&self.lender) else {
            return;
        };
        if let Ok(security) = security(self.key_file.as_ref(), self.insecure) {
            for sentence in reasons_to_wait(&lenders, &security, "commits", None, self.log_size.0) {
                output::remark(sentence);
            }
        }
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

    /// Returns the contents of the nodes' settings file, which were read as a node will.
    fn nodes_settings(&self) -> Result<String> {
        let mut journal = toml::Table::new();
        put(&mut journal, "lenders", written(&self.lender)?);
        let members = self.members.map(i64::try_from).transpose()?;
        put(&mut journal, "members", members);
        put(&mut journal, "rule", self.rule.map(|rule| rule.to_string()));
        let text = toml::to_string(&owned([("journal", journal)]))?;
        JournalSettings::parse(&text, Path::new("nodes.toml"))?;
        Ok(text)
    }
}
