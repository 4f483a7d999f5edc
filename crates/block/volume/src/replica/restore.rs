//! Restoring a volume from a data lender's copy after its own disk is lost.
//!
//! 1. Ask for the wrapped key, which the recovery key opens. From it comes the key that proves whose the
//!    journal is. Then ask for the copy's condition, its claim and its client's last message, and for the
//!    members' records ([`check_restore`]). A refusal here has changed nothing anywhere (rule 18).
//! 2. *Claim* the copy: from here on the data lender refuses the volume's old client.
//! 3. Create a journal that begins where the copy's log ends, and recover it: all members must answer, with
//!    windows that continue the copy. Their records go into the journal, which then needs no member.
//! 4. *Hand over*: send the copy the records that members held beyond its end. Now it is complete by itself.
//! 5. Create a volume whose blocks are all missing, except for the copy's holes. They are fetched from the
//!    copy when needed, or one after another. The volume is marked: before it first serves, it must reach the
//!    data lender.
//! 6. *Release*: tell the data lender that the volume is closed and needs no members.
//!
//! Then the volume appears under its name. A crash before step 6 leaves a copy that names the members, which
//! still hold their records: the next attempt claims it again. After step 6 the copy is complete like that of
//! any closed volume, whatever happens to the restored one. When the restored volume first opens, its
//! announcement tells the data lender that it is no longer closed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use netram_block::{BLOCK_BYTES, DiskGrowError, VolumeId, VolumeRestore};
use netram_block_machine::message::FollowRequest;
use netram_block_machine::{ReplicaCondition, ReplicaDescription, ReplicaMessage};
use netram_journal::durable;
use netram_journal::owner::JournalOwner;
use netram_journal::seal::DataKey;
use netram_journal::{Journal, JournalConfig, JournalFollower, JournalInit, LogBlocks};
use netram_lender::ReplicaReport;
use netram_proto::id::Lsn;
use netram_proto::journal::View;
use netram_proto::port::RecordLog;
use netram_proto::wire::FrameKind;
use netram_transport::{ConnectError, NetAddress, Security, connect};

use super::claim::{self, Claimant, ask};
use super::link::{ReplicaLink, ReplicaLinkError};
use super::restore_check::{Ago, check_with_key, of_copy};
pub use super::restore_check::{CLIENT_ALIVE_WINDOW, ClaimFacts, CopyFacts, RestoreCheck, check_restore};
use crate::error::VolumeCreateError;
use crate::paths::VolumePaths;
use crate::recovery_key::{RecoveryKey, UnwrapError, is_wrapped};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Attempts of the steps that end a restore, and the pause between two.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// Failure to restore a volume.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The data lender cannot be reached.
    #[error("{0}")]
    Connect(#[from] ConnectError),
    /// The connection broke, or no answer arrived.
    #[error("the data lender does not answer: {0}")]
    Silent(String),
    /// The data lender has no copy of the volume.
    #[error(
        "{address} keeps no copy of volume {volume}; `netram volume replicas {address}` lists its copies"
    )]
    NoReplica {
        /// Address of the data lender.
        address: String,
        /// Id of the requested volume.
        volume: VolumeId,
    },
    /// The data lender refuses the session.
    #[error("the data lender refused the session: {0}")]
    Refused(String),
    /// The copy is not whole.
    #[error(
        "the copy is in condition `{condition}` and cannot replace the volume. Bring back the client's own disk, and let the resync end"
    )]
    NotWhole {
        /// Condition of the copy.
        condition: ReplicaCondition,
    },
    /// The volume's client may still be running.
    #[error(
        "the volume's client sent its last message to the data lender {} ago and may still be running. A restore would fence it, and writes that it acknowledges \
         in the meantime would be lost. Stop it, or switch its machine off. If it is off, add --client-is-off",
        Ago(*heard)
    )]
    LiveClient {
        /// Time since the client's last message.
        heard: Duration,
    },
    /// The key of the volume's records cannot be opened.
    #[error("{0}")]
    Key(#[from] UnwrapError),
    /// The data lender's answer is invalid.
    #[error("the data lender's answer is invalid; check that both machines run the same release")]
    Malformed,
    /// The volume could not be created.
    #[error("{0}")]
    Create(#[from] VolumeCreateError),
    /// Too few members answered. Checked before anything is changed, and again after the copy is claimed.
    #[error("{0}")]
    Journal(#[from] netram_journal::JournalOpenError),
    /// The journal could not be written.
    #[error("the new journal failed: {0}")]
    Write(String),
    /// The data lender did not store the release, so no volume was created.
    #[error(
        "the data lender did not store the release of the members, so no volume was created: {0}. Fix that, then try again"
    )]
    Release(Box<RestoreError>),
    /// The copy has another history than the volume that was restored from it.
    #[error(
        "the copy has a different history from LSN {0} on: another volume was restored from it later. Use that volume, and delete this one"
    )]
    Superseded(Lsn),
}

