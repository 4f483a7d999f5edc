//! One stress run: players are killed one after the other over the same directory, and the recovered memory
//! is compared with the model.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use netram_bench::child::PART;
use netram_journal::JournalInspector;
use netram_store::Store;
use tempfile::TempDir;

use super::PlantedHarm;
use super::blocks::decode;
use super::compare;
use super::lenders::StressLenders;
use super::model::{AREAS, SplitMix64, StressPlan, ThreadArea, count_in};
use super::player::{PlayerEnding, PlayerTask, StressPlayer, segment_path};
use super::player_message::{ThreadProgress, read_messages};
use super::process::StressProcess;
use super::report::StressReport;

/// Smallest log in bytes. Each log has one of four sizes, each twice the one before.
pub(super) const LOG_BYTES_MIN: u64 = 128 * 1024;
/// Largest size to which the log grows now and then.
const LOG_BYTES_MAX: u64 = 2 * 1024 * 1024;
/// Interval at which lenders and children are checked.
const TICK: Duration = Duration::from_millis(5);
/// Longest time of a step. Recovery may wait 30 s for lenders that are away; a step that exceeds this hangs.
const PATIENCE: Duration = Duration::from_secs(90);
/// Files to which a judge writes its findings: memory, and the heap's blocks.
const IMAGE: &str = "image";
const BLOCKS: &str = "blocks";
/// Number of events that are kept to explain a violation.
const RECENT_EVENTS_MAX: usize = 200;

/// A test under way.
pub(super) struct StressRun {
    pub(super) directory: TempDir,
    pub(super) program: PathBuf,
    pub(super) plan: StressPlan,
    pub(super) random: SplitMix64,
    pub(super) lenders: StressLenders,
    pub(super) addresses: Vec<String>,
    pub(super) members: usize,
    pub(super) key_file: Option<PathBuf>,
    pub(super) progress: Arc<Mutex<ThreadProgress>>,
    /// The memory at the last comparison.
    pub(super) model: Vec<ThreadArea>,
    pub(super) report: StressReport,
    pub(super) recent_events: VecDeque<String>,
    pub(super) began: Instant,
    pub(super) harm: Option<PlantedHarm>,
}

impl StressRun {
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn seed(&self) -> u64 {
        self.plan.seed
    }

    pub(super) fn report(&self) -> &StressReport {
        &self.report
    }

    /// Keeps the files in place and adds the latest events.
    pub(super) fn keep_files(mut self, violation: &str) -> Result<PathBuf> {
        self.note(format!("VIOLATION: {violation}"));
        let story: Vec<&str> = self.recent_events.iter().map(String::as_str).collect();
        fs::write(self.directory().join("story.txt"), story.join("\n"))?;
        let StressRun {
            directory: place,
            lenders,
            ..
        } = self;
        drop(lenders);
        Ok(place.keep())
    }

    /// Runs a player to some end, now and then another one over the same files, and then compares. An error
    /// is a violation, except after a signal, which children receive too.
    pub(super) fn round(&mut self, left: Option<Duration>) -> Result<()> {
        self.play(left)?;
        while self.random.once_in(4) {
            self.play(left)?;
        }
        if self.random.once_in(5) {
            self.grow()?;
        }
        self.judge()
    }

    /// Replaces the log by a larger file, as an operator would after a crash; the command may be killed.
    fn grow(&mut self) -> Result<()> {
        let log = self.directory().join("log");
        let before = JournalInspector::open(&log)?.capacity();
        if before >= LOG_BYTES_MAX {
            return Ok(());
        }
        let after = before + LOG_BYTES_MIN;
        let span = match self.random.once_in(2) {
            true => Duration::from_millis(self.random.below(60)),
            false => PATIENCE,
        };
        self.note(format!("the log grows to {after} bytes, for at most {span:?}"));
        let log = log.to_str().context("the directory's name is not UTF-8")?;
        let size = after.to_string();
        let arguments = ["rvm", "grow", log, "--size", size.as_str()].map(str::to_owned);
        self.copy_files()?;
        let mut grower = StressProcess::start(&self.program, &arguments, self.directory(), "grower")?;
        let ended = self.pass(&mut grower, span)?;
        grower.kill()?;
        let found = JournalInspector::open(&self.directory().join("log"))?.capacity();
        match ended {
            Some(status) if status.success() && found == after => self.report.grown += 1,
            None if span < PATIENCE && [before, after].contains(&found) => (),
            _ => bail!(
                "growing the log from {before} to {after} bytes ended with {ended:?} and {found} bytes; {}",
                grower.last_messages()
            ),
        }
        Ok(())
    }

