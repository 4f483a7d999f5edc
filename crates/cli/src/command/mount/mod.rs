//! `netram mount`, `netram unmount`, `netram recover`.

mod volume;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use netram_mount::{MountOptions, MountReport};
use netram_proto::port::Durability;
use netram_store::StoreSettings;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::notify::notify;
use crate::options::{DurationArg, SizeArg, UsageError};
use crate::output;
use crate::settings::{self, LenderArgs, put};

/// Bytes of a new journal: what may be written before the disk has to have it.
const JOURNAL_BYTES_DEFAULT: u64 = 256 << 20;

/// Mount a directory whose synced files are held in other machines' memory
///
/// For any program's log: a write and a sync of a file in DIR wait for the lenders,
/// not for the disk, to which everything goes in the background. The program is not
/// changed, and finds the files that were there before.
///
/// While DIR is mounted its files are beneath it; should everything stop, DIR is
/// empty until `netram mount` or `netram recover` has brought what was acknowledged
/// to them. `netram unmount`, SIGTERM and SIGINT end it, once nobody has a file open
/// there.
///
/// A JOURNAL that there is not yet is made, with what is said of lenders here in its
/// settings file (netram.toml in it), which may be edited.
///
/// On a VOLUME (netram disk create) DIR is the file system that is on it: all of a
/// database, instead of its log. The volume is attached, and what is on it mounted;
/// --format makes a file system on a new one. DIR has to be empty.
///
///   netram mount /var/lib/postgresql/15/main/pg_wal --on /var/lib/netram/wal \
///       --lender tcp://10.0.0.2:7420 --lender tcp://10.0.0.3:7420 --key-file /etc/netram/key
///   netram mount /var/lib/postgresql/15/main/pg_wal --on /var/lib/netram/wal
///   netram mount /srv/db --on /var/lib/netram/db --format ext4      # a volume
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct MountDirectory {
    /// The directory
    dir: PathBuf,
    /// The journal's directory, elsewhere, made unless it is there; or a volume's
    #[arg(long, value_name = "JOURNAL|VOLUME")]
    on: PathBuf,
    /// Make this file system on the volume, on which there is none
    #[arg(long, value_name = "KIND", value_parser = volume::FORMATS)]
    format: Option<String>,
    /// Bytes of a journal that is made: what may be written before the disk has it [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    journal_size: Option<SizeArg>,
    #[command(flatten)]
    lenders: LenderArgs,
    /// What a sync waits for: remote (as many lenders as the rule wants, or the disk), disk or both [default:
    /// remote]
    #[arg(long, value_name = "WHERE", value_parser = ["remote", "disk", "both"])]
    sync: Option<String>,
    /// Everything is brought to the disk once in so long; sooner when the journal is half full [default: 5s]
    #[arg(long, value_name = "TIME")]
    checkpoint: Option<DurationArg>,
    /// Threads that answer the kernel: 1 to 64 [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: Option<u8>,
    /// Let the kernel read files by itself that nobody has open to write. Whoever opens one of them to write
    /// meanwhile cannot map it
    #[arg(long)]
    passthrough: bool,
    /// Go on although acknowledged writes may be missing
    #[arg(long)]
    accept_loss: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    with_parent: bool,
    /// Microseconds added to every sync of the disk, for `netram-lab bench`
    #[arg(long, hide = true, value_name = "N", default_value_t = 0)]
    modelled_sync_us: u32,
}

/// How long lenders may take to become members before it is said that they are none.
const MEMBERS_PATIENCE: Duration = Duration::from_secs(3);
/// The settings file in a journal's directory.
const SETTINGS: &str = "netram.toml";

