//! Checks before a volume opens, and before anything is claimed (rule 18). The journal asks its members; this
//! module asks the data lender that keeps a copy.

use std::path::Path;

use netram_block::{VolumeId, VolumeSuperblock};
use netram_journal::owner::JournalOwner;
use netram_journal::seal::DataKey;
use netram_journal::{Journal, JournalInspector, NewestClaim, OpenCheck};
use netram_transport::Security;

use crate::error::VolumeOpenError;
use crate::file::VolumeFile;
use crate::paths::VolumePaths;
use crate::replica::restore::DataLenderEndpoint;
use crate::replica::{ClaimFacts, CopyClaim, ask_copy};
use crate::settings::VolumeSettings;
use crate::takeover;

/// Result of checking whether a volume would open.
#[derive(Debug)]
pub struct VolumeCheck {
    /// The journal and its members; `None` if they were not asked.
    pub journal: Option<OpenCheck>,
    /// Why the volume would not open; `None` if it would.
    pub refusal: Option<VolumeOpenError>,
}

pub(crate) fn check(path: &Path, settings: &VolumeSettings) -> Result<VolumeCheck, VolumeOpenError> {
    let place = VolumePaths::at(path);
    let mut config = settings.journal_config()?;
    let security = settings.data_security(&config.security)?;
    let refused = |refusal| VolumeCheck {
        journal: None,
        refusal: Some(refusal),
    };
    let standing = match takeover::admit(&place, settings) {
        Ok(standing) => standing,
        Err(refusal) => return Ok(refused(refusal)),
    };
    match standing {
        Some(standing) => config = takeover::of_replica(standing, config),
        None => match before_opening(&place, settings, &security) {
            Ok(newest) => config.newest = newest,
            Err(refusal) => return Ok(refused(refusal)),
        },
    }
    let mut journal = Journal::check(&place.journal(), &config)?;
    Ok(VolumeCheck {
        refusal: journal.refusal.take().map(VolumeOpenError::Journal),
        journal: Some(journal),
    })
}

/// Asks the data lender, if there is one, whether another writer has claimed the volume's copy. Returns the
/// claim to make if the operator declares this directory the newest.
pub(crate) fn before_opening(
    place: &VolumePaths,
    settings: &VolumeSettings,
    security: &Security,
) -> Result<Option<NewestClaim>, VolumeOpenError> {
    let path = || place.root().to_path_buf();
    let newest = || settings.newest.then(NewestClaim::default);
    let Some(address) = &settings.data_lender else {
        return Ok(newest());
    };
    let journal = JournalInspector::open(&place.journal())?;
    if journal.in_use() {
        // Opening the journal will report which process has it.
        return Ok(newest());
    }
    let lender = DataLenderEndpoint {
        address: address.clone(),
        security: security.clone(),
    };
    let key = DataKey::load(&place.data_key());
    let key = key.map_err(|source| VolumeOpenError::File {
        path: place.data_key(),
        source,
    })?;
    // Opening the journal will report that the key is another one's.
    let id = journal.view().journal;
    let owner = JournalOwner::of(id, &key).unwrap_or_else(|_| JournalOwner::none(id));
    match ask_copy(&lender, volume_of(place)?, &owner, journal.view()) {
        CopyClaim::None if settings.newest => Err(VolumeOpenError::DataLenderSilent {
            path: path(),
            address: address.to_string(),
        }),
        CopyClaim::None | CopyClaim::Free => Ok(newest()),
        CopyClaim::Claimed(copy) => {
            let (path, claim) = (path(), ClaimFacts::of(&copy.view));
            if !settings.newest {
                return Err(VolumeOpenError::Claimed { path, claim });
            }
            if copy.is_of_others(journal.view()) {
                return Err(VolumeOpenError::NotNewest { path, claim });
            }
            Ok(Some(NewestClaim {
                copy: Some(copy.view),
            }))
        }
    }
}

fn volume_of(place: &VolumePaths) -> Result<VolumeId, VolumeOpenError> {
    let path = place.superblock();
    let file = VolumeFile::open(&path, false).map_err(|source| VolumeOpenError::File { path, source })?;
    VolumeSuperblock::read(&file)
        .map(|superblock| superblock.volume)
        .map_err(|cause| VolumeOpenError::Volume {
            path: place.root().to_path_buf(),
            cause,
        })
}