impl From<ReplicaLinkError> for RestoreError {
    fn from(error: ReplicaLinkError) -> RestoreError {
        RestoreError::Silent(error.to_string())
    }
}

/// Result of a restore.
#[derive(Clone, Debug)]
pub struct RestoreReport {
    /// Id of the volume.
    pub volume: VolumeId,
    /// Size of the volume in bytes.
    pub bytes: u64,
    /// End of the copy's log.
    pub copy_end: Lsn,
    /// Number of records beyond it that came from members.
    pub records_from_members: u64,
    /// When the data lender last got a message from the client, in seconds of the wall clock.
    pub contact: u64,
    /// Whether the volume had been closed.
    pub closed: bool,
    /// Loss that was accepted, if any.
    pub loss_accepted: Option<String>,
}

/// Address and security of a data lender.
#[derive(Clone, Debug)]
pub struct DataLenderEndpoint {
    /// Address of the data lender.
    pub address: NetAddress,
    /// Security of its data sessions.
    pub security: Security,
}

impl DataLenderEndpoint {
    pub(super) fn connect(&self, owner: &JournalOwner) -> Result<ReplicaLink, RestoreError> {
        let link = connect(&self.address, &self.security, CONNECT_TIMEOUT)?;
        Ok(ReplicaLink::of_owner(link, owner)?)
    }
}

/// The copy to restore a volume from, and the conditions.
#[derive(Clone, Copy, Debug)]
pub struct RestoreRequest<'a> {
    /// The data lender that keeps the copy.
    pub from: &'a DataLenderEndpoint,
    /// Id of the volume.
    pub volume: VolumeId,
    /// Options that tell how to reach the journal's members.
    pub config: &'a JournalConfig,
    /// The recovery key, which opens the volume's key.
    pub recovery: Option<&'a RecoveryKey>,
    /// Whether the operator declares that the volume's client does not run any more.
    pub client_is_off: bool,
}

/// Copies that a data lender keeps.
#[derive(Clone, Debug)]
pub struct CopyList {
    /// As many copies as one answer holds.
    pub copies: Vec<ReplicaReport>,
    /// Number of copies that were left out.
    pub left_out: u64,
}

/// Asks a data lender for the copies that it keeps.
///
/// # Errors
///
/// [`RestoreError`] if the data lender cannot be reached, does not answer, or refuses.
pub fn replicas(address: &NetAddress, security: &Security) -> Result<CopyList, RestoreError> {
    let mut wire = ReplicaLink::new(connect(address, security, CONNECT_TIMEOUT)?)?;
    let answer = ask(&mut wire, &ReplicaMessage::inquire(None), FrameKind::Replica)?;
    match answer {
        Ok(message) => {
            let copies: Vec<ReplicaReport> =
                serde_json::from_slice(&message.body).map_err(|_| RestoreError::Malformed)?;
            let left_out = message.header.lsn.0.saturating_sub(copies.len() as u64);
            Ok(CopyList { copies, left_out })
        }
        Err(refusal) => Err(claim::refused(refusal)),
    }
}

