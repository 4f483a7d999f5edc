//! Checks of a restore, a takeover and an opening before they change anything (rule 18): the copy's
//! condition, its claim, its client's last message, and the members' records.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use netram_block::VolumeId;
use netram_block_machine::{ReplicaCondition, ReplicaDescription, ReplicaHeader};
use netram_journal::owner::{JournalOwner, NotItsKey};
use netram_journal::seal::DataKey;
use netram_journal::{Journal, JournalConfig, OpenCheck, ReplicaOrigin};
use netram_proto::id::Epoch;
use netram_proto::journal::{ClaimNote, View};

use super::claim;
use super::restore::{DataLenderEndpoint, RestoreError, RestoreRequest};
use crate::recovery_key::{UnwrapError, unwrap};

/// A client whose last message is more recent than this may be running: it pings twice a second, and a
/// restarted one returns within seconds.
pub const CLIENT_ALIVE_WINDOW: Duration = Duration::from_secs(10);
/// Timeout of the data lender's description; it may have to open the copy first.
const LOOK_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an opening waits for the data lender's description. Without it the volume opens, as it does while
/// the data lender is away.
const OPENING_TIMEOUT: Duration = Duration::from_secs(2);

/// Result of checking whether a volume could be restored.
#[derive(Debug)]
pub struct RestoreCheck {
    /// Description of the copy.
    pub copy: CopyFacts,
    /// The members, and whether they suffice; `None` if they were not asked because the copy is not whole.
    pub journal: Option<OpenCheck>,
    /// Why the restore would fail; `None` if it would succeed.
    pub refusal: Option<RestoreError>,
}

/// A copy as its data lender describes it.
#[derive(Clone, Debug)]
pub struct CopyFacts {
    /// Size of the volume in bytes.
    pub bytes: u64,
    /// Whether the copy is whole.
    pub condition: ReplicaCondition,
    /// Time since its client's last message.
    pub heard: Duration,
    /// Whether the volume had been closed.
    pub closed: bool,
    /// Latest claim of the copy; `None`: the data lender tells it only to the volume's owner.
    pub claim: Option<ClaimFacts>,
}

/// A claim of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimFacts {
    /// Epoch of the claim.
    pub epoch: u32,
    /// Command and machine of the claimant; a number if no more is known.
    pub by: String,
    /// Time since the claim, if it is known.
    pub ago: Option<Duration>,
    /// Whether a volume was written to or restored in this epoch.
    pub served: bool,
}

impl ClaimFacts {
    pub(crate) fn of(view: &View) -> ClaimFacts {
        let ago = |note: &ClaimNote| Duration::from_secs(now_seconds().saturating_sub(note.time));
        ClaimFacts {
            epoch: view.epoch.0,
            by: view.claimant(),
            ago: view.note.as_ref().map(ago),
            served: view.has_served(),
        }
    }
}

impl std::fmt::Display for ClaimFacts {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "`{}` claimed it in epoch {}", self.by, self.epoch)?;
        if let Some(ago) = self.ago {
            write!(out, ", {} ago", Ago(ago))?;
        }
        out.write_str(match self.served {
            true => "",
            false => ", and never served",
        })
    }
}

/// Displays a time span roughly.
pub(crate) struct Ago(pub(crate) Duration);

impl std::fmt::Display for Ago {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.as_secs() {
            seconds @ ..120 => write!(out, "{seconds} s"),
            seconds @ ..7_200 => write!(out, "{} min", seconds / 60),
            seconds @ ..172_800 => write!(out, "{} h", seconds / 3_600),
            seconds => write!(out, "{} days", seconds / 86_400),
        }
    }
}

pub(crate) fn now_seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Checks whether a volume could be restored at `root`.
///
/// # Errors
///
/// [`RestoreError`] if the data lender cannot be asked; a restore that would fail is a `refusal`.
pub fn check_restore(root: &Path, request: &RestoreRequest<'_>) -> Result<RestoreCheck, RestoreError> {
    check_with_key(root, request).map(|(check, _)| check)
}

/// The key of a volume's records, and the owner that it makes of its holder.
pub(super) type OwnKey = Result<(DataKey, JournalOwner), UnwrapError>;

