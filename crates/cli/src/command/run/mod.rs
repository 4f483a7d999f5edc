//! `netram run`: a program with part of its heap in the memory of lenders.

mod lenders;
mod program;
mod return_deposits;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use lenders::{room, room_for_copies, wait_for_deposits};
use netram_far::run::{
    LIBRARY, LIBRARY_VARIABLE, PRELOAD, RunReport, RunSettings, SETTINGS, SIZE_DEFAULT, THRESHOLD_DEFAULT,
};
use netram_far::{Arena, ArenaError, process_limits};
use netram_journal::settings::LenderName;
use netram_telemetry::{MetricsAddress, MetricsRegistry, MetricsServer};
use netram_transport::NetAddress;
pub(super) use return_deposits::ReturnDeposits;

use crate::command::lender::status::ask_all;
use crate::options::{LENDERS_VARIABLE, SecurityArgs, SizeArg, UsageError, found};
use crate::output;

/// Smallest allocation that may be moved: smaller ones cost too much for each byte.
const THRESHOLD_MIN: u64 = 1024;
/// How long lenders may take to say how much room they have.
const ROOM_TIMEOUT: Duration = Duration::from_secs(2);

/// Run a program whose heap is larger than what it may have of this machine's memory
///
/// Pages of its large allocations (malloc, anonymous mmap) that it uses often stay here, up to
/// --local; the others go to lenders, encrypted, in two copies if there are two lenders. Small
/// allocations, stacks and files stay here and are not counted. The program is not changed.
///
///   netram run --local 512MiB --lender tcp://10.0.0.2:7420 --lender tcp://10.0.0.3:7420 \
///       -- python3 job.py
///   netram run --local 64MiB --lender unix:/run/netram.sock --insecure \
///       --report=run.json -- ./prog 1000
///
/// It is refused, with the reason, if no lender answers, if this user may not use userfaultfd,
/// or if the program is statically linked, a script, or has set-user-id or file capabilities.
/// Programs that it starts run as usual, unless --children is given. A forked child has its own
/// copy of all pages in this machine's memory, beyond --local; if there is no room, it ends with
/// a message. If all copies of a page are lost, the program gets a bus error, never wrong data.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RunProgram {
    /// Most bytes of its large allocations in this machine's memory at a time; at least 256KiB
    #[arg(long, value_name = "SIZE")]
    local: SizeArg,
    /// Lender for the other pages: tcp://HOST:PORT or unix:/PATH; repeat it for several. `auto`:
    /// those that are found
    #[arg(
        long = "lender",
        required_unless_present = "spill",
        value_name = "ADDRESS",
        env = LENDERS_VARIABLE,
        value_delimiter = ','
    )]
    lenders: Vec<LenderName>,
    #[command(flatten)]
    security: SecurityArgs,
    /// Number of copies of a page, at different lenders or in --spill: 1 or 2
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    copies: u8,
    /// Existing directory on a local disk for a temporary file with pages: for the second copy if
    /// there is one lender, for the only one if there is none or none has room
    #[arg(long, value_name = "DIR")]
    spill: Option<PathBuf>,
    /// Most bytes of that file [default: what the disk has]
    #[arg(long, value_name = "SIZE", requires = "spill")]
    spill_size: Option<SizeArg>,
    /// Most bytes of --local for compressed pages [default: a quarter]
    #[arg(long, value_name = "SIZE")]
    packed: Option<SizeArg>,
    /// Do not fetch pages ahead of the program's accesses
    #[arg(long)]
    no_look_ahead: bool,
    /// Most bytes of large allocations that the program may have, here and at lenders
    #[arg(long, value_name = "SIZE", default_value_t = SizeArg(SIZE_DEFAULT))]
    size: SizeArg,
    /// Smallest allocation that counts as large; at least 1KiB
    #[arg(long, value_name = "SIZE", default_value_t = SizeArg(THRESHOLD_DEFAULT))]
    threshold: SizeArg,
    /// Run the programs that it starts in the same way, each with its own --local and --size
    #[arg(long)]
    children: bool,
    /// Serve the program's metrics for Prometheus here while it runs: IP:PORT or unix:/PATH, open to anyone
    /// who reaches it. Of several programs under --children the first has it
    #[arg(long, value_name = "ADDRESS", env = "NETRAM_METRICS")]
    metrics: Option<MetricsAddress>,
    /// At the end, write what was moved to FILE as JSON; without FILE, as a line to standard error
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    report: Option<Option<PathBuf>>,
    /// The program, and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    words: Vec<OsString>,
}

