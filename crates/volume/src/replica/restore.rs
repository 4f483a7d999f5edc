//! A volume made anew from a data lender's copy, when its own disk is lost.
//!
//! 1. Ask what the copy is; refuse one that is not whole.
//! 2. *Claim* it: from here on the data lender refuses the volume's old client, should it still live.
//! 3. Make a journal that begins where the copy's log ends, and recover it: all members must answer, with windows that
//!    continue the copy. What they hold goes into the journal, and nobody needs them any more.
//! 4. Make a volume whose blocks are all missing. They come from the copy when they are needed, or one after the other.
//! 5. *Release*: tell the data lender that the members are released. Should the volume be lost again before the data lender
//!    ever heard it, what they still hold is no proof of what was in it.
//!
//! Then it appears under its name. A failure before 5 leaves the copy claimed, which the next attempt claims again. A crash
//! between 5 and the name, which is the next thing done, leaves a copy that names no members: the next attempt is refused as
//! unproven, and accepting loss then does without what the members had beyond the copy.

use std::path::Path;
use std::time::{Duration, Instant};

use netram_client::seal::{DataKey, KEY_BYTES};
use netram_client::{Follower, Journal, JournalConfig, OfReplica, Parts};
use netram_disk::{BLOCK_BYTES, GrowError, Restoring, VolumeId};
use netram_lender::ReplicaReport;
use netram_proto::id::{Lsn, WriterId};
use netram_proto::journal::View;
use netram_proto::replica::{Condition, Description, Message};
use netram_proto::wire::{Flag, FrameKind, Refusal};
use netram_transport::{Address, ConnectError, Security, connect};
use ring::rand::{SecureRandom, SystemRandom};

use super::wire::{Wire, WireError};
use crate::error::CreateError;
use crate::place::Place;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer may take: the data lender may have to open the copy first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How often the release is said. Once it may have been heard, giving up costs the proof.
const RELEASE_ATTEMPTS: u32 = 5;
const RELEASE_PAUSE: Duration = Duration::from_millis(500);

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
        condition: Condition,
    },
    /// What it says makes no sense.
    #[error("the data lender's answer makes no sense; do both run the same release?")]
    Malformed,
    /// The volume could not be made.
    #[error("{0}")]
    Create(#[from] CreateError),
    /// The journal could not be recovered. The copy is claimed; try again.
    #[error("{0}")]
    Journal(#[from] netram_client::OpenError),
    /// The journal could not be written.
    #[error("the new journal: {0}")]
    Write(String),
    /// The data lender does not keep the release, so there is no volume.
    #[error(
        "the data lender does not keep the members' release, so no volume was made: {0}. Try again once it does"
    )]
    Release(Box<RestoreError>),
}

impl From<WireError> for RestoreError {
    fn from(error: WireError) -> RestoreError {
        RestoreError::Silent(error.to_string())
    }
}