/// Checks like [`check_restore`]. Returns also the volume's key, which exists unless the restore is refused.
pub(super) fn check_with_key(
    root: &Path,
    request: &RestoreRequest<'_>,
) -> Result<(RestoreCheck, OwnKey), RestoreError> {
    let (description, key) = look_with_key(request)?;
    let copy = copy_facts(&description);
    let mut check = RestoreCheck {
        copy,
        journal: None,
        refusal: None,
    };
    if description.condition != ReplicaCondition::Following {
        let condition = description.condition;
        check.refusal = Some(RestoreError::NotWhole { condition });
        return Ok((check, key));
    }
    // Without the key nobody can ask the members: it proves whose the journal is.
    let data_key = match &key {
        Ok((data_key, _)) => data_key,
        Err(error) => {
            check.refusal = Some(RestoreError::Key(*error));
            return Ok((check, key));
        }
    };
    let mut journal = Journal::check_copy(
        root,
        &description.view,
        description.end.lsn,
        data_key,
        &of_copy(request.config, &description),
    );
    check.refusal = journal.refusal.take().map(RestoreError::Journal);
    check.journal = Some(journal);
    if may_live(&check.copy) && !request.client_is_off {
        let heard = check.copy.heard;
        check.refusal = Some(RestoreError::LiveClient { heard });
    }
    Ok((check, key))
}

/// Asks for the copy's description: as anybody, for the wrapped key, and as the owner that the key proves.
fn look_with_key(request: &RestoreRequest<'_>) -> Result<(ReplicaDescription, OwnKey), RestoreError> {
    let RestoreRequest {
        from,
        volume,
        recovery,
        ..
    } = *request;
    let told = claim::look(from, volume, None, LOOK_TIMEOUT)?;
    let identity = told.follow.identity;
    let key = match unwrap(&told.follow.wrapped_key, &identity, recovery) {
        Ok(key) => key,
        Err(error) => return Ok((told, Err(error))),
    };
    let owner = JournalOwner::of(identity.journal, &key).map_err(|NotItsKey| RestoreError::Malformed)?;
    let description = claim::look(from, volume, Some(&owner), LOOK_TIMEOUT)?;
    match description.follow.identity == identity {
        true => Ok((description, Ok((key, owner)))),
        false => Err(RestoreError::Malformed),
    }
}

/// Options for recovering the journal of a restored volume: only the copy's members, and no new ones.
pub(super) fn of_copy(config: &JournalConfig, description: &ReplicaDescription) -> JournalConfig {
    JournalConfig {
        replica_origin: Some(ReplicaOrigin {
            closed: description.closed,
        }),
        lenders: Vec::new(),
        members: 0,
        members_min: None,
        multicast: None,
        ..config.clone()
    }
}

fn copy_facts(description: &ReplicaDescription) -> CopyFacts {
    let by_contact = || {
        now_seconds()
            .saturating_sub(description.contact)
            .saturating_mul(1000)
    };
    CopyFacts {
        bytes: description.follow.bytes,
        condition: description.condition,
        heard: Duration::from_millis(description.heard_ms.unwrap_or_else(by_contact)),
        closed: description.closed.is_some(),
        claim: (description.view.epoch > Epoch(0)).then(|| ClaimFacts::of(&description.view)),
    }
}

/// Whether the volume's client may be running. A client that closed the volume has said so, and one whose
/// copy was claimed since is refused there already.
fn may_live(copy: &CopyFacts) -> bool {
    copy.heard < CLIENT_ALIVE_WINDOW && !copy.closed && copy.claim.as_ref().is_some_and(|claim| claim.served)
}

/// Time since the last message of the client of a copy to be taken over, if it may be running.
pub(crate) fn client_seen_within_window(standing: &ReplicaHeader) -> Option<Duration> {
    let heard = Duration::from_secs(now_seconds().saturating_sub(standing.contact));
    (heard < CLIENT_ALIVE_WINDOW && standing.closed.is_none()).then_some(heard)
}

/// State of the copy before its own volume opens.
pub(crate) enum CopyClaim {
    /// The data lender does not answer, or has no copy yet.
    None,
    /// The volume may open.
    Free,
    /// Another writer has claimed the copy in a later epoch.
    Claimed(Box<ReplicaDescription>),
}

/// Asks the data lender whether another writer has claimed the copy of the volume whose newest view is
/// `ours`.
pub(crate) fn ask_copy(
    lender: &DataLenderEndpoint,
    volume: VolumeId,
    owner: &JournalOwner,
    ours: &View,
) -> CopyClaim {
    match claim::look(lender, volume, Some(owner), OPENING_TIMEOUT) {
        Ok(copy) if ours.is_fenced_by(&copy.view) || copy.condition == ReplicaCondition::TakenOver => {
            CopyClaim::Claimed(Box::new(copy))
        }
        Ok(_) => CopyClaim::Free,
        // The feeder logs what is wrong with the data lender.
        Err(_) => CopyClaim::None,
    }
}

/// Describes in words the claim of the copy of the volume whose newest view is `ours`.
pub(super) fn describe_claim(
    lender: &DataLenderEndpoint,
    volume: VolumeId,
    owner: &JournalOwner,
    ours: &View,
) -> String {
    match ask_copy(lender, volume, owner, ours) {
        CopyClaim::Claimed(copy) => ClaimFacts::of(&copy.view).to_string(),
        CopyClaim::Free | CopyClaim::None => "the claimant is not known".to_owned(),
    }
}
