//! Takeover: turning a data lender's copy into a volume of its own, in place.
//!
//! 1. Refuse a copy that is not whole, or whose client sent a message recently.
//! 2. Apply its log to its image.
//! 3. Recover its journal as a restore does: all members must answer, and are asked before anything is
//!    claimed (rule 18). Their records go into its log.
//! 4. Mark it as taken over. Only then are the members released.
//!
//! A crash before step 4 leaves a copy that names the members, which still hold their records: it is taken
//! over again. After step 4 it is a volume with a complete log, and is opened like any other.

use netram_block::{Disk, DiskOptions};
use netram_block_machine::{ReplicaCondition, ReplicaHeader};
use netram_journal::{Journal, JournalConfig, JournalFollower, JournalRecovery, ReplicaOrigin};
use netram_proto::port::IoError;

use crate::error::VolumeOpenError;
use crate::paths::VolumePaths;
use crate::replica::{Ago, ReplicaHeaderFile, client_seen_within_window};
use crate::settings::VolumeSettings;

/// Checks whether the directory may be opened as a volume, as any may that is no data lender's copy. `Some`:
/// the copy must be taken over.
pub(crate) fn admit(
    place: &VolumePaths,
    settings: &VolumeSettings,
) -> Result<Option<ReplicaHeader>, VolumeOpenError> {
    let refused = |why: String| VolumeOpenError::Replica {
        path: place.root().to_path_buf(),
        why,
    };
    let standing = ReplicaHeaderFile::look(place.root()).map_err(|error| refused(error.to_string()))?;
    match standing.map(|standing| standing.condition) {
        None if settings.take_over => Err(refused(
            "this is not a data lender's copy, so no takeover is needed: attach or serve it".to_owned(),
        )),
        None | Some(ReplicaCondition::TakenOver) => Ok(None),
        Some(ReplicaCondition::Following) if settings.take_over => {
            let heard = standing.as_ref().and_then(client_seen_within_window);
            match heard.filter(|_| !settings.client_is_off) {
                None => Ok(standing),
                Some(heard) => Err(VolumeOpenError::LiveClient {
                    path: place.root().to_path_buf(),
                    heard: Ago(heard).to_string(),
                }),
            }
        }
        Some(ReplicaCondition::Following) => Err(refused(
            "this is a data lender's copy of another machine's volume; `netram volume takeover` turns it into a volume of its \
             own, after which its client is refused"
                .to_owned(),
        )),
        Some(condition) => Err(refused(format!(
            "this is a data lender's copy in condition `{condition}`: it cannot replace the volume"
        ))),
    }
}

/// Steps 2 to 4. `standing` is the header that [`admit`] returned.
pub(crate) fn recover(
    place: &VolumePaths,
    standing: ReplicaHeader,
    config: JournalConfig,
) -> Result<(Journal, JournalRecovery), VolumeOpenError> {
    settle(place)?;
    recover_and(place, standing, config, &mut || mark(place, standing))
}

/// Step 3, then `complete` in place of step 4.
fn recover_and(
    place: &VolumePaths,
    standing: ReplicaHeader,
    config: JournalConfig,
    complete: &mut dyn FnMut() -> Result<(), String>,
) -> Result<(Journal, JournalRecovery), VolumeOpenError> {
    let config = of_replica(standing, config);
    let mut unmarked = None;
    let recovered = Journal::open_and(&place.journal(), config, &mut || {
        complete().map_err(|why| {
            unmarked = Some(why);
            IoError::EIO
        })
    });
    recovered.map_err(|error| match unmarked {
        Some(why) => VolumeOpenError::Replica {
            path: place.root().to_path_buf(),
            why: format!("the copy could not be marked as taken over: {why}"),
        },
        None => error.into(),
    })
}

/// Options for recovering the journal of a copy.
pub(crate) fn of_replica(standing: ReplicaHeader, config: JournalConfig) -> JournalConfig {
    JournalConfig {
        replica_origin: Some(ReplicaOrigin {
            closed: standing.closed,
        }),
        ..config
    }
}

/// Applies a copy's log to its image, so that the journal's recovery has the whole log's room for the
/// members' records. The client trimmed records that its own image had; this image may lag further.
fn settle(place: &VolumePaths) -> Result<(), VolumeOpenError> {
    let log = JournalFollower::open(&place.journal())?;
    if log.damaged_below().is_some() {
        // A trim would store a lower end, but the journal's own recovery must see that records are missing.
        // It gets them from the members, or refuses.
        return Ok(());
    }
    let options = DiskOptions::new(log.id());
    let wrong = |cause| VolumeOpenError::Volume {
        path: place.root().to_path_buf(),
        cause,
    };
    let disk = Disk::open(log, place.open_files(false)?, options).map_err(wrong)?;
    disk.drain()
        .map_err(|error| wrong(netram_block::DiskOpenError::Apply(error)))
}

/// The copy's journal is complete and locked: from here on it is a volume like any other.
fn mark(place: &VolumePaths, admitted: ReplicaHeader) -> Result<(), String> {
    let mut file = ReplicaHeaderFile::open(place.root()).map_err(|error| error.to_string())?;
    let now = file.newest();
    if (now.condition, now.closed) != (admitted.condition, admitted.closed) {
        // The questions to the members were based on the former header.
        return Err("the copy's client has reconnected in the meantime; try again".to_owned());
    }
    let taken = ReplicaHeader {
        condition: ReplicaCondition::TakenOver,
        ..now
    };
    file.store(taken).map_err(|error| error.to_string())
}
