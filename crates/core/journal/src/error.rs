//! Why a journal could not be created or opened: one variant a reaction.

use std::io;
use std::path::PathBuf;

use netram_proto::id::{Epoch, JournalId, Lsn};
use netram_proto::journal::{
    AssembleError, LogFileError, LogGrowError as GrowRefusal, NotNewestError, RecoveryError, ViewError,
};
use netram_proto::port::IoError;

use crate::reason::UnreachableLenders;

/// Why no journal was created. Nothing that was there before was touched.
#[derive(Debug, thiserror::Error)]
pub enum JournalCreateError {
    /// There is something already.
    #[error("{0} exists already; choose another name, or remove it if its journal is of no use any more")]
    Exists(PathBuf),
    /// The size asked for is out of bounds.
    #[error("{0}")]
    Size(LogFileError),
    /// The file system refused.
    #[error("cannot create the journal in {path}: {source}")]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a journal was not deleted.
#[derive(Debug, thiserror::Error)]
pub enum JournalDeleteError {
    /// Nothing of a journal is there.
    #[error("{path} is no journal, nor what is left of one")]
    NoJournal {
        /// The directory or log file.
        path: PathBuf,
    },
    /// Lenders may alone have its newest commits.
    #[error("{0}")]
    NotClosed(#[from] JournalNotClosed),
    /// The directory has something that is not the journal's: it is part of a mount, a volume or a region.
    #[error(
        "{path} is not the journal's, so nothing was deleted: what the journal belongs to must be given up first \
         (`netram recover` for a mounted directory, `netram shared merge` for a node); a file of yours can be moved elsewhere"
    )]
    Foreign {
        /// What was found.
        path: PathBuf,
    },
    /// Another process has it open.
    #[error("{0}")]
    Journal(#[from] JournalOpenError),
    /// The file system refused.
    #[error("cannot remove {path}: {source}; delete it again when that is mended")]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Lenders may alone have the newest commits of what was to be deleted, or of the original of which it is a
/// copy.
#[derive(Debug, thiserror::Error)]
#[error(
    "{path} was not closed, so nothing was deleted: {lenders} may alone have its newest commits. If it is a copy of something that is still \
     wanted, remove it with `rm -r`, which tells no lender; if nobody wants those commits, delete it with --force"
)]
pub struct JournalNotClosed {
    pub(crate) path: PathBuf,
    pub(crate) lenders: String,
}

/// Why a journal could not be opened. Nothing was lost by trying.
#[derive(Debug, thiserror::Error)]
pub enum JournalOpenError {
    /// A file of the journal is missing or cannot be opened.
    #[error("{path}: {source}; name the directory that `netram journal create` made, or the log file")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody has removed the file by which a journal has one writer at a time.
    #[error(
        "the lock file {path} is gone; make sure that no program has this log open, then make the file again, empty: \
         touch {path}"
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
        /// Who has it.
        pid: String,
    },
    /// The log file is not usable.
    #[error("{path}: {source}")]
    Log {
        /// The log file.
        path: PathBuf,
        /// Why.
        source: LogFileError,
    },
    /// The view file is not usable.
    #[error("{path}: {source}")]
    View {
        /// The view file.
        path: PathBuf,
        /// Why.
        source: ViewFileError,
    },
    /// The log and the view belong to different journals.
    #[error(
        "{path}: the log is of journal {log}, the view of journal {view}; files of two journals were mixed: put the right ones back"
    )]
    Mixed {
        /// The journal directory.
        path: PathBuf,
        /// The log's journal.
        log: JournalId,
        /// The view's journal.
        view: JournalId,
    },
    /// The data key does not open the log's records.
    #[error("{path}: this key did not seal the log's records; put the journal's own data key back")]
    OtherKey {
        /// The key's file.
        path: PathBuf,
    },
    /// Recovery could not be proven complete, or a newer writer exists.
    #[error("{path}: {refusal}{away}")]
    Refused {
        /// The journal directory.
        path: PathBuf,
        /// What is missing, and what to do.
        refusal: RecoveryError,
        /// Why lenders did not answer.
        away: Box<UnreachableLenders>,
    },
    /// The operator calls this directory the newest, and what lenders hold says otherwise.
    #[error("{path}: {source}")]
    NotNewest {
        /// The journal directory.
        path: PathBuf,
        /// What speaks against it.
        source: NotNewestError,
    },
    /// The server of a shared region has fenced this node.
    #[error(
        "{path}: the region's server has fenced this node (epoch {seen}), and reads its journal from the lenders or has done so; ask the server for the outcomes, then remove this directory and join anew. What only this disk has, if lenders were lost: `netram shared merge`"
    )]
    NodeFenced {
        /// The journal directory.
        path: PathBuf,
        /// The epoch under which the members were sealed.
        seen: Epoch,
    },
    /// A node of a shared region left records here that the server may lack.
    #[error(
        "{path}: an earlier process of this node left records (LSN {from} to {end}); offer them to the region's server first"
    )]
    Unmerged {
        /// The journal directory.
        path: PathBuf,
        /// The first of them.
        from: Lsn,
        /// Where they end.
        end: Lsn,
    },
    /// The log is damaged where it had been durable.
    #[error("{path}: {source}")]
    Damaged {
        /// The log file.
        path: PathBuf,
        /// Where, and what to do.
        source: AssembleError,
    },
    /// The reign could not be made durable.
    #[error("{path}: storing epoch {epoch} failed: {source}; mend the disk, then open again")]
    Store {
        /// The file.
        path: PathBuf,
        /// The epoch to be.
        epoch: Epoch,
        /// What the system said.
        source: IoError,
    },
    /// The configuration contradicts itself or a limit.
    #[error("{0}")]
    Config(String),
    /// The system refused memory, a thread or a descriptor.
    #[error("{what}: {source}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a log did not grow. Nothing was lost by trying.
#[derive(Debug, thiserror::Error)]
pub enum JournalGrowError {
    /// The journal could not be recovered, which comes first.
    #[error("{0}")]
    Recovery(#[from] JournalOpenError),
    /// The log cannot have that size, or not now.
    #[error("{path}: {source}")]
    Refused {
        /// The log file.
        path: PathBuf,
        /// Why, and what to do.
        source: GrowRefusal,
    },
}

/// Why a view file is not usable.
#[derive(Debug, thiserror::Error)]
pub enum ViewFileError {
    /// The file failed.
    #[error("{0}")]
    Io(IoError),
    /// Not a view file.
    #[error("not a netram view file; put the journal's own back")]
    Foreign,
    /// Both slots are damaged.
    #[error(
        "both copies of the view are damaged, so nobody can say which lenders hold the newest records; restore the file from a copy"
    )]
    Damaged,
    /// The contents make no sense.
    #[error("{0}")]
    Contents(ViewError),
}
