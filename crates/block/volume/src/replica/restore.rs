//! A volume made anew from a data lender's copy, when its own disk is lost.
//!
//! 1. Ask what the copy is, who claimed it, when its client was heard, and what the members hold
//!    ([`check_restore`]). A refusal ends here, and has changed nothing anywhere (rule 18).
//! 2. *Claim* it: from here on the data lender refuses the volume's old client, should it still live.
//! 3. Make a journal that begins where the copy's log ends, and recover it: all members must answer, with
//!    windows that continue the copy. What they hold goes into the journal, and nobody needs them any more.
//! 4. *Hand over*: send the copy what members held beyond it. Now it is complete by itself.
//! 5. Make a volume whose blocks are all missing, but for the copy's holes. They come from the copy when they
//!    are needed, or one after the other. It is marked: before it first serves, the data lender must hear it.
//! 6. *Release*: tell the data lender that the volume is closed, as it is, and needs no members.
//!
//! Then it appears under its name. A crash before 6 leaves a copy that names the members, who still hold what
//! they had: the next attempt claims it again. After 6 the copy proves itself, as that of any closed volume,
//! whatever becomes of this one, until that is opened: its *first word* ([`announce_first_view`]) tells the
//! data lender that the volume is no longer closed.

use std::path::{Path, PathBuf};
use std::time::Duration;

use netram_block::{BLOCK_BYTES, DiskGrowError, VolumeId, VolumeRestore};
use netram_block_machine::message::FollowRequest;
use netram_block_machine::{ReplicaCondition, ReplicaDescription, ReplicaMessage};
use netram_journal::seal::{DataKey, KEY_BYTES};
use netram_journal::{Journal, JournalConfig, JournalFollower, JournalInit};
use netram_lender::ReplicaReport;
use netram_proto::id::Lsn;
use netram_proto::journal::View;
use netram_proto::port::RecordLog;
use netram_proto::wire::FrameKind;
use netram_transport::{ConnectError, NetAddress, Security, connect};

use super::claim::{self, Claimant, ask};
use super::link::{ReplicaLink, ReplicaLinkError};
use super::restore_check::{Ago, of_copy};
pub use super::restore_check::{CLIENT_ALIVE_WINDOW, ClaimFacts, CopyFacts, RestoreCheck, check_restore};
use crate::error::VolumeCreateError;
use crate::paths::VolumePaths;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the data lender is told something that ends a restore, and what is waited in between.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// Why a volume was not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The data lender cannot be reached.
    #[error("{0}")]
    Connect(#[from] ConnectError),
    /// The connection broke, or no answer came.
    #[error("the data lender does not answer: {0}")]
    Silent(String),
    /// It has no such copy.
    #[error(
        "{address} keeps no copy of volume {volume}; `netram disk replicas {address}` lists what it keeps"
    )]
    NoReplica {
        /// The data lender.
        address: String,
        /// The volume asked for.
        volume: VolumeId,
    },
    /// It refuses.
    #[error("the data lender refuses: {0}")]
    Refused(String),
    /// The copy is not whole.
    #[error(
        "the copy is {condition}: it cannot stand in for the volume. Bring the client's own disk back, and let the resync end"
    )]
    NotWhole {
        /// How it stands.
        condition: ReplicaCondition,
    },
    /// The volume's client may be running.
    #[error(
        "the data lender heard the volume's client {} ago, so it may be running: a restore would fence it, and what it acknowledges \
         meanwhile would be lost. Stop it, or switch its machine off. If it is off, say --client-is-off",
        Ago(*heard)
    )]
    LiveClient {
        /// How long ago it was heard.
        heard: Duration,
    },
    /// What it says makes no sense.
    #[error("the data lender's answer makes no sense; do both run the same release?")]
    Malformed,
    /// The volume could not be made.
    #[error("{0}")]
    Create(#[from] VolumeCreateError),
    /// The members do not suffice: asked before anything was changed, or, if they went in between, after the
    /// copy was claimed.
    #[error("{0}")]
    Journal(#[from] netram_journal::JournalOpenError),
    /// The journal could not be written.
    #[error("the new journal: {0}")]
    Write(String),
    /// The data lender does not keep the release, so there is no volume.
    #[error(
        "the data lender does not keep the members' release, so no volume was made: {0}. Try again once it does"
    )]
    Release(Box<RestoreError>),
    /// The copy has another history than the volume that was restored from it.
    #[error(
        "the copy has another history from LSN {0} on: another volume was restored from it since. Use that one, and delete this"
    )]
    Superseded(Lsn),
}

impl From<ReplicaLinkError> for RestoreError {
    fn from(error: ReplicaLinkError) -> RestoreError {
        RestoreError::Silent(error.to_string())
    }
}