    fn play(&mut self, left: Option<Duration>) -> Result<()> {
        let millis = match self.random.below(10) {
            // During recovery, or soon after.
            0 | 1 => self.random.below(60),
            2..=7 => 50 + self.random.below(600),
            _ => 500 + self.random.below(2000),
        };
        let span = Duration::from_millis(millis).min(left.unwrap_or(Duration::MAX));
        let ending = match self.random.below(5) {
            0 => PlayerEnding::Close,
            1 | 2 => PlayerEnding::Crash,
            _ => PlayerEnding::Killed,
        };
        self.note(format!("a player for {span:?}, to end like this: {ending:?}"));
        let mut player = self.start(PlayerTask::Play { span, ending }, "player")?;
        let status = match ending {
            PlayerEnding::Killed => self.pass(&mut player.process, span)?,
            _ => self.pass(&mut player.process, span + PATIENCE)?,
        };
        let by_itself = status.is_some();
        let status = player.process.kill()?;
        let last_words = player.process.last_messages();
        let told = self.finish_child(player)?;
        match (ending, by_itself) {
            (PlayerEnding::Killed, false) => self.report.killed += 1,
            (PlayerEnding::Crash, true) if status.signal() == Some(9) => self.report.crashed += 1,
            (PlayerEnding::Close, true) if status.success() && told.closed => self.report.closed += 1,
            (_, true) => {
                bail!("the player should have ended by {ending:?}, but ended with {status}; {last_words}")
            }
            (_, false) => bail!("the player did not end within {PATIENCE:?}; {last_words}"),
        }
        Ok(())
    }

    /// Recovers, and compares every byte with the model.
    fn judge(&mut self) -> Result<()> {
        if self.random.once_in(4) {
            let span = Duration::from_millis(self.random.below(40));
            self.note(format!("a recovery that is killed after {span:?}"));
            let mut judge = self.start(self.judging(), "judge")?;
            self.pass(&mut judge.process, span)?;
            judge.process.kill()?;
            self.finish_child(judge)?;
            self.report.recoveries_killed += 1;
        }
        let counts = self.compare()?;
        if self.harm == Some(PlantedHarm::Damage) {
            self.do_damage()?;
            self.compare()?;
        }
        if self.harm == Some(PlantedHarm::Loss) {
            let beyond: Vec<u64> = counts.iter().map(|count| count + 2).collect();
            self.lock_progress().raise(&beyond);
            self.compare()?;
        }
        Ok(())
    }

    fn judging(&self) -> PlayerTask {
        PlayerTask::Judge {
            image: self.directory().join(IMAGE),
            blocks: self.directory().join(BLOCKS),
        }
    }

    fn compare(&mut self) -> Result<Vec<u64>> {
        self.note("a recovery that is compared".to_owned());
        let mut judge = self.start(self.judging(), "judge")?;
        let ended = self.pass(&mut judge.process, PATIENCE)?;
        let status = judge.process.kill()?;
        let last_words = judge.process.last_messages();
        let told = self.finish_child(judge)?;
        ensure!(
            ended.is_some(),
            "recovery did not end within {PATIENCE:?}; {last_words}"
        );
        ensure!(
            status.success() && told.closed,
            "recovery ended with {status}; {last_words}"
        );
        let read = |name| fs::read(self.directory().join(name)).context("reading what was recovered");
        let (bytes, blocks) = (read(IMAGE)?, read(BLOCKS)?);
        let blocks = decode(&blocks, self.plan.threads).context("the recovered blocks were cut")?;
        let found = compare::split(&self.plan, &bytes)?;
        let counts: Vec<u64> = found.iter().map(|images| count_in(images[0])).collect();
        for (area, count) in self.model.iter_mut().zip(&counts) {
            area.advance_to(&self.plan, *count);
        }
        compare::with_model("recovered memory", &self.model, &found)?;
        compare::blocks_with_model(&self.model, &blocks)?;
        compare::from_outside(self.directory(), &self.plan, &self.model)?;
        self.lenders.proven();
        self.report.compared += 1;
        Ok(counts)
    }

