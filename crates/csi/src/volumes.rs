//! The volumes of one directory, driven by the program `netram`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::class::VolumeClass;
use crate::host::{HostMachine, run};
use crate::record::{RecordDirectory, VolumeRecord};
use crate::refusal::{VolumeRefusal, failed};
use crate::volume_id::VolumeId;

/// Bytes of a volume whose size was left open.
const BYTES_DEFAULT: u64 = 1 << 30;
/// Unit of a volume's size.
const BLOCK_BYTES: u64 = 4096;
/// Maximum bytes of a volume.
pub(crate) const BYTES_MAX: u64 = 16 << 40;
/// Directory of records, beside the volumes.
const RECORDS: &str = ".netram-csi";
/// File in a secret with the key of the lenders.
pub(crate) const KEY: &str = "key";

/// Bounds of a volume's size.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SizeRange {
    /// Least number of bytes; 0 leaves it open.
    pub least: u64,
    /// Greatest number of bytes; 0 leaves it open.
    pub most: u64,
}

impl SizeRange {
    /// Whether a volume of that size will do.
    pub(crate) fn admits(self, bytes: u64) -> bool {
        bytes >= self.least && (self.most == 0 || bytes <= self.most)
    }

    /// Returns the size to make.
    ///
    /// # Errors
    ///
    /// No multiple of a block is within the bounds.
    pub(crate) fn bytes(self) -> Result<u64, VolumeRefusal> {
        let wanted = match (self.least, self.most) {
            (0, 0) => BYTES_DEFAULT,
            (0, most) => BYTES_DEFAULT.min(most / BLOCK_BYTES * BLOCK_BYTES),
            (least, _) => least.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(u64::MAX),
        };
        if !self.admits(wanted) || !(BLOCK_BYTES..=BYTES_MAX).contains(&wanted) {
            return Err(VolumeRefusal::OutOfRange(format!(
                "a volume has a multiple of {BLOCK_BYTES} bytes, at most {BYTES_MAX}: not {} to {} bytes",
                self.least, self.most
            )));
        }
        Ok(wanted)
    }
}

/// What `netram volume status --json` and `list --json` tell of a volume.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct VolumeState {
    /// The volume's directory.
    pub volume: PathBuf,
    /// Bytes of the device; `None` if its files cannot be read.
    pub bytes: Option<u64>,
    attached: Option<AttachedState>,
}

#[derive(Clone, Debug, Deserialize)]
struct AttachedState {
    device: PathBuf,
    alive: bool,
}

impl VolumeState {
    /// Returns the device, if the volume is attached and served.
    pub(crate) fn device(&self) -> Option<&Path> {
        let attached = self.attached.as_ref().filter(|attached| attached.alive);
        attached.map(|attached| attached.device.as_path())
    }
}

/// The volumes of one directory of this machine.
#[derive(Clone, Debug)]
pub(crate) struct VolumeDirectory {
    /// The machine.
    pub host: HostMachine,
    /// The directory, as the machine knows it.
    directory: PathBuf,
    /// Records of the volumes.
    pub records: RecordDirectory,
    /// Where recovery keys of volumes with a data lender go.
    recovery_keys: Option<PathBuf>,
}

impl VolumeDirectory {
    /// Opens the directory, which is made if it is missing.
    pub(crate) fn open(
        host: HostMachine,
        directory: PathBuf,
        recovery_keys: Option<PathBuf>,
    ) -> Result<VolumeDirectory, VolumeRefusal> {
        let records = RecordDirectory::open(host.reach(&directory).join(RECORDS))?;
        Ok(VolumeDirectory {
            host,
            directory,
            records,
            recovery_keys,
        })
    }

    /// Returns the directory, as this process reaches it.
    pub(crate) fn reached(&self) -> PathBuf {
        self.host.reach(&self.directory)
    }

    fn path(&self, id: &VolumeId) -> PathBuf {
        self.directory.join(id.as_str())
    }

    /// Returns a place for a volume's file system that is mounted by this driver alone.
    pub(crate) fn own_mount(&self, id: &VolumeId) -> PathBuf {
        self.directory.join(RECORDS).join("mounted").join(id.as_str())
    }

    /// Whether there is such a volume, or the rest of one.
    pub(crate) fn exists(&self, id: &VolumeId) -> bool {
        self.host.reach(&self.path(id)).exists()
    }

    /// Returns a volume's state.
    ///
    /// # Errors
    ///
    /// [`VolumeRefusal::NotFound`] if there is no such volume.
    pub(crate) fn state(&self, id: &VolumeId) -> Result<VolumeState, VolumeRefusal> {
        if !self.exists(id) {
            return Err(VolumeRefusal::NotFound(id.to_string()));
        }
        let mut command = self.host.netram();
        command.args(["volume", "status", "--json"]).arg(self.path(id));
        parse(&run(&mut command)?)
    }

    /// Returns all volumes, in the order of their ids.
    pub(crate) fn list(&self) -> Result<BTreeMap<VolumeId, VolumeState>, VolumeRefusal> {
        let mut command = self.host.netram();
        command.args(["volume", "list", "--json"]).arg(&self.directory);
        let states: Vec<VolumeState> = parse(&run(&mut command)?)?;
        let named = states.into_iter().filter_map(|state| {
            let id = VolumeId::parse(state.volume.file_name()?.to_str()?)?;
            Some((id, state))
        });
        Ok(named.collect())
    }

