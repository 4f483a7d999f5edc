//! `netram mount attach`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use netram_journal::JournalStatus;
use netram_journal::settings::JournalSettings;
use netram_mount::{CheckpointError, MountReport, MountWatch};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::record::{self, MountRecord};
use super::server::{JsonPath, MountServerPart};
use super::supervisor::{MountSupervisor, ReplacementRule};
use super::table::resolved;
use super::{path_texts, report_unrecorded, volume};
use crate::background::{self, SELF};
use crate::notify::{LoopPulse, ServiceLook, ServiceNotifier, StopPatience, commit_state};
use crate::options::{DurationArg, SizeArg, UsageError};
use crate::output;
use crate::settings::{self, LenderArgs, owned, put};
use crate::ups::UpsArgs;

/// Default bytes of a new journal.
const JOURNAL_BYTES_DEFAULT: u64 = 256 << 20;

/// Mount a directory on a journal: synced writes there wait for lenders instead of the disk
///
/// Stop the program that uses DIR before, and start it afterwards: it finds its files as they
/// were. JOURNAL is created if it does not exist; the lenders given here are then written to its
/// settings file (netram.toml in it), which may be edited. Everything goes to the disk in the
/// background.
///
/// Stays in the foreground until `netram mount detach`, SIGTERM or SIGINT, and ends once no
/// program has a file open there. With --background it returns as soon as DIR is mounted, or
/// fails and says why.
///
///   netram mount attach /var/lib/postgresql/15/main/pg_wal --on /var/lib/netram/wal --background \
///       --lender tcp://10.0.0.2:7420 --lender tcp://10.0.0.3:7420
///   netram mount attach /var/lib/postgresql/15/main/pg_wal --on /var/lib/netram/wal --background
///
/// If the machine stops meanwhile, DIR is empty until the same command, or `netram mount
/// recover`, has brought everything acknowledged to it.
///
/// On a VOLUME (made by `netram volume create`) DIR is the file system on it, as for a whole
/// database: the volume is attached and mounted on DIR, which must be empty. Needs root.
///
///   netram mount attach /srv/db --on /var/lib/netram/db --format ext4 --background
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct AttachDirectory {
    /// The directory
    dir: PathBuf,
    /// The journal's directory, outside DIR, which is created if missing; or a volume's directory
    #[arg(long, value_name = "JOURNAL|VOLUME")]
    on: PathBuf,
    /// Return when it is mounted, and go on in the background
    #[arg(long)]
    background: bool,
    /// Make this file system on a volume that has none
    #[arg(long, value_name = "KIND", value_parser = volume::FORMATS)]
    format: Option<String>,
    /// Bytes of a new journal: how much can be written before the disk has it [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    journal_size: Option<SizeArg>,
    #[command(flatten)]
    lenders: LenderArgs,
    #[command(flatten)]
    ups: UpsArgs,
    /// Copies that a sync waits for: remote (lenders as --rule says, or the disk if too few count),
    /// disk, or both [default: remote]
    #[arg(long, value_name = "WHERE", value_parser = ["remote", "disk", "both"])]
    sync: Option<String>,
    /// Interval at which everything is brought to the disk; sooner if the journal is half full
    /// [default: 5s]
    #[arg(long, value_name = "TIME")]
    checkpoint: Option<DurationArg>,
    /// Threads that answer the kernel, 1 to 64 [default: 4]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: Option<u8>,
    /// Let the kernel read files itself that no program has open for writing, which is faster. A
    /// program that then opens such a file for writing cannot map it into memory. Implies
    /// --restarts 0: another process could not go on with such files
    #[arg(long)]
    passthrough: bool,
    /// Get the kernel's requests by io_uring, for several programs or threads that sync at once (Linux 6.14;
    /// root allows it by `echo Y > /sys/module/fuse/parameters/enable_uring`). --threads counts each core's.
    /// Implies --restarts 0
    #[arg(long)]
    io_uring: bool,
    /// How many times a serving process that died is replaced within ten minutes, while programs
    /// wait (Linux 6.9); then they get errors. 0: this process serves by itself [default: 8]
    #[arg(long, value_name = "COUNT")]
    restarts: Option<u8>,
    /// How long the serving process may make no progress before it is killed and replaced; 0s: for
    /// ever. Waiting for its disk or for lenders does not count [default: 30s]
    #[arg(long, value_name = "TIME")]
    hung_after: Option<DurationArg>,
    /// For tests that kill servers: replace each at once, however many there were
    #[arg(long, hide = true)]
    restart_at_once: bool,
    /// Go on even if acknowledged writes may be missing
    #[arg(long)]
    accept_loss: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Be the process in the background
    #[arg(long, hide = true, conflicts_with = "background")]
    detached: bool,
    /// End when the process that started this one ends
    #[arg(long, hide = true)]
    with_parent: bool,
    /// Microseconds added to every sync of the disk, for `netram-lab bench`
    #[arg(long, hide = true, value_name = "N", default_value_t = 0)]
    modelled_sync_us: u32,
}

