//! A data lender's copy made a volume of its own, where it is.
//!
//! 1. Refuse a copy that is not whole, or whose client was heard a moment ago.
//! 2. Bring its log into its image.
//! 3. Recover its journal, as a restore does: all members must answer, and are asked before anything is
//!    claimed (rule 18). What they hold goes into its log.
//! 4. Mark it as taken over. Only then the members are released.
//!
//! A crash before 4 leaves a copy that names the members, who still hold what they had: it is taken over
//! again. After 4 it is a volume whose log is complete, and which is opened as any other.

use netram_block::{Disk, DiskOptions};
use netram_block_machine::{ReplicaCondition, ReplicaHeader};
use netram_journal::{Journal, JournalConfig, JournalFollower, JournalRecovery, ReplicaOrigin};
use netram_proto::port::IoError;

use crate::error::VolumeOpenError;
use crate::paths::VolumePaths;
use crate::replica::{Ago, ReplicaHeaderFile, client_seen_within_window};
use crate::settings::VolumeSettings;

/// Whether the directory may be opened as a volume: any may that is no data lender's copy. `Some`: it is to
/// be taken over.
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
            "it is no data lender's copy, and needs no taking over: attach or serve it".to_owned(),
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
            "it is a data lender's copy of another machine's volume; `netram disk takeover` makes it a volume of its \
             own, after which its client is refused"
                .to_owned(),
        )),
        Some(condition) => Err(refused(format!(
            "it is a data lender's copy, and {condition}: it cannot stand in for the volume"
        ))),
    }
}

/// Steps 2 to 4. `standing`: as it was admitted.
pub(crate) fn recover(
    place: &VolumePaths,
    standing: ReplicaHeader,
    config: JournalConfig,
) -> Result<(Journal, JournalRecovery), VolumeOpenError> {
    settle(place)?;
    recover_and(place, standing, config, &mut || mark(place, standing))
}

/// Step 3, and `complete` in the place of step 4.
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
            why: format!("it could not be marked as taken over: {why}"),
        },
        None => error.into(),
    })
}

/// How the journal of a copy is recovered.
pub(crate) fn of_replica(standing: ReplicaHeader, config: JournalConfig) -> JournalConfig {
    JournalConfig {
        replica_origin: Some(ReplicaOrigin {
            closed: standing.closed,
        }),
        ..config
    }
}

/// Brings a copy's log into its image, so that the recovery of its journal has all of the log's room for what
/// the members hold: the client had given up what was in its own image, and this one may be further behind.
fn settle(place: &VolumePaths) -> Result<(), VolumeOpenError> {
    let log = JournalFollower::open(&place.journal())?;
    if log.damaged_below().is_some() {
        // A trim would store a lower end, and the journal's own recovery must see that records are missing:
        // it has the members to take them from, or refuses.
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

/// The copy's journal has everything, and its lock is held: from here on it is a volume like any other.
fn mark(place: &VolumePaths, admitted: ReplicaHeader) -> Result<(), String> {
    let mut file = ReplicaHeaderFile::open(place.root()).map_err(|error| error.to_string())?;
    let now = file.newest();
    if (now.condition, now.closed) != (admitted.condition, admitted.closed) {
        // What was asked of the members rested on what it said.
        return Err("its client came back meanwhile; try again".to_owned());
    }
    let taken = ReplicaHeader {
        condition: ReplicaCondition::TakenOver,
        ..now
    };
    file.store(taken).map_err(|error| error.to_string())
}
