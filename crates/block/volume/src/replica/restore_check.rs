//! What a restore, a take-over and an opening ask before they change anything (rule 18): what the data
//! lender's copy is, who claimed it, when its client was heard, and what the members hold.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use netram_block::VolumeId;
use netram_block_machine::{ReplicaCondition, ReplicaDescription, ReplicaHeader};
use netram_journal::{Journal, JournalConfig, OpenCheck, ReplicaOrigin};
use netram_proto::journal::{ClaimNote, View};

use super::claim;
use super::restore::{DataLenderEndpoint, RestoreError};

/// A client that was heard less than this ago may be running: it pings twice a second, and one that is
/// restarted is back within seconds.
pub const CLIENT_ALIVE_WINDOW: Duration = Duration::from_secs(10);
/// How long the data lender may take to say what its copy is: it may have to open it first.
const LOOK_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an opening waits for the data lender's word. Without it the volume opens, as it does while the
/// data lender is away.
const OPENING_TIMEOUT: Duration = Duration::from_secs(2);

/// What a restore would come to.
#[derive(Debug)]
pub struct RestoreCheck {
    /// What the copy is.
    pub copy: CopyFacts,
    /// The members, and whether they suffice; `None`: they were not asked, for the copy is not whole.
    pub journal: Option<OpenCheck>,
    /// Why there would be no volume.
    pub refusal: Option<RestoreError>,
}

/// A copy, as the data lender describes it.
#[derive(Clone, Debug)]
pub struct CopyFacts {
    /// The volume's size.
    pub bytes: u64,
    /// Whether it is whole.
    pub condition: ReplicaCondition,
    /// How long ago its client was heard.
    pub heard: Duration,
    /// The volume had been closed.
    pub closed: bool,
    /// Who speaks for it, or claimed it: its epoch, who that is and whether that reign ever served.
    pub claim: ClaimFacts,
}

/// Who claimed a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimFacts {
    /// The reign.
    pub epoch: u32,
    /// Which command on which machine; a number where nothing else is known.
    pub by: String,
    /// How long ago, if that is known.
    pub ago: Option<Duration>,
    /// The reign has served: a volume has been written to in it, or was restored.
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
        write!(out, "`{}` claimed it under epoch {}", self.by, self.epoch)?;
        if let Some(ago) = self.ago {
            write!(out, ", {} ago", Ago(ago))?;
        }
        out.write_str(match self.served {
            true => "",
            false => ", and never served",
        })
    }
}

/// A time that has passed, roughly.
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

/// Asks what restoring `volume` at `root` would come to. `client_is_off`: the operator says that the volume's
/// client does not run any more.
pub fn check_restore(
    root: &Path,
    from: &DataLenderEndpoint,
    volume: VolumeId,
    config: &JournalConfig,
    client_is_off: bool,
) -> Result<RestoreCheck, RestoreError> {
    let description = claim::look(from, volume, LOOK_TIMEOUT)?;
    let copy = copy_facts(&description);
    let mut check = RestoreCheck {
        copy,
        journal: None,
        refusal: None,
    };
    if description.condition != ReplicaCondition::Following {
        let condition = description.condition;
        check.refusal = Some(RestoreError::NotWhole { condition });
        return Ok(check);
    }
    let mut journal = Journal::check_copy(
        root,
        &description.view,
        description.end.lsn,
        &of_copy(config, &description),
    );
    check.refusal = journal.refusal.take().map(RestoreError::Journal);
    check.journal = Some(journal);
    if may_live(&check.copy) && !client_is_off {
        let heard = check.copy.heard;
        check.refusal = Some(RestoreError::LiveClient { heard });
    }
    Ok(check)
}

/// How the journal of a restored volume is recovered: with the copy's members, and nobody joins.
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
        claim: ClaimFacts::of(&description.view),
    }
}

/// Whether the volume's client may be running. One that has closed the volume said so, and one whose copy
/// somebody has claimed since is refused there already.
fn may_live(copy: &CopyFacts) -> bool {
    copy.heard < CLIENT_ALIVE_WINDOW && !copy.closed && copy.claim.served
}

/// Whether the client of a copy that is taken over, where it is, may be running: how long ago it was heard.
pub(crate) fn client_seen_within_window(standing: &ReplicaHeader) -> Option<Duration> {
    let heard = Duration::from_secs(now_seconds().saturating_sub(standing.contact));
    (heard < CLIENT_ALIVE_WINDOW && standing.closed.is_none()).then_some(heard)
}

/// The copy's word before its own volume opens.
pub(crate) enum CopyClaim {
    /// The data lender does not answer now, or has no copy yet.
    None,
    /// The volume may open.
    Free,
    /// Somebody else has claimed the copy under a later reign.
    Claimed(Box<ReplicaDescription>),
}

/// Asks the data lender whether somebody has claimed the copy of the volume whose newest view is `ours`.
pub(crate) fn ask_copy(lender: &DataLenderEndpoint, volume: VolumeId, ours: &View) -> CopyClaim {
    match claim::look(lender, volume, OPENING_TIMEOUT) {
        Ok(copy) if ours.is_fenced_by(&copy.view) || copy.condition == ReplicaCondition::TakenOver => {
            CopyClaim::Claimed(Box::new(copy))
        }
        Ok(_) => CopyClaim::Free,
        // What is wrong with it the feeder says, over and over.
        Err(_) => CopyClaim::None,
    }
}

/// Who has claimed the copy of the volume whose newest view is `ours`, in words.
pub(super) fn describe_claim(lender: &DataLenderEndpoint, volume: VolumeId, ours: &View) -> String {
    match ask_copy(lender, volume, ours) {
        CopyClaim::Claimed(copy) => ClaimFacts::of(&copy.view).to_string(),
        CopyClaim::Free | CopyClaim::None => "who did cannot be said".to_owned(),
    }
}
