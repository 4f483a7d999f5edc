//! Giving a volume a recovery key, in place of the one that it had, if any.

use std::io;
use std::path::PathBuf;

use netram_block::VolumeSuperblock;
use netram_block_machine::ReplicaIdentity;
use netram_journal::durable;
use netram_journal::seal::DataKey;

use crate::error::VolumeRekeyError;
use crate::file::VolumeFile;
use crate::paths::VolumePaths;
use crate::recovery_key::RecoveryKey;

impl VolumePaths {
    /// Draws a recovery key, and stores the key of the volume's records wrapped under it. Durable on return.
    /// The former recovery key opens nothing that a data lender gives from its next session with the volume
    /// on. The volume may be open, and may be a data lender's copy.
    ///
    /// # Errors
    ///
    /// [`VolumeRekeyError`] if a file cannot be read or written; the former key then stays.
    pub fn rekey(&self) -> Result<RecoveryKey, VolumeRekeyError> {
        let failed = |path: PathBuf| move |source: io::Error| VolumeRekeyError::File { path, source };
        let superblock = VolumeFile::open(&self.superblock(), false).map_err(failed(self.superblock()))?;
        let superblock = VolumeSuperblock::read(&superblock).map_err(|cause| VolumeRekeyError::Volume {
            path: self.root().to_path_buf(),
            cause,
        })?;
        let data = self.data_key();
        let key = DataKey::load(&data).map_err(failed(data))?;
        let identity = ReplicaIdentity {
            volume: superblock.volume.0,
            journal: superblock.journal,
        };
        let recovery = RecoveryKey::generate();
        let wrapped = recovery.wrap(&identity, &key);
        durable::replace(&self.recovery(), &wrapped).map_err(failed(self.recovery()))?;
        Ok(recovery)
    }
}