impl MountDirectory {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.with_parent {
            netram_process::die_with_parent()?;
        }
        if volume::is_volume(&self.on) {
            return self.on_volume();
        }
        if self.format.is_some() {
            let sentence = format!(
                "--format makes a file system on a volume, and {} is none",
                self.on.display()
            );
            return Err(UsageError(sentence).into());
        }
        netram_mount::check(&self.dir, &self.on)?;
        self.make_journal()?;
        let usual = MountOptions::default();
        let options = MountOptions {
            durability: match self.sync.as_deref() {
                Some("disk") => Durability::Disk,
                Some("both") => Durability::Both,
                _ => Durability::Remote,
            },
            checkpoint: self.checkpoint.map_or(usual.checkpoint, |time| time.0),
            threads: self.threads.map_or(usual.threads, usize::from),
            passthrough: self.passthrough,
            accept_loss: self.accept_loss,
            modelled_sync_delay: Duration::from_micros(self.modelled_sync_us.into()),
        };
        // Before anything is mounted: a signal in between must not leave it so.
        let signals = Signals::new([SIGTERM, SIGINT]).context("waiting for signals")?;
        let (mount, report) = netram_mount::Mount::begin(&self.dir, &self.on, options)?;
        print_report(&self.dir, &report, self.json)?;
        notify("READY=1");
        report_waiting(&mount);
        until_unmounted(mount, signals)?;
        Ok(ExitCode::SUCCESS)
    }

    /// All of the directory on a volume.
    fn on_volume(&self) -> Result<ExitCode> {
        let lenders = !self.lenders.table()?.is_empty();
        let journals = [
            ("--lender and what belongs to it", lenders),
            ("--journal-size", self.journal_size.is_some()),
            ("--sync", self.sync.is_some()),
            ("--checkpoint", self.checkpoint.is_some()),
            ("--threads", self.threads.is_some()),
            ("--passthrough", self.passthrough),
            ("--accept-loss", self.accept_loss),
        ];
        if let Some((flag, _)) = journals.into_iter().find(|(_, given)| *given) {
            let sentence = format!(
                "{} is a volume, whose settings are in its netram.toml: {flag} is of a journal",
                self.on.display()
            );
            return Err(UsageError(sentence).into());
        }
        if !rustix::process::geteuid().is_root() {
            anyhow::bail!(
                "mounting a volume needs root: block devices belong to the kernel; run it with sudo"
            );
        }
        let signals = Signals::new([SIGTERM, SIGINT]).context("waiting for signals")?;
        let mounted = volume::VolumeMount::begin(&self.dir, &self.on, self.format.as_deref())?;
        match self.json {
            true => output::json(&json!({ "directory": self.dir, "device": mounted.device() }))?,
            false => output::line(format_args!(
                "mounted {}, {}",
                self.dir.display(),
                mounted.device().display()
            ))?,
        }
        notify("READY=1");
        mounted.wait(signals)?;
        Ok(ExitCode::SUCCESS)
    }

    /// The journal, with its settings, unless it is there.
    fn make_journal(&self) -> Result<()> {
        let what = || format!("making {}", self.on.display());
        let bytes = self.journal_size.map_or(JOURNAL_BYTES_DEFAULT, |size| size.0);
        let (mut settings, file) = (self.lenders.table()?, self.on.join(SETTINGS));
        if !netram_mount::create_journal(&self.on, bytes).with_context(what)? {
            if settings.is_empty() {
                return Ok(());
            }
            let sentence = format!(
                "{} is there, and what it says of lenders is in {}: edit that",
                self.on.display(),
                file.display()
            );
            return Err(UsageError(sentence).into());
        }
        put(&mut settings, "key-file", self.lenders.key()?);
        let read = |path: &Path| {
            StoreSettings::load(path)?
                .journal_config()
                .map(drop)
                .map_err(Into::into)
        };
        settings::write(&file, &settings, read).inspect_err(|_| {
            // Nobody can have written to it yet.
            let _ = std::fs::remove_dir_all(&self.on);
        })
    }
}

fn print_report(dir: &Path, report: &MountReport, json: bool) -> Result<()> {
    let again = &report.recovered;
    report_unrecorded(dir, again);
    if json {
        return output::json(&json!({
            "directory": dir,
            "files": report.nodes,
            "records": again.records,
            "bytes": again.bytes,
            "made": again.created,
            "removed": again.removed,
            "renamed": again.renamed,
            "unrecorded": path_texts(&again.unrecorded),
        }));
    }
    if again.records > 0 {
        output::line(format_args!(
            "{} records were done again, {} in files",
            again.records,
            output::bytes(again.bytes)
        ))?;
    }
    output::line(format_args!(
        "mounted {}, {} files and directories",
        dir.display(),
        report.nodes
    ))
}

/// Unrecorded files that are named; of more only their number is told.
const UNRECORDED_NAMED_MAX: usize = 20;

fn path_texts(paths: &[Vec<u8>]) -> Vec<String> {
    let told = paths.iter().map(|path| path.escape_ascii().to_string());
    told.collect()
}

