//! `netram run`.

mod lenders;
mod program;
mod return_deposits;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::Args;
use netram_far::run::{
    LIBRARY, LIBRARY_VARIABLE, PRELOAD, RunReport, RunSettings, SETTINGS, SIZE_DEFAULT, THRESHOLD_DEFAULT,
};
use netram_far::{Arena, ArenaError, process_limits};
use netram_transport::NetAddress;
pub(super) use return_deposits::ReturnDeposits;

use crate::options::{SecurityArgs, SizeArg, UsageError};

/// What is smaller is too much work a byte.
const THRESHOLD_MIN: u64 = 1024;

/// Run a program whose heap is larger than what it may have of this machine's memory
///
/// The program is run as it is. Its large allocations (malloc and its like, and
/// anonymous mmap) lie in far memory: what it uses often stays here, up to --local,
/// and the rest goes sealed to lenders, to two of them if there are as many. Small
/// allocations, stacks and files are not touched, and not counted.
///
/// It is refused before it starts, with the reason, if it is linked statically, is a
/// script, gets rights by its file, if no lender answers, or if this process may not
/// use userfaultfd. Programs that it starts are run as ever. A child of fork that goes
/// on as the same program has a copy of its far memory, in this machine's memory and
/// not capped; where there is no room for one it ends with a sentence at its first use.
/// A page whose last copy is lost is a bus error, never zeros.
///
///   netram run --local 512MiB --lenders tcp://10.0.0.2:7420,tcp://10.0.0.3:7420 \
///       --key-file /etc/netram/key -- python3 job.py
///   netram run --local 64MiB --lenders unix:/run/netram.sock --insecure \
///       --report=run.json -- ./prog 1000
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RunProgram {
    /// How much of its far memory may be here at a time; 256KiB at least
    #[arg(long, value_name = "SIZE")]
    local: SizeArg,
    /// The lenders: tcp://host:port or unix:/path, with commas between them
    #[arg(
        long,
        required_unless_present = "spill",
        value_name = "ADDR",
        env = "NETRAM_LENDERS",
        value_delimiter = ','
    )]
    lenders: Vec<NetAddress>,
    #[command(flatten)]
    security: SecurityArgs,
    /// In how many places a page is to be: 1 or 2
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    copies: u8,
    /// A directory on a local disk for a file without a name: the second copy where there is one lender, the
    /// only one where there is none
    #[arg(long, value_name = "DIR")]
    spill: Option<PathBuf>,
    /// The most bytes of that file; without this, what the disk has
    #[arg(long, value_name = "SIZE", requires = "spill")]
    spill_size: Option<SizeArg>,
    /// How much of --local pages may have that stay here compressed; without this, a quarter
    #[arg(long, value_name = "SIZE")]
    packed: Option<SizeArg>,
    /// Let pages come only when the program waits for them: none ahead, where its faults tell which is next
    #[arg(long)]
    no_look_ahead: bool,
    /// The most far memory that the program may have
    #[arg(long, value_name = "SIZE", default_value_t = SizeArg(SIZE_DEFAULT))]
    size: SizeArg,
    /// The least that an allocation must have to lie there; 1KiB at least
    #[arg(long, value_name = "SIZE", default_value_t = SizeArg(THRESHOLD_DEFAULT))]
    threshold: SizeArg,
    /// Programs that it starts are run so as well, each with as much of its own
    #[arg(long)]
    children: bool,
    /// At its end, write what was moved to FILE as JSON; without FILE, a line on standard error
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    report: Option<Option<PathBuf>>,
    /// The program, and its words
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
            // Who has none says nothing of how links are protected.
            self.security.security()?;
        }
        let settings = self.settings()?;
        let config = settings.arena().context("the cluster key")?;
        process_limits::check(&settings)?;
        Arena::check(&config).map_err(explain)?;
        lenders::wait_for_deposits(config.remote_pages)?;
        let mut command = Command::new(&program);
        command
            .args(&self.words[1..])
            // As the shell would call it: some programs do what their name says.
            .arg0(&self.words[0])
            .env(SETTINGS, settings.to_string())
            .env(PRELOAD, preload(&library)?);
        let failed = command.exec();
        Err(failed).with_context(|| format!("running {}", program.display()))
    }

    fn settings(&self) -> Result<RunSettings> {
        let absolute = |path: &PathBuf| {
            let what = || format!("finding {}", path.display());
            let path = std::path::absolute(path).with_context(what)?;
            if path.to_str().is_none_or(|text| text.contains('\n')) {
                bail!("{} has letters that cannot be passed on", path.display());
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
            lenders: self.lenders.clone(),
            key_file: self.security.key_file.as_ref().map(absolute).transpose()?,
            copies: usize::from(self.copies),
            spill: self.spill.as_ref().map(absolute).transpose()?,
            spill_bytes: self.spill_size.map_or(u64::MAX, |size| size.0),
            packed_bytes: self.packed.map(|size| size.0),
            look_ahead: !self.no_look_ahead,
            children: self.children,
            report,
        })
    }
}

/// The library first, and then those that the user has named.
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

/// What an operator has to do, and not what a programmer has.
fn explain(error: ArenaError) -> anyhow::Error {
    match error {
        ArenaError::Refused { source } => anyhow::anyhow!(
            "this user may not have page faults served ({source}). As root, one of: \
             `sysctl vm.unprivileged_userfaultfd=1`, or `chmod 666 /dev/userfaultfd`; in a container the seccomp profile must allow userfaultfd"
        ),
        ArenaError::BadConfig { what, must } => UsageError(format!("{what} must be {must}")).into(),
        other => other.into(),
    }
}