    /// Creates a volume, unless it exists as asked. Returns its id and its bytes.
    pub(crate) fn create(
        &self,
        name: &str,
        size: SizeRange,
        class: &VolumeClass,
        key: Option<&str>,
    ) -> Result<(VolumeId, u64), VolumeRefusal> {
        let id = VolumeId::of_name(name);
        let record = self.records.read(&id)?;
        if self.exists(&id) {
            let bytes = self.state(&id)?.bytes.unwrap_or_default();
            let is_same = record.is_none_or(|record| record.name == name && record.parameters == class.given);
            if !is_same || !size.admits(bytes) {
                return Err(VolumeRefusal::Exists(format!(
                    "there is a volume {name} of {bytes} bytes that was asked for with other parameters or another size"
                )));
            }
            return Ok((id, bytes));
        }
        let bytes = size.bytes()?;
        // The record comes first: a volume without one would count as created with any parameters.
        let fresh = VolumeRecord {
            name: name.to_owned(),
            parameters: class.given.clone(),
            file_system: None,
        };
        self.records.write(&id, &fresh)?;
        let mut command = self.host.netram();
        command
            .args(["volume", "create", "--json", "--size", &format!("{bytes}B")])
            .args(&class.flags);
        if let Some(key) = key {
            let file = self.records.write_key(&id, key)?;
            command
                .arg("--key-file")
                .arg(self.directory.join(RECORDS).join(file));
        }
        if class.has_data_lender {
            command
                .arg("--recovery-key-file")
                .arg(self.recovery_key_file(&id)?);
        }
        if let Err(error) = run(command.arg(self.path(&id))) {
            self.records.remove(&id)?;
            return Err(error);
        }
        Ok((id, bytes))
    }

    fn recovery_key_file(&self, id: &VolumeId) -> Result<PathBuf, VolumeRefusal> {
        let directory = self.recovery_keys.as_ref().ok_or_else(|| {
            VolumeRefusal::Invalid(
                "a volume with a data lender has a recovery key, and netram-csi was started without --recovery-keys \
                 DIRECTORY to put it into"
                    .to_owned(),
            )
        })?;
        Ok(directory.join(format!("{id}.recovery")))
    }

    /// Deletes a volume with everything on it, and what only lenders hold of it.
    pub(crate) fn delete(&self, id: &VolumeId) -> Result<(), VolumeRefusal> {
        if self.exists(id) {
            let mut command = self.host.netram();
            command.args(["volume", "delete", "--yes", "--force"]);
            let deleted = run(command.arg(self.path(id)));
            deleted.map_err(|error| match self.state(id) {
                Ok(state) if state.device().is_some() => VolumeRefusal::Precondition(error.to_string()),
                _ => error,
            })?;
        }
        self.records.remove(id)
    }

    /// Attaches a volume, unless it is attached. Returns its device.
    pub(crate) fn attach(&self, id: &VolumeId) -> Result<PathBuf, VolumeRefusal> {
        if let Some(device) = self.state(id)?.device() {
            return Ok(device.to_path_buf());
        }
        let mut command = self.host.lasting_netram();
        command.args(["volume", "attach", "--name", id.as_str()]);
        run(command.arg(self.path(id)))?;
        let state = self.state(id)?;
        let device = state.device().ok_or_else(|| {
            VolumeRefusal::Failed(format!(
                "the server of {id} ended at once; /run/netram-volume/{id}/log says why"
            ))
        })?;
        Ok(device.to_path_buf())
    }

    /// Detaches a volume, unless it is detached.
    pub(crate) fn detach(&self, id: &VolumeId) -> Result<(), VolumeRefusal> {
        if self.state(id)?.attached.is_some() {
            let mut command = self.host.netram();
            run(command.args(["volume", "detach"]).arg(self.path(id)))?;
        }
        Ok(())
    }

    /// Makes a volume larger, unless it is large enough. Returns its bytes.
    pub(crate) fn grow(&self, id: &VolumeId, size: SizeRange) -> Result<u64, VolumeRefusal> {
        let bytes = self.state(id)?.bytes.unwrap_or_default();
        if size.admits(bytes) {
            return Ok(bytes);
        }
        if size.most != 0 && bytes > size.most {
            return Err(VolumeRefusal::OutOfRange(format!(
                "volume {id} has {bytes} bytes, and a volume never shrinks"
            )));
        }
        let wanted = size.bytes()?;
        let mut command = self.host.netram();
        command.args(["volume", "grow", "--size", &format!("{wanted}B")]);
        run(command.arg(self.path(id)))?;
        Ok(wanted)
    }

    /// Returns the bytes that are free in the directory's file system.
    pub(crate) fn free_bytes(&self) -> Result<u64, VolumeRefusal> {
        let path = self.reached();
        let free = rustix::fs::statvfs(&path).map_err(|error| failed(&path)(error.into()))?;
        Ok(free.f_bavail.saturating_mul(free.f_frsize))
    }
}

/// Parses what a command of `netram` printed.
fn parse<T: for<'a> Deserialize<'a>>(text: &str) -> Result<T, VolumeRefusal> {
    serde_json::from_str(text).map_err(|error| {
        VolumeRefusal::Failed(format!(
            "netram printed what this netram-csi does not understand ({error}): install the same version of both"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_within_the_bounds_or_refused() {
        let bytes = |least, most| SizeRange { least, most }.bytes().ok();
        assert_eq!(bytes(0, 0), Some(1 << 30));
        assert_eq!(bytes(0, 1 << 20), Some(1 << 20));
        assert_eq!(bytes(5000, 0), Some(8192));
        assert_eq!(bytes(5000, 6000), None, "no multiple of a block is between");
        assert_eq!(bytes(BYTES_MAX + 1, 0), None);
        assert_eq!(bytes(u64::MAX, 0), None);
        assert_eq!(bytes(0, 100), None);
    }
}
