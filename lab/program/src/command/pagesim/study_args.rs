//! Arguments of a study: memory sizes, policies, and costs of the machine's events.

use std::str::FromStr;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use netram_far_machine::paging::{FirstTouch, PolicyKind, Replacement};
use netram_pagesim::costs::{MACHINES, NamedMachine};
use netram_pagesim::settings::{
    StudySettings, StudySettingsError, parse_first_touch, parse_policy, parse_replacement, policy_name,
};
use netram_pagesim::{MachineCosts, mascots96};

use netram_cli::options::{SizeArg, UsageError};

const SOFTWARE: &str = "software-";

/// A policy, and whether software fetches its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PolicyChoice {
    pub(super) kind: PolicyKind,
    pub(super) software: bool,
}

impl PolicyChoice {
    pub(super) fn name(self) -> String {
        let prefix = if self.software { SOFTWARE } else { "" };
        format!("{prefix}{}", policy_name(self.kind))
    }
}

impl FromStr for PolicyChoice {
    type Err = StudySettingsError;

    fn from_str(word: &str) -> Result<PolicyChoice, StudySettingsError> {
        let plain = word.strip_prefix(SOFTWARE);
        let kind = parse_policy(plain.unwrap_or(word))?;
        let software = plain.is_some();
        match (software, kind) {
            (true, PolicyKind::Disk | PolicyKind::RamDisk) => Err(StudySettingsError::Unknown {
                word: word.to_owned(),
                what: "policy",
                known: "disk, ram-disk, remote-main, counters:N, software-counters:N",
            }),
            _ => Ok(PolicyChoice { kind, software }),
        }
    }
}

fn machine(name: &str) -> Result<NamedMachine, String> {
    let found = MACHINES.into_iter().find(|machine| machine.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = MACHINES.iter().map(|machine| machine.name).collect();
        format!("unknown machine `{name}`; known: {}", names.join(", "))
    })
}

fn time(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it as 2500us or 2ms"))
}

fn cycles(text: &str) -> Result<f64, String> {
    let parsed = text.parse::<f64>().ok();
    let sound = parsed.filter(|cycles| cycles.is_finite() && *cycles >= 0.0);
    sound.ok_or_else(|| format!("`{text}` is not a number of cycles"))
}

/// Memory sizes and costs. Defaults are the machine's.
#[derive(Clone, Debug, Args)]
pub(super) struct StudyArgs {
    /// The machine that costs are taken from: mascots96 (the paper's), rdma, tcp, cxl, zram
    ///
    /// mascots96: 25 MB/s network, 5 MB/s disk with 2.5 ms to seek, 110 MHz, pages of 8 KiB.
    /// rdma, tcp, cxl: today's, 3 GHz, pages of 4 KiB, a disk that answers in 80 us; over 100
    /// Gbit/s RDMA (3 us), 10 Gbit/s TCP (25 us), or memory on a CXL switch (250 ns a word).
    /// zram: the same with pages compressed in local memory, whose size there is not counted.
    #[arg(long, value_name = "NAME", default_value = "mascots96", value_parser = machine, verbatim_doc_comment)]
    machine: NamedMachine,
    /// Sizes of local memory, separated by commas; all are studied in the same run
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "8MiB")]
    local: Vec<SizeArg>,
    /// Size of remote memory
    #[arg(long, value_name = "BYTES", default_value = "80MiB")]
    remote: SizeArg,
    /// Size of a page, a power of two [default: the machine's]
    #[arg(long, value_name = "BYTES")]
    page: Option<SizeArg>,
    /// The policies, separated by commas
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "disk,ram-disk,remote-main,counters:64,software-counters:64"
    )]
    policy: Vec<PolicyChoice>,
    /// Page replacement: lru, clock, random, fifo, dueling
    #[arg(long, value_name = "NAME", default_value = "lru", value_parser = parse_replacement)]
    replacement: Replacement,
    /// Source of a page at its first reference: disk (an input file, as in the paper), zeros
    #[arg(long, value_name = "WHERE", default_value = "disk", value_parser = parse_first_touch)]
    first_touch: FirstTouch,
    /// Keep fetched pages in remote memory too, so that unchanged ones need not be sent again
    #[arg(long)]
    keep_copies: bool,
    /// Seed of random replacement
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The processor's clock, in MHz
    #[arg(long, value_name = "MHZ", value_parser = cycles)]
    clock: Option<f64>,
    /// Cycles of a reference to one word of remote memory
    #[arg(long, value_name = "CYCLES", value_parser = cycles)]
    remote_word: Option<f64>,
    /// Cycles of such a reference made by software
    #[arg(long, value_name = "CYCLES", value_parser = cycles)]
    software_word: Option<f64>,
    /// Cycles of the operating system for each time that pages move
    #[arg(long, value_name = "CYCLES", value_parser = cycles)]
    overhead: Option<f64>,
    /// Throughput of the network, in bytes per second
    #[arg(long, value_name = "BYTES")]
    network_rate: Option<SizeArg>,
    /// Time before a page's first byte arrives over the network
    #[arg(long, value_name = "TIME", value_parser = time)]
    network_latency: Option<Duration>,
    /// Throughput of the disk, in bytes per second
    #[arg(long, value_name = "BYTES")]
    disk_rate: Option<SizeArg>,
    /// Time before a page's first byte arrives from the disk
    #[arg(long, value_name = "TIME", value_parser = time)]
    disk_latency: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

