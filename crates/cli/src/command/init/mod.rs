//! `netram init`: a cluster on this machine that keeps running, unlike that of `netram play`.

mod hints;
mod lenders;
mod place;
mod service;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use clap::Args;
use netram_transport::Security;
use netram_transport::security::KEY_VARIABLE;
use serde::Serialize;

use self::hints::Hints;
use self::lenders::{LenderState, OwnLender};
use self::place::InitPlace;
use self::service::InitService;
use crate::options::{LENDERS_VARIABLE, SizeArg, UsageError};
use crate::output;

/// Ports of the two lenders.
const PORTS: [u16; 2] = [7420, 7421];
/// Bytes that each lender lends.
const MEMORY: SizeArg = SizeArg(256 << 20);

/// Make a cluster on this machine: a key, two lenders that keep running, a cluster file
///
/// Every command and program of this user finds the lenders with `--lender auto`. What exists is
/// kept: a second `netram init` starts the lenders that do not run, and changes no file.
///
/// As root, where systemd runs, the lenders are the units netram-lender@local-PORT, with their
/// files in /etc/netram. Otherwise they are processes in the background, which a reboot ends;
/// files are in ~/.config/netram, logs in ~/.local/state/netram. NETRAM_KEY_FILE, NETRAM_CLUSTER
/// and NETRAM_STATE_DIR name other places.
///
/// Two lenders on one machine survive the death of a process, not that of the machine: commits
/// count them only with --one-domain. The output says how to add another machine.
///
///   netram init
///   netram init --stop        # ends the lenders; memory that journals need is kept
///   netram init --remove      # ends them, and removes their settings and the cluster file
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct InitCluster {
    /// Bytes that each lender lends [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    memory: Option<SizeArg>,
    /// Ports of the two lenders, on loopback [default: 7420,7421]
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    ports: Option<Vec<u16>>,
    /// Start the lenders as processes in the background, even as root where systemd runs
    #[arg(long)]
    background: bool,
    /// End the lenders
    #[arg(long, conflicts_with_all = ["memory", "ports"])]
    stop: bool,
    /// End the lenders, and remove their settings and the cluster file; the key stays
    #[arg(long, conflicts_with_all = ["memory", "ports", "stop"])]
    remove: bool,
    /// Print JSON: an object with `key`, `cluster`, `lenders`, `made` or `removed`, and `next`
    #[arg(long)]
    json: bool,
}

/// The cluster, for people and programs.
#[derive(Debug, Serialize)]
struct InitReport {
    key: PathBuf,
    cluster: PathBuf,
    /// `systemd` or `background`.
    service: &'static str,
    lenders: Vec<LenderLine>,
    /// Files that this command made.
    made: Vec<PathBuf>,
    /// Files that this command removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    removed: Vec<PathBuf>,
    /// Commands to try.
    next: Vec<String>,
}

#[derive(Debug, Serialize)]
struct LenderLine {
    name: String,
    address: String,
    memory: u64,
    settings: PathBuf,
    /// `started`, `running`, `stopped` or `down`.
    state: &'static str,
}