/// What was restored.
#[derive(Clone, Debug)]
pub struct RestoreReport {
    /// Which volume.
    pub volume: VolumeId,
    /// Its size.
    pub bytes: u64,
    /// Where the copy's log ended.
    pub copy_end: Lsn,
    /// Records that came from members beyond it.
    pub records_from_members: u64,
    /// When the client was last heard by the data lender, in seconds of the wall clock.
    pub contact: u64,
    /// It had been closed.
    pub closed: bool,
    /// What was accepted as lost.
    pub loss_accepted: Option<String>,
}

/// Where a copy is.
#[derive(Clone, Debug)]
pub struct DataLenderEndpoint {
    /// The data lender's address.
    pub address: NetAddress,
    /// How its data sessions are protected.
    pub security: Security,
}

impl DataLenderEndpoint {
    pub(super) fn connect(&self) -> Result<ReplicaLink, RestoreError> {
        Ok(ReplicaLink::new(connect(
            &self.address,
            &self.security,
            CONNECT_TIMEOUT,
        )?)?)
    }
}

/// The copies that a data lender keeps.
#[derive(Clone, Debug)]
pub struct CopyList {
    /// As many as an answer has room for.
    pub copies: Vec<ReplicaReport>,
    /// So many more.
    pub left_out: u64,
}

/// Asks a data lender for the copies that it keeps.
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

/// Makes the volume at `root` from the copy that the data lender `from` has. `config` is how its journal's
/// members are reached. `client_is_off`: the operator says that the volume's client does not run any more.
pub fn restore(
    root: &Path,
    from: &DataLenderEndpoint,
    volume: VolumeId,
    config: &JournalConfig,
    client_is_off: bool,
    finish: impl FnOnce(&Path) -> std::io::Result<()>,
) -> Result<RestoreReport, RestoreError> {
    let place = VolumePaths::at(root);
    place.check_free()?;
    let check = check_restore(root, from, volume, config, client_is_off)?;
    if let Some(refusal) = check.refusal {
        return Err(refusal);
    }
    let description = claim::claim(from, volume)?;
    let mut restored = RestoreReport {
        volume,
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
                lender: from,
                follow: &description.follow,
            };
            let released = recover(place, &description, config, &claimant, &mut restored)?;
            fill(place, &description, &claimant, &released)?;
            let io = |path: PathBuf| move |source| VolumeCreateError::Io { path, source };
            finish(place.root()).map_err(io(place.settings_file()))?;
            place
                .mark_unannounced(&from.address)
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

/// A restored volume is about to serve for the first time, in the reign of `view`: the data lender, to which
/// it is closed, must know before. Otherwise, were it lost unheard, the copy would pass for all that there
/// was.
pub(crate) fn announce_first_view(
    lender: &DataLenderEndpoint,
    follow: &FollowRequest,
    view: &View,
) -> Result<(), RestoreError> {
    let claimant = Claimant { lender, follow };
    retry(|| claimant.keep(view, false))
}

/// An answer that is lost does not tell whether the view is kept, and keeping it again changes nothing: so it
/// is said until it is answered, or refused.
fn retry(mut say: impl FnMut() -> Result<(), RestoreError>) -> Result<(), RestoreError> {
    let mut attempts = 1;
    loop {
        match say() {
            Err(error @ (RestoreError::Connect(_) | RestoreError::Silent(_))) if attempts < ATTEMPTS => {
                tracing::warn!(%error, "the data lender was not told; trying again");
                attempts += 1;
                std::thread::sleep(PAUSE);
            }
            told => return told,
        }
    }
}

/// Steps 3 and 4, in a directory that has another name yet. Returns the view that names nobody any more.
fn recover(
    place: &VolumePaths,
    description: &ReplicaDescription,
    config: &JournalConfig,
    claimant: &Claimant<'_>,
    restored: &mut RestoreReport,
) -> Result<View, RestoreError> {
    let follow = &description.follow;
    let key = match <[u8; KEY_BYTES]>::try_from(&follow.key[..]) {
        Ok(key) => DataKey::from_bytes(key),
        Err(_) => DataKey::generate(),
    };
    let parts = JournalInit {
        journal: follow.identity.journal,
        log_bytes: follow.capacity,
        key,
        view: description.view.clone(),
        start: description.end,
    };
    JournalFollower::create(&place.journal(), &parts).map_err(VolumeCreateError::from)?;
    let (journal, recovered) = Journal::open(&place.journal(), of_copy(config, description))?;
    restored.records_from_members = recovered.records_from_members;
    restored.loss_accepted = recovered.loss_accepted;
    let released = journal.newest_view();
    let from = description.end.lsn;
    if journal.state().stable > from {
        // In the same reign, and with the members that the copy has known: they are needed until it has
        // everything.
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

/// Step 5. Where the copy has holes, the volume has them too, and nothing is ever fetched.
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
    // Holes of a copy that has all that the new volume's journal begins with: its records come on top.
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
