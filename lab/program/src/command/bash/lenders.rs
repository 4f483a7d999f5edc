//! Lenders that are killed and restarted, with or without their memory.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use netram_lender::remove_store;

use super::model::SplitMix64;
use super::process::StressProcess;

/// Memory that a lender lends: one journal's window, and room for its successor.
const MEMORY: &str = "4MiB";
/// Longest absence of a killed lender, in ms.
const ABSENCE_MS_MAX: u64 = 900;

/// The lenders of a stress run.
pub(super) struct StressLenders {
    program: PathBuf,
    directory: PathBuf,
    key_file: PathBuf,
    all: Vec<Lender>,
    /// Whether a lender has lost its memory since recovery last proved that nothing is missing. Until the
    /// next proof no other may lose its memory, because records that both held could rightly be gone.
    lost: bool,
    pub(super) kills: u64,
    pub(super) losses: u64,
}

struct Lender {
    name: String,
    store: PathBuf,
    process: Option<StressProcess>,
    /// Time of its restart, while it is away.
    back: Option<Instant>,
}

impl StressLenders {
    /// Starts `count` lenders.
    pub(super) fn start(
        program: &Path,
        directory: &Path,
        key_file: &Path,
        count: usize,
    ) -> Result<StressLenders> {
        let mut lenders = StressLenders {
            program: program.to_path_buf(),
            directory: directory.to_path_buf(),
            key_file: key_file.to_path_buf(),
            all: Vec::new(),
            lost: false,
            kills: 0,
            losses: 0,
        };
        for index in 0..count {
            let name = format!("bash-{}-{index}", std::process::id());
            let store = PathBuf::from(format!("/dev/shm/netram-{name}.mem"));
            lenders.all.push(Lender {
                name,
                store,
                process: None,
                back: None,
            });
            lenders.revive(index)?;
        }
        Ok(lenders)
    }

    /// Addresses of the lenders.
    pub(super) fn addresses(&self) -> Vec<String> {
        (0..self.all.len()).map(|index| self.address(index)).collect()
    }

    /// Advances by about `tick`: a lender may be killed, and those that are due are restarted. Returns a
    /// description of the event.
    pub(super) fn pass(&mut self, random: &mut SplitMix64, tick: Duration) -> Result<Option<String>> {
        let now = Instant::now();
        for index in 0..self.all.len() {
            if self.all[index].back.is_some_and(|back| back <= now) {
                self.revive(index)?;
            }
        }
        // About once a second.
        if self.all.is_empty() || !random.once_in(1000 / (tick.as_millis() as u64).max(1)) {
            return Ok(None);
        }
        let index = random.below(self.all.len() as u64) as usize;
        let lose = self.all.len() > 1 && !self.lost && random.once_in(3);
        let Some(mut process) = self.all[index].process.take() else {
            return Ok(None);
        };
        process.kill()?;
        self.kills += 1;
        let lender = &mut self.all[index];
        lender.back = Some(now + Duration::from_millis(random.below(ABSENCE_MS_MAX)));
        if lose {
            remove_store(&lender.store)?;
            self.lost = true;
            self.losses += 1;
        }
        let memory = if lose {
            "and its memory is gone"
        } else {
            "its memory stays"
        };
        Ok(Some(format!("lender {index} was killed, {memory}")))
    }

    /// Notes that recovery proved that nothing is missing, so another lender may lose its memory.
    pub(super) fn proven(&mut self) {
        self.lost = false;
    }

    fn address(&self, index: usize) -> String {
        format!(
            "unix:{}",
            self.directory.join(format!("lender-{index}.sock")).display()
        )
    }

    fn revive(&mut self, index: usize) -> Result<()> {
        let address = self.address(index);
        let lender = &mut self.all[index];
        let flags = [
            ("--listen", address),
            ("--memory", MEMORY.to_owned()),
            ("--name", lender.name.clone()),
            ("--store", lender.store.display().to_string()),
            ("--domain", format!("lender-{index}")),
            ("--key-file", self.key_file.display().to_string()),
        ];
        let mut arguments = vec![
            "lender".to_owned(),
            "serve".to_owned(),
            "--with-parent".to_owned(),
        ];
        arguments.extend(
            flags
                .into_iter()
                .flat_map(|(flag, value)| [flag.to_owned(), value]),
        );
        let mut process = StressProcess::start(
            &self.program,
            &arguments,
            &self.directory,
            &format!("lender-{index}"),
        )?;
        let said = BufReader::new(process.output()?);
        let ready = said.lines().map_while(Result::ok).any(|line| line == "ready");
        if !ready {
            return Err(anyhow!("a lender did not start: {}", process.last_messages()));
        }
        lender.process = Some(process);
        lender.back = None;
        Ok(())
    }
}

impl Drop for StressLenders {
    fn drop(&mut self) {
        for lender in &mut self.all {
            drop(lender.process.take());
            // A lender that lost its memory has no store file.
            let _ = remove_store(&lender.store);
        }
    }
}