/// How long lenders may take to join before it is reported that syncs wait for the disk.
const MEMBERS_PATIENCE: Duration = Duration::from_secs(3);
/// How long a server without supervisor may take to give its directory back.
const END_PATIENCE: Duration = Duration::from_secs(60);
/// Sentence of a mount that ends.
pub(super) const STOPPING: &str = "everything goes to the disk, then the directory is as it was";
/// Number of restarts within ten minutes, unless another is asked for.
const RESTARTS_DEFAULT: u8 = 8;
/// Silence after which a server counts as hung, unless another is asked for.
const HUNG_AFTER_DEFAULT: Duration = Duration::from_secs(30);
/// Name of the settings file in a journal's directory.
const SETTINGS: &str = "netram.toml";

impl AttachDirectory {
    pub(super) fn run(self) -> Result<ExitCode> {
        if self.with_parent {
            netram_process::die_with_parent()?;
        }
        if self.background {
            return self.start();
        }
        if self.detached {
            rustix::process::setsid().context("leaving the terminal")?;
        }
        // A directory whose server was killed cannot be accessed, and the mount table has absolute paths.
        let absolute = std::path::absolute(&self.dir)?;
        if !self.dir.exists() && !netram_mount::is_mounted(&absolute) {
            let dir = self.dir.display();
            bail!("there is no directory {dir}; make it: mkdir -p {dir}");
        }
        if volume::is_volume(&self.on) {
            return self.on_volume();
        }
        netram_process::hide_memory().context("leaving the process out of core dumps")?;
        if self.format.is_some() {
            let sentence = format!(
                "--format makes a file system on a volume, and {} is not one",
                self.on.display()
            );
            return Err(UsageError(sentence).into());
        }
        let restarts = self.restarts()?;
        netram_mount::check(&self.dir, &self.on)?;
        let ups = self.ups.source()?;
        self.make_journal()?;
        let rule = ReplacementRule {
            restarts,
            hung_after: Some(self.hung_after.map_or(HUNG_AFTER_DEFAULT, |time| time.0))
                .filter(|time| !time.is_zero()),
            at_once: self.restart_at_once,
        };
        self.end_unsupervised()?;
        if rule.restarts > 0 {
            return MountSupervisor::begin(self.part(true)?, rule, self.detached)?.run();
        }
        // Before anything is mounted: a signal in between must not leave it mounted.
        let signals = Signals::new([SIGTERM, SIGINT]).context("waiting for signals")?;
        let options = self.part(false)?.options();
        let (mount, report) = netram_mount::Mount::begin(&self.dir, &self.on, options)?;
        if let Some(ups) = &ups {
            mount.journal().watch_ups(ups).context("watching the UPS")?;
        }
        let record = MountRecord::keep(&self.dir, &self.on);
        for line in report_lines(&self.dir, &report, self.json)? {
            output::line(line)?;
        }
        let watched = mount.watched();
        let notifier = ServiceNotifier::ready(move || look(&watched));
        report_waiting(&mount);
        self.say_ready()?;
        let ended = until_unmounted(mount, &notifier, signals);
        drop(record);
        ended?;
        Ok(ExitCode::SUCCESS)
    }

    /// How often a server is replaced.
    fn restarts(&self) -> Result<u8> {
        let (flag, why) = match (self.io_uring, self.passthrough) {
            (false, false) => return Ok(self.restarts.unwrap_or(RESTARTS_DEFAULT)),
            (true, _) => (
                "--io-uring",
                "the kernel sends what it sent by io_uring to no other process",
            ),
            (false, true) => (
                "--passthrough",
                "a file that the kernel reads itself is lost with the process that serves it",
            ),
        };
        match self.restarts {
            None | Some(0) => Ok(0),
            Some(_) => Err(UsageError(format!("{why}: leave out {flag} or --restarts")).into()),
        }
    }