/// What was restored.
#[derive(Clone, Debug)]
pub struct Restored {
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
pub struct DataLender {
    /// The data lender's address.
    pub address: Address,
    /// How its data sessions are protected.
    pub security: Security,
}

impl DataLender {
    fn connect(&self) -> Result<Wire, RestoreError> {
        Ok(Wire::new(connect(
            &self.address,
            &self.security,
            CONNECT_TIMEOUT,
        )?)?)
    }
}

/// The copies that a data lender keeps.
pub fn replicas(address: &Address, security: &Security) -> Result<Vec<ReplicaReport>, RestoreError> {
    let mut wire = Wire::new(connect(address, security, CONNECT_TIMEOUT)?)?;
    let answer = ask(&mut wire, &Message::inquire(None), FrameKind::Replica)?;
    match answer {
        Ok(message) => serde_json::from_slice(&message.body).map_err(|_| RestoreError::Malformed),
        Err(refusal) => Err(refused(refusal)),
    }
}

/// Makes the volume at `root` from the copy that the data lender `from` has. `config` is how its journal's members
/// are reached.
pub fn restore(
    root: &Path,
    from: &DataLender,
    volume: VolumeId,
    config: &JournalConfig,
    finish: impl FnOnce(&Path) -> std::io::Result<()>,
) -> Result<Restored, RestoreError> {
    let place = Place::at(root);
    place.check_free()?;
    let mut wire = from.connect()?;
    let description = describe(&mut wire, &from.address, volume)?;
    // The data lender answers a question and hangs up; a claim is another session.
    drop(wire);
    let mut wire = from.connect()?;
    claim(&mut wire, &description)?;
    // Once more: until the claim its old client may have sent more.
    let description = describe(&mut wire, &from.address, volume)?;
    // What follows can take long, and the data lender ends silent sessions.
    drop(wire);
    let mut restored = Restored {
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
            let released = fill(place, &description, config, &mut restored)?;
            finish(place.root()).map_err(|source| CreateError::Io {
                path: place.settings_file(),
                source,
            })?;
            place.sync()?;
            release(from, &description, &released)
        };
        all().map_err(|error| {
            let what = CreateError::Io {
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

/// Asks for one answer; a refusal instead is the inner error.
fn ask(
    wire: &mut Wire,
    question: &Message,
    expected: FrameKind,
) -> Result<Result<Message, u8>, RestoreError> {
    wire.say(question)?;
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    while let Some(message) = wire.await_next(deadline)? {
        match message.header.kind {
            kind if kind == expected => return Ok(Ok(message)),
            FrameKind::Refuse => return Ok(Err(message.header.flags)),
            _ => (),
        }
    }
    Err(RestoreError::Silent(format!(
        "nothing came for {ANSWER_TIMEOUT:?}"
    )))
}

fn refused(refusal: u8) -> RestoreError {
    RestoreError::Refused(match Refusal::from_byte(refusal) {
        Some(Refusal::NoReplica) => "it keeps no volumes; start it with --data".to_owned(),
        Some(Refusal::DataElsewhere) => {
            "it takes data sessions at another address, with a key of their own: name that address (its \
            --data-listen) and give that key"
                .to_owned()
        }
        Some(Refusal::DiskFailed) => "it cannot open the copy; its log says why".to_owned(),
        Some(Refusal::Fenced) => "a newer client has claimed the copy, or it was taken over there".to_owned(),
        Some(refusal) => format!("{refusal:?}"),
        None => format!("for reason {refusal}, which this release does not know"),
    })
}

fn describe(wire: &mut Wire, address: &Address, volume: VolumeId) -> Result<Description, RestoreError> {
    let message = match ask(wire, &Message::inquire(Some(volume.0)), FrameKind::Replica)? {
        Ok(message) => message,
        Err(refusal) if Refusal::from_byte(refusal) == Some(Refusal::NoReplica) => {
            let address = address.to_string();
            return Err(RestoreError::NoReplica { address, volume });
        }
        Err(refusal) => return Err(refused(refusal)),
    };
    if message.header.flags & Flag::KNOWN == 0 {
        return Err(RestoreError::Malformed);
    }
    let description = Description::decode(&message.frame()).map_err(|_| RestoreError::Malformed)?;
    if description.follow.identity.volume != volume.0 {
        return Err(RestoreError::Malformed);
    }
    match description.condition {
        Condition::Following => Ok(description),
        condition => Err(RestoreError::NotWhole { condition }),
    }
}

/// Begins a new reign at the data lender, over the same members.
///
/// A copy that was closed stays so: its client asks for nothing that it was not told.
fn claim(wire: &mut Wire, description: &Description) -> Result<(), RestoreError> {
    let mut writer = [0; 8];
    SystemRandom::new()
        .fill(&mut writer)
        .expect("Linux gives random bytes once it has booted");
    let view = description.view.restored(WriterId(u64::from_le_bytes(writer)));
    let follow = description.follow.message(view.epoch, view.writer);
    ask(wire, &follow, FrameKind::Following)?.map_err(refused)?;
    let keep = Message::keep_view(&view, description.follow.bytes, description.closed.is_some());
    ask(wire, &keep, FrameKind::Kept)?.map_err(refused)?;
    Ok(())
}

/// Step 5. An answer that is lost does not tell whether the view is kept, and keeping it again changes nothing: so it is
/// said until it is answered, or refused.
fn release(from: &DataLender, description: &Description, released: &View) -> Result<(), RestoreError> {
    let mut attempts = 1;
    loop {
        match tell_release(from, description, released) {
            Err(error @ (RestoreError::Connect(_) | RestoreError::Silent(_)))
                if attempts < RELEASE_ATTEMPTS =>
            {
                tracing::warn!(%error, "the data lender was not told that the members are released; trying again");
                attempts += 1;
                std::thread::sleep(RELEASE_PAUSE);
            }
            told => return told.map_err(|error| RestoreError::Release(Box::new(error))),
        }
    }
}

fn tell_release(from: &DataLender, description: &Description, released: &View) -> Result<(), RestoreError> {
    let mut wire = from.connect()?;
    let follow = description.follow.message(released.epoch, released.writer);
    ask(&mut wire, &follow, FrameKind::Following)?.map_err(refused)?;
    let keep = Message::keep_view(released, description.follow.bytes, false);
    ask(&mut wire, &keep, FrameKind::Kept)?.map_err(refused)?;
    Ok(())
}

/// Steps 3 and 4, in a directory that has another name yet. Returns the view that names nobody any more.
fn fill(
    place: &Place,
    description: &Description,
    config: &JournalConfig,
    restored: &mut Restored,
) -> Result<View, RestoreError> {
    let follow = &description.follow;
    let key = match <[u8; KEY_BYTES]>::try_from(&follow.key[..]) {
        Ok(key) => DataKey::from_bytes(key),
        Err(_) => DataKey::generate(),
    };
    let parts = Parts {
        journal: follow.identity.journal,
        log_bytes: follow.capacity,
        key,
        view: description.view.clone(),
        start: description.end,
    };
    Follower::create(&place.journal(), &parts).map_err(CreateError::from)?;
    let config = JournalConfig {
        of_replica: Some(OfReplica {
            closed: description.closed,
        }),
        lenders: Vec::new(),
        members: 0,
        members_min: None,
        multicast: None,
        ..config.clone()
    };
    let (journal, recovered) = Journal::open(&place.journal(), config)?;
    restored.records_from_members = recovered.records_from_members;
    restored.loss_accepted = recovered.loss_accepted;
    let released = journal.newest_view();
    journal
        .close()
        .map_err(|error| RestoreError::Write(error.to_string()))?;
    let files = place.new_files(true)?;
    let wrong = |cause: GrowError| CreateError::Volume {
        path: place.root().to_path_buf(),
        cause,
    };
    let (volume, journal) = (VolumeId(follow.identity.volume), follow.identity.journal);
    let restoring =
        Restoring::begin(files, volume, journal, follow.bytes, description.end.lsn).map_err(wrong)?;
    restoring.missing(0, follow.bytes / BLOCK_BYTES).map_err(wrong)?;
    restoring.finish().map_err(wrong)?;
    Ok(released)
}