/// Names files whose bytes only the disk has: they may be older, or fewer, than what was written last.
fn report_unrecorded(dir: &Path, again: &netram_mount::DirectoryRecovery) {
    let files = &again.unrecorded;
    if files.is_empty() {
        return;
    }
    output::remark(format_args!(
        "{} new files were never recorded, and are as the disk has them; look at them:",
        files.len()
    ));
    for path in files.iter().take(UNRECORDED_NAMED_MAX) {
        output::remark(format_args!("  {}/{}", dir.display(), path.escape_ascii()));
    }
    if let Some(more @ 1..) = files.len().checked_sub(UNRECORDED_NAMED_MAX) {
        output::remark(format_args!("  and {more} more"));
    }
}

/// Says why syncs wait for the disk, where there are lenders and none counts: nothing else is to be seen of
/// it, but that it is slow.
fn report_waiting(mount: &netram_mount::Mount) {
    let journal = mount.journal();
    if journal.status().writer.lenders.is_empty() {
        return;
    }
    if let Err(why) = journal.wait_for_members(MEMBERS_PATIENCE) {
        output::remark(format_args!("syncs wait for the disk: {why}"));
    }
}

/// Waits until it is unmounted, by anybody; tries to when a signal says so.
fn until_unmounted(mount: netram_mount::Mount, mut signals: Signals) -> Result<()> {
    let (handle, dir) = (signals.handle(), mount.dir().to_path_buf());
    let waiting = std::thread::Builder::new()
        .name("netram-waiting".to_owned())
        .spawn(move || {
            let ended = mount.wait();
            handle.close();
            ended
        })?;
    for _ in signals.forever() {
        if let Err(error) = netram_mount::unmount(&dir) {
            tracing::warn!(%error, "it stays mounted");
        }
    }
    let ended = waiting.join();
    Ok(ended.map_err(|_| anyhow::anyhow!("waiting for the mount panicked"))??)
}

/// Unmount a directory that `netram mount` has mounted
///
/// Fails, naming who it is, while somebody has a file open there. Afterwards whoever
/// had it mounted brings everything to the disk and gives the directory back, which this
/// waits for.
///
///   netram unmount /var/lib/postgresql/15/main/pg_wal
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct UnmountDirectory {
    /// The directory
    dir: PathBuf,
    /// How long to wait until the directory is given back, as 500ms, 30s or 2m
    #[arg(long, value_name = "TIME", default_value = "60s")]
    patience: DurationArg,
}

impl UnmountDirectory {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if volume::unmount(&self.dir, self.patience.0)? {
            return Ok(ExitCode::SUCCESS);
        }
        let served = netram_mount::unmount(&self.dir)?;
        if !served {
            anyhow::bail!(
                "whoever had {0} mounted is gone; it is unmounted now, and empty until `netram recover {0}` or `netram mount`",
                self.dir.display()
            );
        }
        match netram_mount::is_given_back_within(&self.dir, self.patience.0) {
            true => Ok(ExitCode::SUCCESS),
            false => anyhow::bail!(
                "{0} is unmounted, and its files are not back yet: if no `netram mount` is at work on it, run `netram recover {0}`",
                self.dir.display()
            ),
        }
    }
}

/// Bring a directory's files to what was acknowledged, and give it back
///
/// For a directory that was mounted when everything stopped: the journal, with what its
/// lenders have, is written to the files, and these are where they were before
/// `netram mount`. What cannot be proven complete is refused, with the lenders that
/// are missing. --accept-loss goes on all the same.
///
///   netram recover /var/lib/postgresql/15/main/pg_wal
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RecoverDirectory {
    /// The directory
    dir: PathBuf,
    /// Go on although acknowledged writes may be missing
    #[arg(long)]
    accept_loss: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl RecoverDirectory {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let again = netram_mount::recover(&self.dir, self.accept_loss)?;
        report_unrecorded(&self.dir, &again);
        match self.json {
            true => output::json(&json!({
                "directory": self.dir,
                "records": again.records,
                "bytes": again.bytes,
                "made": again.created,
                "removed": again.removed,
                "renamed": again.renamed,
                "unrecorded": path_texts(&again.unrecorded),
            }))?,
            false => output::line(format_args!(
                "{}: {} records were done again, {} in files",
                self.dir.display(),
                again.records,
                output::bytes(again.bytes)
            ))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
