//! The two threads of a mount that uphold its promises: one records what was written, within 50 ms; the other brings everything to the disk from time to time.
//!
//! They are two because a checkpoint takes as long as the disk does. `netram_files::Duty` decides when each is due, and that no refusal ends it.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_files::{Duty, Notice, Outcome};
use netram_proto::planted::Planted;
use netram_proto::time::{Span, Time};

use crate::mount::Held;

/// Within this time what was written is on its way to the lenders. So often it is also looked whether a checkpoint is due.
const LOOK: Duration = Duration::from_millis(50);

/// The threads.
pub(crate) struct Keeper {
    threads: Vec<JoinHandle<()>>,
    ends: Vec<Sender<()>>,
}

/// How a turn of work ended, and what refused it.
type Turn = (Outcome, Option<Box<dyn Display>>);

/// How one of them does its work, and what it says of that.
struct Work {
    name: &'static str,
    every: Duration,
    presses: fn(&Held) -> bool,
    act: fn(&Held) -> Turn,
    refused: &'static str,
    resumed: &'static str,
}

const RECORDING: Work = Work {
    name: "netram-recorder",
    every: LOOK,
    presses: |_| false,
    act: |held| told(held.record_written()),
    refused: "what is written is not recorded yet, and a crash would lose what no program has synced; it is tried again until it is",
    resumed: "what was written is recorded again",
};

fn checkpoints(every: Duration) -> Work {
    Work {
        name: "netram-keeper",
        every,
        presses: |held| held.folder.is_crowded(),
        act: |held| told(held.folder.checkpoint()),
        refused: "a checkpoint was refused, and is tried again until it is done; the journal keeps everything meanwhile",
        resumed: "checkpoints are made again",
    }
}

fn told<E: Display + Copy + 'static>(done: Result<(), E>) -> (Outcome, Option<Box<dyn Display>>)
where
    Result<(), E>: Into<Outcome>,
{
    let error = done.err().map(|error| -> Box<dyn Display> { Box::new(error) });
    (done.into(), error)
}

impl Keeper {
    /// Starts them; checkpoints are made once in so long, and sooner if the journal is half full.
    pub(crate) fn start(held: &Arc<Held>, every: Duration) -> io::Result<Keeper> {
        let mut keeper = Keeper {
            threads: Vec::new(),
            ends: Vec::new(),
        };
        for work in [RECORDING, checkpoints(every)] {
            let (end, ended) = channel();
            let held = Arc::clone(held);
            let thread = std::thread::Builder::new().name(work.name.to_owned());
            match thread.spawn(move || work.go_on(&held, &ended)) {
                Ok(thread) => keeper.threads.push(thread),
                Err(error) => {
                    keeper.end();
                    return Err(error);
                }
            }
            keeper.ends.push(end);
        }
        Ok(keeper)
    }

    /// Waits until they have ended.
    pub(crate) fn end(self) {
        drop(self.ends);
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

impl Work {
    fn go_on(&self, held: &Held, ended: &Receiver<()>) {
        let begin = Instant::now();
        let now = || Time(begin.elapsed().as_nanos() as u64);
        let mut duty = Duty::new(now(), Span(self.every.as_nanos() as u64), Planted::NONE);
        while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) && !duty.has_ended() {
            if !duty.is_due(now(), (self.presses)(held)) {
                continue;
            }
            let (outcome, error) = (self.act)(held);
            if let Some(notice) = duty.tried(now(), outcome) {
                self.tell(held.dir(), notice, error.as_deref());
            }
        }
    }

    fn tell(&self, folder: &Path, notice: Notice, error: Option<&dyn Display>) {
        let (folder, error) = (
            folder.display(),
            error.map(ToString::to_string).unwrap_or_default(),
        );
        match notice {
            Notice::Refused => tracing::error!(%folder, error, "{}", self.refused),
            Notice::Resumed { refusals } => tracing::warn!(%folder, refusals, "{}", self.resumed),
            Notice::Ended => tracing::error!(
                %folder,
                error,
                "nothing more is written: the disk failed. The journal has everything; mend the disk, unmount, and mount again"
            ),
        }
    }
}