impl RunProgram {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.threshold.0 < THRESHOLD_MIN {
            return Err(UsageError("--threshold must be 1KiB at least".to_owned()).into());
        }
        let program = netram_process::find(Path::new(&self.words[0]))?;
        program::check(&program)?;
        let library = netram_process::library(LIBRARY, LIBRARY_VARIABLE)?;
        if !self.lenders.is_empty() {
            // Without lenders no protection needs to be chosen.
            self.security.security()?;
        }
        let lenders = found(&self.lenders, &self.security)?;
        let settings = self.settings(lenders.clone())?;
        let config = settings.arena().context("the cluster key")?;
        process_limits::check(&settings)?;
        Arena::check(&config).map_err(explain)?;
        if let Some(address) = &self.metrics {
            // The program's own process serves them; a wrong address is refused before it starts.
            drop(MetricsServer::start(address, MetricsRegistry::of_process())?);
        }
        wait_for_deposits(config.remote_pages)?;
        self.remark_room(&lenders)?;
        let mut command = Command::new(&program);
        command
            .args(&self.words[1..])
            // As the shell would call it: some programs act by their name.
            .arg0(&self.words[0])
            .env(SETTINGS, settings.to_string())
            .env(PRELOAD, preload(&library)?);
        let failed = command.exec();
        Err(failed).with_context(|| format!("running {}", program.display()))
    }

    /// Says on standard error how much the program may have, if lenders have less room than it may ask for.
    /// It would stop later, waiting for room.
    fn remark_room(&self, lenders: &[NetAddress]) -> Result<()> {
        if lenders.is_empty() || self.spill.is_some() {
            return Ok(());
        }
        let answers = ask_all(lenders, &self.security.security()?, ROOM_TIMEOUT);
        let reports = answers.iter().filter_map(|answer| answer.report.as_ref());
        let rooms: Vec<u64> = reports.map(room).collect();
        let copies = usize::from(self.copies).min(lenders.len());
        let room = room_for_copies(&rooms, copies);
        // The default of --size is beyond most lenders, and means no particular number.
        let wanted = match self.size.0 {
            SIZE_DEFAULT => self.local.0.saturating_mul(2),
            size => size,
        };
        if room.saturating_add(self.local.0) < wanted {
            output::remark(format_args!(
                "netram run: lenders have room for {} in {}, so this program may have {} of large allocations. With more, it \
                 waits for room: lend more (`netram lender serve --memory`, --deposits), or name a directory with --spill",
                output::bytes(room),
                output::counted(copies as u64, "copy", "copies"),
                output::bytes(room.saturating_add(self.local.0))
            ));
        }
        Ok(())
    }

    fn settings(&self, lenders: Vec<NetAddress>) -> Result<RunSettings> {
        let absolute = |path: &PathBuf| {
            let what = || format!("finding {}", path.display());
            let path = std::path::absolute(path).with_context(what)?;
            if path.to_str().is_none_or(|text| text.contains('\n')) {
                bail!(
                    "{} has characters that cannot be passed on; give it another name",
                    path.display()
                );
            }
            Ok(path)
        };
        let report = match &self.report {
            None => RunReport::None,
            Some(None) => RunReport::Line,
            Some(Some(path)) => RunReport::File(absolute(path)?),
        };
        let netram = std::env::current_exe().context("finding this program's file")?;
        Ok(RunSettings {
            netram: absolute(&netram)?,
            local_bytes: self.local.0,
            size_bytes: self.size.0,
            threshold_bytes: self.threshold.0,
            key_file: self
                .security
                .key_file(!lenders.is_empty())
                .as_ref()
                .map(absolute)
                .transpose()?,
            lenders,
            copies: usize::from(self.copies),
            spill: self.spill.as_ref().map(absolute).transpose()?,
            spill_bytes: self.spill_size.map_or(u64::MAX, |size| size.0),
            packed_bytes: self.packed.map(|size| size.0),
            look_ahead: !self.no_look_ahead,
            children: self.children,
            metrics: self.metrics.clone(),
            report,
        })
    }
}

/// Returns the value for the loader: the library first, then those that the user named.
fn preload(library: &Path) -> Result<OsString> {
    let text = library.to_string_lossy();
    if text.contains([' ', ':']) {
        bail!(
            "the loader takes no library whose path has a space or a colon: {text}; link it to a simpler place and name that in {LIBRARY_VARIABLE}"
        );
    }
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os(PRELOAD).filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    Ok(all)
}

/// Turns an error for programmers into one for operators.
fn explain(error: ArenaError) -> anyhow::Error {
    match error {
        ArenaError::Refused { source } => anyhow::anyhow!(
            "this user may not handle page faults in a program ({source}). As root, one of: \
             `sysctl vm.unprivileged_userfaultfd=1`, or `chmod 666 /dev/userfaultfd`; in a container the seccomp profile must allow userfaultfd"
        ),
        ArenaError::BadConfig { what, must } => UsageError(format!("{what} must be {must}")).into(),
        other => other.into(),
    }
}
