//! The client process that the tests kill: it recovers a journal, compares it with what was acknowledged, and
//! goes on committing. Every acknowledgement is reported before the next commit begins.
//!
//! Its reports, one line each on standard output, are [`WorkerMessage`]s; acknowledgements, which are many,
//! are written short: `+ thread number members rule disk`.

pub(crate) mod bank;
mod journal;
mod setup;
pub(crate) mod volume;

use std::io::Write;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The variable that holds a client's [`WorkerSettings`] as JSON.
pub(crate) const WORK: &str = "NETRAM_FAULT_WORK";

/// The work of a client process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WorkerSettings {
    /// The journal directory; made beforehand.
    pub(crate) journal: PathBuf,
    pub(crate) lenders: Vec<String>,
    /// The cluster file, by which lenders are found in place of `lenders`.
    pub(crate) auto: Option<PathBuf>,
    /// The cluster key's file; none: insecure.
    pub(crate) key: Option<PathBuf>,
    /// The multicast group that appends go to; none: each over its own link.
    pub(crate) multicast: Option<String>,
    pub(crate) rule: String,
    pub(crate) members: usize,
    pub(crate) window_bytes: u64,
    pub(crate) disk_delay_ms: u64,
    pub(crate) patience_ms: u64,
    pub(crate) accept_loss: bool,
    /// `remote`, `disk` or `both`.
    pub(crate) durability: String,
    pub(crate) threads: usize,
    /// The most bytes of one record, or of one transaction's trail.
    pub(crate) bytes_max: u64,
    pub(crate) task: WorkerTask,
    /// Commits of each thread; none: until killed.
    pub(crate) commits: Option<u64>,
    /// Acknowledged numbers so far: one for a journal, one for each thread of a bank.
    pub(crate) acked: Vec<u64>,
    /// The log may begin at this record or an earlier one.
    pub(crate) trimmed: u64,
}

/// Kind of data that is committed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum WorkerTask {
    /// Numbered records that describe themselves.
    Journal {
        /// Give up old records, so that the log wraps.
        trim: bool,
    },
    /// Transfers between accounts in recoverable memory.
    Bank {
        /// The segment; made when missing.
        segment: PathBuf,
        /// The segment table; made when missing.
        table: PathBuf,
        /// A file of holes, which needs disk space while it is written.
        sparse: bool,
    },
    /// Numbered blocks of a volume; `journal` names its directory.
    Volume,
}

/// Reports of a client, other than acknowledgements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum WorkerMessage {
    /// The process runs; its number, also under a tracer.
    Started { pid: i32 },
    /// The journal was not opened.
    Refused { text: String },
    /// The journal is open, and what it holds is what it must hold.
    Recovered(WorkerRecovery),
    /// Members acknowledge; or the wait for them is over.
    Ready { members: bool },
    /// Records below this number are being given up.
    Trimming { first: u64 },
    /// State of the lenders, when it has changed.
    Standing {
        blocked: Option<String>,
        members: Vec<String>,
        refused: Vec<String>,
        disk: Option<String>,
    },
    /// No commit of this thread took longer.
    Slowest { us: u64 },
    /// A commit found the log full; it is tried again.
    Full { text: String },
    /// A commit of this thread failed for good. No acknowledgement may follow it.
    Failed { thread: usize, text: String },
    /// The recovered data differs from what was acknowledged.
    Wrong { text: String },
    /// All commits asked for are done, and the journal is closed.
    Closed,
}

/// Outcome of recovery.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorkerRecovery {
    pub(crate) epoch: u32,
    pub(crate) from_members: u64,
    pub(crate) repaired: u64,
    pub(crate) local_end: u64,
    pub(crate) end: u64,
    /// The members asked, and what each answered.
    pub(crate) members: Vec<(String, String)>,
    pub(crate) loss: Option<String>,
    /// The newest commit: of a journal one number, of a bank one a thread.
    pub(crate) last: Vec<u64>,
}

/// Why a client ends.
pub(crate) enum WorkerEnd {
    Done,
    Refused(String),
    Wrong(String),
    Failed,
}

/// Not a test of its own: what a client process runs.
#[test]
fn process() {
    let Ok(work) = std::env::var(WORK) else { return };
    let _ = netram_process::die_with_parent();
    setup::log();
    // The test runner may have left its own line unfinished.
    raw("\n");
    say(&WorkerMessage::Started {
        pid: std::process::id() as i32,
    });
    let work: WorkerSettings =
        serde_json::from_str(&work).expect("the test that starts this process wrote it");
    let end = match &work.task {
        WorkerTask::Journal { trim } => journal::run(&work, *trim),
        WorkerTask::Bank {
            segment,
            table,
            sparse,
        } => bank::run(&work, segment, table, *sparse),
        WorkerTask::Volume => volume::run(&work),
    };
    let code = match end {
        WorkerEnd::Done => {
            say(&WorkerMessage::Closed);
            0
        }
        WorkerEnd::Refused(text) => {
            say(&WorkerMessage::Refused { text });
            3
        }
        WorkerEnd::Failed => 4,
        WorkerEnd::Wrong(text) => {
            say(&WorkerMessage::Wrong { text });
            5
        }
    };
    std::process::exit(code);
}

/// Says one thing; on return the other side can read it, whatever happens to this process.
pub(crate) fn say(said: &WorkerMessage) {
    let text = serde_json::to_string(said).expect("plain data");
    raw(&format!("@{text}\n"));
}

pub(crate) fn say_acked(thread: usize, number: u64, votes: netram_proto::port::CommitVotes) {
    let (rule, disk) = (u8::from(votes.rule), u8::from(votes.disk));
    raw(&format!("+ {thread} {number} {} {rule} {disk}\n", votes.members));
}

/// Writes a line by one system call. If it is not read any more, the test is over.
fn raw(line: &str) {
    let mut out = std::io::stdout().lock();
    if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(9);
    }
}
