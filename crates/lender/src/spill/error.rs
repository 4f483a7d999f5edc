//! Why windows could not be written to a disk or taken up from there; one variant a reaction.

use std::io;
use std::path::{Path, PathBuf};

use netram_proto::id::JournalId;

/// Why a spill failed.
#[derive(Debug, thiserror::Error)]
pub enum SpillError {
    /// Another user can change the directory.
    #[error(
        "the directory for spills, {path}, belongs to another user or can be changed by others (mode {mode:o}); give it to this \
         user, with mode 0700"
    )]
    NotPrivate {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another lender uses the files.
    #[error(
        "another lender named {lender} uses {path}; give this one another name (--name) or directory (--spill)"
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The name of both.
        lender: String,
    },
    /// The disk is too full to write the windows when the time comes.
    #[error(
        "the disk of {path} has no room for {room} bytes, all that is lent; free some, or lend less (--memory)"
    )]
    NoRoom {
        /// The directory.
        path: PathBuf,
        /// Bytes that are needed.
        room: u64,
    },
    /// The file fails its checks.
    #[error(
        "the spill {path} is damaged, and may hold the only copy of clients' newest commits; let them recover from their other \
         lenders first, then move the file away and start again"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The file of one window fails its checks.
    #[error(
        "{path}, with the window of a journal whose client was silent, is damaged, and may hold the only copy of its newest \
         commits; let that client recover from its other lenders first, then move the file away and start again"
    )]
    WindowDamaged {
        /// The file.
        path: PathBuf,
    },
    /// The file of one window is gone, or there is no directory for it.
    #[error(
        "the window of journal {journal} was written to a disk, and {path} is not there; start with the directory that has it \
         (--spill), or give the window up (--discard-windows)"
    )]
    WindowMissing {
        /// The journal.
        journal: JournalId,
        /// The file that is missing.
        path: PathBuf,
    },
    /// The files of windows have as many bytes as are lent.
    #[error(
        "the files of silent clients' windows in {path} have {used} bytes, and get at most {most}, as much as is lent; `netram \
         lender list --abandoned` names those that nobody may need, and `netram lender forget` frees them"
    )]
    WindowsFull {
        /// The directory.
        path: PathBuf,
        /// Bytes of the files.
        used: u64,
        /// Bytes that they may have.
        most: u64,
    },
    /// The journals of windows in files do not fit the store.
    #[error(
        "{path} has more windows in files than this lender may remember journals; let it remember more (--journals-max)"
    )]
    TooManyWindows {
        /// The directory.
        path: PathBuf,
    },
    /// Another release wrote the file.
    #[error(
        "the spill {path} has format {version}, which this release does not read; start the release that wrote it"
    )]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        version: u32,
    },
    /// Another lender wrote the file.
    #[error(
        "the spill {path} is that of lender {lender}; start that one (--name {lender}), or move the file away"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The other lender's name.
        lender: String,
    },
    /// The lender's memory holds journals already.
    #[error(
        "{store} holds journals, and the spill {path} is that of another memory: a lender cannot have both. Start this one without \
         --spill and another one with another --name and this spill's directory, or move away what no client needs"
    )]
    Beside {
        /// The spill.
        path: PathBuf,
        /// The store.
        store: PathBuf,
    },
    /// The memory of which the spill was taken has lived on.
    #[error(
        "the memory in {store} has lived on since the spill {path} was taken, which happens if the machine was restored from a \
         snapshot of its memory: that memory may be older than what clients know. Remove {store}, and start again"
    )]
    LivedOn {
        /// The spill.
        path: PathBuf,
        /// The store.
        store: PathBuf,
    },
    /// The windows need more memory than is lent.
    #[error(
        "the spill {path} needs {needed} bytes of memory and {journals} journals; lend as much (--memory, --journals-max)"
    )]
    DoesNotFit {
        /// The spill.
        path: PathBuf,
        /// Bytes of its windows, in whole chunks.
        needed: u64,
        /// Its journals.
        journals: u64,
    },
    /// The system refused a step.
    #[error("cannot {step} {path}: {source}")]
    Failed {
        /// The step.
        step: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl SpillError {
    /// Adds the failed step and the file to the system's error.
    pub(crate) fn failed<E: Into<io::Error>>(
        path: &Path,
        step: &'static str,
    ) -> impl FnOnce(E) -> SpillError {
        let path = path.to_owned();
        move |source| SpillError::Failed {
            step,
            path,
            source: source.into(),
        }
    }
}