    /// Unmounts the directory if a server goes on there whose supervisor was killed.
    fn end_unsupervised(&self) -> Result<()> {
        let dir = resolved(&self.dir)?;
        if !netram_mount::is_mounted(&dir) || !MountRecord::is_left(&dir) {
            return Ok(());
        }
        let what = || {
            format!(
                "{} is still served, by a process whose supervisor was killed",
                dir.display()
            )
        };
        if netram_mount::unmount(&dir).with_context(what)? {
            output::remark(format_args!("{}; it is ended", what()));
            netram_mount::is_given_back_within(&dir, END_PATIENCE);
        }
        Ok(())
    }

    /// Returns what the server is to serve. `survive`: another may take its place.
    fn part(&self, survive: bool) -> Result<MountServerPart> {
        Ok(MountServerPart {
            serve_mount: JsonPath::of(&std::path::absolute(&self.dir)?),
            named: Some(JsonPath::of(&self.dir)),
            journal: JsonPath::of(&std::path::absolute(&self.on)?),
            sync: self.sync.clone(),
            checkpoint: self.checkpoint.map(|time| time.0),
            threads: self.threads,
            passthrough: self.passthrough,
            io_uring: self.io_uring,
            accept_loss: self.accept_loss,
            modelled_sync_us: self.modelled_sync_us,
            ups: self.ups.clone(),
            json: self.json,
            with_parent: self.with_parent,
            survive,
            restarts: 0,
        })
    }