    /// Changes one byte of a segment's file, without netram's knowledge.
    fn do_damage(&mut self) -> Result<()> {
        use std::os::unix::fs::FileExt;
        let segment = self.random.below(AREAS.len() as u64) as usize;
        let at = self.random.below(self.plan.segment_bytes(segment) as u64);
        let file = fs::File::options()
            .read(true)
            .write(true)
            .open(segment_path(self.directory(), segment))?;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at)?;
        file.write_all_at(&[byte[0] ^ 1], at)?;
        Ok(())
    }

    fn start(&mut self, task: PlayerTask, name: &str) -> Result<ChildListener> {
        self.copy_files()?;
        self.lock_progress().begin();
        let player = StressPlayer {
            plan: self.plan,
            log: self.directory().join("log"),
            directory: self.directory().to_path_buf(),
            lenders: self.addresses.clone(),
            members: self.members,
            key_file: self.key_file.clone(),
            choices: self.random.next(),
            task,
        };
        let arguments = [PART.to_owned(), serde_json::to_string(&player)?];
        let mut process = StressProcess::start(&self.program, &arguments, self.directory(), name)?;
        let (output, told) = (process.output()?, Arc::clone(&self.progress));
        let listener = std::thread::spawn(move || {
            read_messages(output, &mut |said| {
                told.lock().unwrap_or_else(PoisonError::into_inner).take(said);
            });
        });
        Ok(ChildListener { process, listener })
    }

    /// Processes all messages of an ended child; an error that it reported is returned.
    fn finish_child(&mut self, child: ChildListener) -> Result<ThreadProgress> {
        let last_words = child.process.last_messages();
        // The pipe ends with the process.
        child
            .listener
            .join()
            .map_err(|_| anyhow!("the listener panicked"))?;
        let told = self.lock_progress().clone();
        self.report.acknowledged = told.acknowledged;
        self.report.lazy = told.lazy;
        self.report.aborted = told.aborted;
        self.report.openings = told.openings;
        match told.wrong.as_slice() {
            [] => Ok(told),
            wrong if last_words.is_empty() => bail!("{}", wrong.join("; ")),
            wrong => bail!("{}; {last_words}", wrong.join("; ")),
        }
    }

    /// Lets time pass, with the lenders' events, until the child ends or `span` is over.
    fn pass(&mut self, child: &mut StressProcess, span: Duration) -> Result<Option<ExitStatus>> {
        let until = Instant::now() + span;
        loop {
            if let Some(status) = child.ended()? {
                return Ok(Some(status));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(TICK.min(left));
            if let Some(event) = self.lenders.pass(&mut self.random, TICK)? {
                self.note(event);
            }
            (self.report.lenders_killed, self.report.lenders_emptied) =
                (self.lenders.kills, self.lenders.losses);
        }
    }

    /// Copies the files as they are now, to explain a violation.
    fn copy_files(&self) -> Result<()> {
        let before = self.directory().join("before");
        let _ = fs::remove_dir_all(&before);
        fs::create_dir(&before)?;
        let home = Store::at(&self.directory().join("log"));
        let files = fs::read_dir(self.directory())?
            .chain(fs::read_dir(home.log().parent().unwrap_or(Path::new(".")))?);
        for entry in files {
            let path = entry?.path();
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            let wanted = ["log", "view", "lock", "data.key"].contains(&name)
                || ["log.", "segment"].iter().any(|begin| name.starts_with(begin));
            if wanted && path.is_file() {
                fs::copy(&path, before.join(name))?;
            }
        }
        Ok(())
    }

    fn note(&mut self, event: String) {
        if self.recent_events.len() == RECENT_EVENTS_MAX {
            self.recent_events.pop_front();
        }
        self.recent_events
            .push_back(format!("{:9.3} s  {event}", self.began.elapsed().as_secs_f64()));
    }

    fn lock_progress(&self) -> std::sync::MutexGuard<'_, ThreadProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A child and the thread that reads its messages.
struct ChildListener {
    process: StressProcess,
    listener: JoinHandle<()>,
}