impl StudyArgs {
    /// Settings of the study. Policies that differ only in costs are studied separately all the
    /// same, so that rows and tallies correspond.
    pub(super) fn settings(&self) -> Result<StudySettings> {
        let settings = StudySettings {
            page_bytes: self.page_bytes(),
            locals: self.local.iter().map(|size| size.0).collect(),
            remote_bytes: self.remote.0,
            replacement: self.replacement,
            first_touch: self.first_touch,
            keep_copies: self.keep_copies,
            seed: self.seed,
            policies: self.policy.iter().map(|chosen| chosen.kind).collect(),
        };
        settings.check().map_err(|error| UsageError(error.to_string()))?;
        let rates = [self.network_rate, self.disk_rate];
        if rates.iter().flatten().any(|rate| rate.0 == 0) || self.clock == Some(0.0) {
            return Err(
                UsageError("--clock, --network-rate and --disk-rate must be above 0".to_owned()).into(),
            );
        }
        Ok(settings)
    }

    pub(super) fn policies(&self) -> &[PolicyChoice] {
        &self.policy
    }

    fn page_bytes(&self) -> u64 {
        self.page
            .map_or(self.machine.costs.page_bytes as u64, |size| size.0)
    }

    /// Costs of a policy's events.
    pub(super) fn costs(&self, chosen: PolicyChoice) -> MachineCosts {
        let of = &self.machine.costs;
        let remote_word = match chosen.software {
            true => self.software_word.unwrap_or(self.machine.software_word),
            false => self.remote_word.unwrap_or(of.remote_word),
        };
        MachineCosts {
            clock_hz: self.clock.map_or(of.clock_hz, |mhz| mhz * 1e6),
            local_word: of.local_word,
            remote_word,
            overhead: self.overhead.unwrap_or(of.overhead),
            network_rate: self.network_rate.map_or(of.network_rate, |rate| rate.0 as f64),
            network_latency: self
                .network_latency
                .map_or(of.network_latency, |time| time.as_secs_f64()),
            disk_rate: self.disk_rate.map_or(of.disk_rate, |rate| rate.0 as f64),
            disk_latency: self
                .disk_latency
                .map_or(of.disk_latency, |time| time.as_secs_f64()),
            page_bytes: self.page_bytes() as f64,
        }
    }

    /// Whether this is the paper's setup, so that its numbers of references apply.
    pub(super) fn is_mascots96(&self) -> bool {
        self.machine.name == MACHINES[0].name && self.page_bytes() == mascots96::PAGE_BYTES
    }

    /// Description of the machine.
    pub(super) fn what(&self) -> &'static str {
        self.machine.what
    }
}