    /// Starts this command again in the background, and waits until it has mounted the directory.
    fn start(&self) -> Result<ExitCode> {
        let arguments = std::env::args_os()
            .skip(1)
            .map(|argument| match argument == "--background" {
                true => "--detached".into(),
                false => argument,
            });
        let mut command = Command::new(SELF);
        command.args(arguments);
        for line in background::start(command, &record::log_file(&self.dir)?)? {
            output::line(line)?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Says that the directory is mounted, if this is the process in the background.
    fn say_ready(&self) -> Result<()> {
        match self.detached {
            true => background::ready(),
            false => Ok(()),
        }
    }

    /// Mounts a volume's file system on the directory.
    fn on_volume(&self) -> Result<ExitCode> {
        let lenders = !self.lenders.typed_table()?.is_empty();
        let journals = [
            ("--lender", lenders),
            ("--journal-size", self.journal_size.is_some()),
            ("--sync", self.sync.is_some()),
            ("--checkpoint", self.checkpoint.is_some()),
            ("--threads", self.threads.is_some()),
            ("--passthrough", self.passthrough),
            ("--io-uring", self.io_uring),
            ("--restarts", self.restarts.is_some()),
            ("--hung-after", self.hung_after.is_some()),
            ("--accept-loss", self.accept_loss),
        ];
        if let Some((flag, _)) = journals.into_iter().find(|(_, given)| *given) {
            let sentence = format!(
                "{} is a volume, whose settings are in its netram.toml: {flag} is for journals",
                self.on.display()
            );
            return Err(UsageError(sentence).into());
        }
        if !rustix::process::geteuid().is_root() {
            bail!("mounting a volume needs root, because it makes a block device; run it with sudo");
        }
        let signals = Signals::new([SIGTERM, SIGINT]).context("waiting for signals")?;
        let mounted = volume::VolumeMount::begin(&self.dir, &self.on, self.format.as_deref(), &self.ups)?;
        match self.json {
            true => output::json(&json!({ "directory": self.dir, "device": mounted.device() }))?,
            false => output::line(format_args!(
                "mounted {}, {}",
                self.dir.display(),
                mounted.device().display()
            ))?,
        }
        let pulse = Arc::new(LoopPulse::default());
        let notifier = ServiceNotifier::ready(pulse.look());
        self.say_ready()?;
        mounted.wait(signals, &pulse, &notifier)?;
        Ok(ExitCode::SUCCESS)
    }

    /// Creates the journal with its settings, unless it exists.
    fn make_journal(&self) -> Result<()> {
        let what = || format!("creating {}", self.on.display());
        let bytes = self.journal_size.map_or(JOURNAL_BYTES_DEFAULT, |size| size.0);
        let (mut settings, file) = (self.lenders.table()?, self.on.join(SETTINGS));
        if !netram_mount::create_journal(&self.on, bytes).with_context(what)? {
            return self.check_settings(&file);
        }
        put(&mut settings, "key-file", self.lenders.key()?);
        let read = |path: &Path| {
            JournalSettings::load(path)?
                .journal_config()
                .map(drop)
                .map_err(Into::into)
        };
        settings::write(&file, &owned([("journal", settings)]), read).inspect_err(|_| {
            // Nothing can have been written to it yet.
            let _ = std::fs::remove_dir_all(&self.on);
        })
    }

    /// Refuses lenders that an existing journal's settings file does not name: it would not be clear which
    /// are meant.
    fn check_settings(&self, file: &Path) -> Result<()> {
        let typed = self.lenders.typed_table()?;
        let there: toml::Table = match std::fs::read_to_string(file) {
            Ok(text) => toml::from_str(&text).with_context(|| file.display().to_string())?,
            Err(_) => toml::Table::new(),
        };
        let there = match there.get("journal") {
            Some(toml::Value::Table(journal)) => journal.clone(),
            _ => toml::Table::new(),
        };
        if typed.iter().all(|(key, value)| there.get(key) == Some(value)) {
            return Ok(());
        }
        let lenders: Vec<&str> = match there.get("lenders") {
            Some(toml::Value::Array(all)) => all.iter().filter_map(toml::Value::as_str).collect(),
            Some(toml::Value::String(auto)) => vec![auto],
            _ => Vec::new(),
        };
        let lenders = match lenders.is_empty() {
            true => "no lenders".to_owned(),
            false => format!("the lenders {}", lenders.join(", ")),
        };
        let sentence = format!(
            "the journal {} exists, with {lenders}, and other settings than these: leave out --lender and what belongs to it, \
             or edit {}",
            self.on.display(),
            file.display()
        );
        Err(UsageError(sentence).into())
    }
}

/// Returns the lines of a mount's report, and shows on standard error what needs a look.
pub(super) fn report_lines(dir: &Path, report: &MountReport, json: bool) -> Result<Vec<String>> {
    let again = &report.recovered;
    report_unrecorded(dir, again);
    if json {
        let text = serde_json::to_string_pretty(&json!({
            "directory": dir,
            "files": report.nodes,
            "records": again.records,
            "bytes": again.bytes,
            "made": again.created,
            "removed": again.removed,
            "renamed": again.renamed,
            "unrecorded": path_texts(&again.unrecorded),
        }))?;
        return Ok(text.lines().map(str::to_owned).collect());
    }
    let mut lines = Vec::new();
    if again.records > 0 {
        lines.push(format!(
            "{} recovered, {} in files",
            output::count(again.records, "record"),
            output::bytes(again.bytes)
        ));
    }
    lines.push(format!(
        "mounted {}, {}",
        dir.display(),
        output::counted(report.nodes as u64, "file or directory", "files and directories")
    ));
    Ok(lines)
}

/// Says why syncs wait for the disk if lenders do not count: otherwise only the slowness would show it.
pub(super) fn report_waiting(mount: &netram_mount::Mount) {
    let journal = mount.journal();
    if journal.status().writer.lenders.is_empty() {
        return;
    }
    if let Err(why) = journal.wait_for_members(MEMBERS_PATIENCE) {
        output::remark(format_args!("syncs wait for the disk: {why}"));
    }
}

/// Returns whether a sync could get the journal's lock, and what it waits for.
fn look(watched: &MountWatch) -> ServiceLook {
    let found = watched.look();
    ServiceLook {
        alive: found.is_some(),
        sentence: found.map(|(failure, journal)| state_sentence(failure, &journal)),
    }
}

/// Returns what a sync waits for.
pub(super) fn state_sentence(failure: Option<CheckpointError>, journal: &JournalStatus) -> String {
    match failure {
        Some(error) => format!("no change is accepted: {error}"),
        None => commit_state(journal),
    }
}

/// Waits until the directory is unmounted; unmounts it on a signal.
fn until_unmounted(
    mount: netram_mount::Mount,
    notifier: &ServiceNotifier,
    mut signals: Signals,
) -> Result<()> {
    let (handle, dir) = (signals.handle(), mount.dir().to_path_buf());
    let waiting = std::thread::Builder::new()
        .name("netram-wait".to_owned())
        .spawn(move || {
            let ended = mount.wait();
            handle.close();
            ended
        })?;
    for _ in signals.forever() {
        match netram_mount::unmount(&dir) {
            Ok(_) => notifier.stopping(STOPPING, StopPatience::Extend),
            Err(error) => tracing::warn!(%error, "the directory stays mounted"),
        }
    }
    let ended = waiting.join();
    Ok(ended.map_err(|_| anyhow::anyhow!("waiting for the mount panicked"))??)
}
