//! Errors of creating, opening, growing and deleting journals; one variant a reaction of the caller.

use std::io;
use std::path::PathBuf;

use netram_proto::id::{Epoch, JournalId, Lsn};
use netram_proto::journal::{
    AssembleError, LogFileError, LogGrowError as GrowRefusal, NotNewestError, RecoveryError, ViewError,
};
use netram_proto::port::IoError;

use crate::reason::UnreachableLenders;

/// Why no journal was created. Existing files were not changed.
#[derive(Debug, thiserror::Error)]
pub enum JournalCreateError {
    /// A file or directory of that name exists.
    #[error("{0} already exists; choose another name, or remove it if its journal is no longer needed")]
    Exists(PathBuf),
    /// The requested size is out of bounds.
    #[error("{0}")]
    Size(LogFileError),
    /// The file system refused.
    #[error("cannot create the journal in {path}: {source}")]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Why a journal was not deleted.
#[derive(Debug, thiserror::Error)]
pub enum JournalDeleteError {
    /// The path holds neither a journal nor the remains of one.
    #[error("{path} is neither a journal nor the remains of one")]
    NoJournal {
        /// The directory or log file.
        path: PathBuf,
    },
    /// Lenders may hold the only copy of the journal's newest commits.
    #[error("{0}")]
    NotClosed(#[from] JournalNotClosed),
    /// The directory holds a file that is not the journal's: the journal is part of a mount, a volume or a
    /// region.
    #[error(
        "{path} does not belong to the journal, so nothing was deleted. First give up what the journal is part of \
         (`netram mount recover` for a mounted directory, `netram shared merge` for a node), or move your own file elsewhere"
    )]
    Foreign {
        /// The first such file.
        path: PathBuf,
    },
    /// Another process has the journal open, or its lock cannot be taken.
    #[error("{0}")]
    Journal(#[from] JournalOpenError),
    /// The file system refused.
    #[error("cannot remove {path}: {source}; fix the cause, then delete it again")]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Lenders may hold the only copy of the newest commits of the journal to be deleted, or of the original of
/// which it is a copy.
#[derive(Debug, thiserror::Error)]
#[error(
    "{path} was not closed, so nothing was deleted: {lenders} may alone have its newest commits. If it is a copy of something still in use, remove it with `rm -r`, which tells no lender; if those commits are not needed, delete it with --force"
)]
pub struct JournalNotClosed {
    pub(crate) path: PathBuf,
    pub(crate) lenders: String,
}

/// Why a journal could not be opened. The attempt lost nothing.
#[derive(Debug, thiserror::Error)]
pub enum JournalOpenError {
    /// A file of the journal is missing or cannot be opened.
    #[error("{path}: {source}; name the directory that `netram journal create` made, or the log file")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The lock file, which keeps a journal to one writer, was removed.
    #[error(
        "the lock file {path} is missing; make sure that no program has this log open, then recreate it: touch {path}"
    )]
    NoLock {
        /// The lock file.
        path: PathBuf,
    },
    /// Another process has the journal open.
    #[error("{path} is in use by process {pid}; a journal has one writer at a time: stop that process first")]
    InUse {
        /// The journal directory.
        path: PathBuf,
        /// The id of that process.
        pid: String,
    },
    /// The log file is not usable.
    #[error("{path}: {source}")]
    Log {
        /// The log file.
        path: PathBuf,
        /// The reason.
        source: LogFileError,
    },
    /// The view file is not usable.
    #[error("{path}: {source}")]
    View {
        /// The view file.
        path: PathBuf,
        /// The reason.
        source: ViewFileError,
    },
    /// The log and the view belong to different journals.
    #[error(
        "{path}: the log belongs to journal {log} and the view to journal {view}: files of two journals are mixed; restore the right ones"
    )]
    Mixed {
        /// The journal directory.
        path: PathBuf,
        /// The log's journal.
        log: JournalId,
        /// The view's journal.
        view: JournalId,
    },
    /// The log's records were not sealed with this data key.
    #[error("{path}: the log's records were not sealed with this key; restore the journal's own data key")]
    OtherKey {
        /// The key's file.
        path: PathBuf,
    },
    /// Recovery could not be proven complete, or a newer writer exists.
    #[error("{path}: {refusal}{away}")]
    Refused {
        /// The journal directory.
        path: PathBuf,
        /// The missing proof or newer writer, and the remedy.
        refusal: RecoveryError,
        /// Why lenders did not answer.
        away: Box<UnreachableLenders>,
    },
    /// The operator claimed that this directory is the newest, and the records that lenders hold contradict
    /// that.
    #[error("{path}: {source}")]
    NotNewest {
        /// The journal directory.
        path: PathBuf,
        /// The contradiction.
        source: NotNewestError,
    },
    /// The server of a shared region has fenced this node.
    #[error(
        "{path}: the region's server has fenced this node (epoch {seen}), and reads its journal from the lenders; ask the server for the outcome of pending commits, then remove this directory and join again. If lenders were lost, `netram shared merge` saves the records that only this disk has"
    )]
    NodeFenced {
        /// The journal directory.
        path: PathBuf,
        /// The epoch under which the members were fenced.
        seen: Epoch,
    },
    /// An earlier process of this node left records that the region's server may lack.
    #[error(
        "{path}: an earlier process of this node left records (LSN {from} to {end}); offer them to the region's server first"
    )]
    Unmerged {
        /// The journal directory.
        path: PathBuf,
        /// LSN of the first of them.
        from: Lsn,
        /// LSN at which they end.
        end: Lsn,
    },
    /// The log is damaged below an LSN to which it had been durable.
    #[error("{path}: {source}")]
    Damaged {
        /// The log file.
        path: PathBuf,
        /// The damaged range, and the remedy.
        source: AssembleError,
    },
    /// The new epoch could not be stored durably.
    #[error("{path}: storing epoch {epoch} failed: {source}; repair the disk, then open it again")]
    Store {
        /// The file that could not be written.
        path: PathBuf,
        /// The new epoch.
        epoch: Epoch,
        /// The system's error.
        source: IoError,
    },
    /// The configuration contradicts itself or a limit.
    #[error("{0}")]
    Config(String),
    /// The system refused memory, a thread or a descriptor.
    #[error("{what}: {source}")]
    System {
        /// The requested resource.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Why a log was not enlarged. The attempt lost nothing.
#[derive(Debug, thiserror::Error)]
pub enum JournalGrowError {
    /// The journal could not be recovered, which is the first step.
    #[error("{0}")]
    Recovery(#[from] JournalOpenError),
    /// The log cannot have that size, or its state does not allow it now.
    #[error("{path}: {source}")]
    Refused {
        /// The log file.
        path: PathBuf,
        /// The reason, and the remedy.
        source: GrowRefusal,
    },
}

/// Why a view file is not usable.
#[derive(Debug, thiserror::Error)]
pub enum ViewFileError {
    /// The file could not be read.
    #[error("{0}")]
    Io(IoError),
    /// The file is not a view file.
    #[error("not a netram view file; restore the journal's own")]
    Foreign,
    /// Both copies of the view in the file are damaged.
    #[error(
        "both copies of the view are damaged, so it is unknown which lenders hold the newest records; restore the file from a copy"
    )]
    Damaged,
    /// The file's contents contradict themselves or a limit.
    #[error("{0}")]
    Contents(ViewError),
}