impl InitCluster {
    pub(super) fn run(self) -> Result<ExitCode> {
        if std::env::var_os(LENDERS_VARIABLE).is_some_and(|named| !named.is_empty()) {
            let sentence = format!(
                "{LENDERS_VARIABLE} is set, and names other lenders for every command here: unset it, or leave the shell of \
                 `netram play`"
            );
            return Err(UsageError(sentence).into());
        }
        let place = InitPlace::usual()?;
        let service = InitService::of(&place, self.background)?;
        let report = match self.stop || self.remove {
            true => self.end(&place, &service)?,
            false => self.begin(place, &service)?,
        };
        match self.json {
            true => output::json(&report)?,
            false => report.print(&service)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Makes what is missing, and starts the lenders that do not run.
    fn begin(&self, place: InitPlace, service: &InitService) -> Result<InitReport> {
        let ports = self.ports()?;
        let existing = place.lenders(service)?;
        if !existing.is_empty() && (self.memory.is_some() || self.ports.is_some()) {
            let sentence = format!(
                "{} has what each lender lends and where it listens: change it there, then `netram init --stop` and `netram init`",
                existing[0].settings.display()
            );
            return Err(UsageError(sentence).into());
        }
        if existing.is_empty() {
            let memory = self.memory.unwrap_or(MEMORY);
            lenders::check_new(&ports, memory.0, service)?;
        }
        let _lock = place.lock()?;
        let mut made = Vec::new();
        // Another run may have been first.
        if place.lenders(service)?.is_empty() {
            made = place.make(service, &ports, self.memory.unwrap_or(MEMORY))?;
        }
        let own = place.lenders(service)?;
        ensure!(
            !own.is_empty(),
            "{} names no lender of this machine",
            place.cluster.display()
        );
        let security = security_of(&place.key)?;
        for lender in &own {
            lender.check_key(&security, &place.key)?;
        }
        let states: Vec<LenderState> = own.iter().map(OwnLender::state).collect();
        for (lender, state) in own.iter().zip(&states) {
            if let LenderState::Taken(why) = state {
                bail!(
                    "lender {} cannot listen at {}: {why}",
                    lender.name,
                    lender.address
                );
            }
        }
        let down = || own.iter().zip(&states).filter(|(_, state)| state.is_down());
        lenders::check_room(down().map(|(lender, _)| lender))?;
        for (lender, _) in down() {
            service.start(lender)?;
        }
        let line = |(lender, state): (&OwnLender, &LenderState)| {
            lender.line(if state.is_down() { "started" } else { "running" })
        };
        let lenders = own.iter().zip(&states).map(line).collect();
        let next = Hints::of(&place).commands;
        Ok(place.report(service, lenders, made, Vec::new(), next))
    }

    /// Ends the lenders; with `--remove` removes their files, too.
    fn end(&self, place: &InitPlace, service: &InitService) -> Result<InitReport> {
        let own = place.lenders(service)?;
        ensure!(
            !own.is_empty(),
            "there is nothing to end: {} names no lender that `netram init` made",
            place.cluster.display()
        );
        let _lock = place.lock()?;
        if self.remove {
            own.iter().try_for_each(OwnLender::check_unneeded)?;
        }
        let mut lines = Vec::new();
        for lender in &own {
            let stopped = service.stop(lender)?;
            lines.push(lender.line(if stopped { "stopped" } else { "down" }));
        }
        let mut removed = Vec::new();
        if self.remove {
            // A client may have come back meanwhile: then the lender has kept the memory.
            own.iter().try_for_each(OwnLender::check_forgotten)?;
            removed = place.remove(&own, service)?;
        }
        Ok(place.report(service, lines, Vec::new(), removed, Vec::new()))
    }

    fn ports(&self) -> Result<[u16; 2]> {
        let ports = self.ports.as_deref().unwrap_or(&PORTS);
        match ports {
            &[a, b] if a != b && a != 0 && b != 0 => Ok([a, b]),
            _ => Err(UsageError("--ports are two different ones, as 7420,7421".to_owned()).into()),
        }
    }
}

impl InitReport {
    fn print(&self, service: &InitService) -> Result<()> {
        for path in &self.made {
            output::line(format_args!("made {}", path.display()))?;
        }
        for path in &self.removed {
            output::line(format_args!("removed {}", path.display()))?;
        }
        for lender in &self.lenders {
            output::line(format_args!(
                "lender {} at {}, {}: {} ({})",
                lender.name,
                lender.address,
                output::bytes(lender.memory),
                lender.state,
                service.log_of(&lender.name)
            ))?;
        }
        if !self.removed.is_empty() {
            output::line(format_args!(
                "the key {} stays: other machines may have it",
                self.key.display()
            ))?;
        }
        if self.next.is_empty() {
            return Ok(());
        }
        output::line("\nTry:\n")?;
        for command in &self.next {
            output::line(format_args!("  {command}"))?;
        }
        output::line(hints::advice(&self.key, &self.cluster, service))
    }
}

/// Returns the protection that lenders with this key file have.
fn security_of(key: &std::path::Path) -> Result<Security> {
    crate::options::security(Some(&key.to_owned()), false).map_err(|error| {
        error.context(format!(
            "the cluster key cannot be used; {KEY_VARIABLE} may name another"
        ))
    })
}