/// Restores a volume at `root` from a data lender's copy. `finish` completes its directory before it appears.
///
/// # Errors
///
/// [`RestoreError`] if the path exists, the check refuses, or a step fails. No volume exists then.
pub fn restore(
    root: &Path,
    request: &RestoreRequest<'_>,
    finish: impl FnOnce(&Path) -> std::io::Result<()>,
) -> Result<RestoreReport, RestoreError> {
    let place = VolumePaths::at(root);
    place.check_free()?;
    let (check, key) = check_with_key(root, request)?;
    let (key, owner) = match (check.refusal, key) {
        (Some(refusal), _) => return Err(refusal),
        (None, key) => key?,
    };
    let description = claim::claim(request.from, request.volume, &owner)?;
    let mut restored = RestoreReport {
        volume: request.volume,
        bytes: description.follow.bytes,
        copy_end: description.end.lsn,
        records_from_members: 0,
        contact: description.contact,
        closed: description.closed.is_some(),
        loss_accepted: None,
    };
    let mut failed = None;
    let made = place.make(|place| {
        let all = || -> Result<(), RestoreError> {
            let claimant = Claimant {
                lender: request.from,
                follow: &description.follow,
                owner: &owner,
            };
            let released = recover(place, &description, key, request.config, &claimant, &mut restored)?;
            fill(place, &description, &claimant, &released)?;
            let io = |path: PathBuf| move |source| VolumeCreateError::Io { path, source };
            finish(place.root()).map_err(io(place.settings_file()))?;
            if is_wrapped(&description.follow.wrapped_key) {
                let kept = durable::create(&place.recovery(), &description.follow.wrapped_key);
                kept.map_err(io(place.recovery()))?;
            }
            place
                .mark_unannounced(&request.from.address)
                .map_err(io(place.unannounced()))?;
            place.sync()?;
            // It stays closed until the volume's first word.
            retry(|| claimant.keep(&released, true)).map_err(|error| RestoreError::Release(Box::new(error)))
        };
        all().map_err(|error| {
            let what = VolumeCreateError::Io {
                path: root.to_path_buf(),
                source: std::io::Error::other(error.to_string()),
            };
            failed = Some(error);
            what
        })
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(made.map(|()| restored)?),
    }
}

/// Announces a restored volume that is about to serve for the first time in the epoch of `view`. The data
/// lender, which takes it for closed, must know before. Otherwise, if the volume were lost, the copy would
/// pass for complete.
pub(crate) fn announce_first_view(
    lender: &DataLenderEndpoint,
    (follow, owner): (&FollowRequest, &JournalOwner),
    view: &View,
) -> Result<(), RestoreError> {
    let claimant = Claimant {
        lender,
        follow,
        owner,
    };
    retry(|| claimant.keep(view, false))
}

/// Repeats a step until it is answered or refused. A lost answer does not tell whether the view is stored,
/// and storing it again changes nothing.
fn retry(mut say: impl FnMut() -> Result<(), RestoreError>) -> Result<(), RestoreError> {
    let mut attempts = 1;
    loop {
        match say() {
            Err(error @ (RestoreError::Connect(_) | RestoreError::Silent(_))) if attempts < ATTEMPTS => {
                tracing::warn!(%error, "cannot reach the data lender; retrying");
                attempts += 1;
                std::thread::sleep(PAUSE);
            }
            told => return told,
        }
    }
}

/// Steps 3 and 4, in a directory with a temporary name. Returns the view without members.
fn recover(
    place: &VolumePaths,
    description: &ReplicaDescription,
    key: DataKey,
    config: &JournalConfig,
    claimant: &Claimant<'_>,
    restored: &mut RestoreReport,
) -> Result<View, RestoreError> {
    let follow = &description.follow;
    let parts = JournalInit {
        journal: follow.identity.journal,
        log_bytes: follow.capacity,
        key,
        view: description.view.clone(),
        start: description.end,
        blocks: LogBlocks::Ahead,
    };
    JournalFollower::create(&place.journal(), &parts).map_err(VolumeCreateError::from)?;
    let (journal, recovered) = Journal::open(&place.journal(), of_copy(config, description))?;
    restored.records_from_members = recovered.records_from_members;
    restored.loss_accepted = recovered.loss_accepted;
    let released = journal.newest_view();
    let from = description.end.lsn;
    if journal.state().stable > from {
        // In the same epoch, with the members that the copy knows: they are needed until it has everything.
        let before = View {
            version: released.version - 1,
            epoch: released.epoch,
            writer: released.writer,
            ..description.view.clone()
        };
        claimant.hand_over(&before, &released, from, &journal)?;
    }
    journal
        .close()
        .map_err(|error| RestoreError::Write(error.to_string()))?;
    Ok(released)
}

/// Step 5. Where the copy has holes, the volume has them too, and no block is ever fetched.
fn fill(
    place: &VolumePaths,
    description: &ReplicaDescription,
    claimant: &Claimant<'_>,
    released: &View,
) -> Result<(), RestoreError> {
    let follow = &description.follow;
    let files = place.new_files(true)?;
    let wrong = |cause: DiskGrowError| VolumeCreateError::Volume {
        path: place.root().to_path_buf(),
        cause,
    };
    let (volume, journal) = (VolumeId(follow.identity.volume), follow.identity.journal);
    let restoring =
        VolumeRestore::begin(files, volume, journal, follow.bytes, description.end.lsn).map_err(wrong)?;
    // These are holes of a copy that has everything below the new journal's start; its records go on top.
    let mark = |first, behind| restoring.missing(first, behind).map_err(wrong);
    claimant.each_data(
        released,
        description.end.lsn,
        follow.bytes / BLOCK_BYTES,
        &mut |run| Ok(mark(run.start, run.end)?),
    )?;
    restoring.finish().map_err(wrong)?;
    Ok(())
}
