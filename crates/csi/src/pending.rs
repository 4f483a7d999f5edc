//! Volumes that a request works on: no second request works on the same one.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::refusal::VolumeRefusal;
use crate::volume_id::VolumeId;

/// Table of the volumes that requests work on.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingRequests(Arc<Mutex<HashSet<VolumeId>>>);

/// A volume that this request alone works on, until this is dropped.
#[derive(Debug)]
pub(crate) struct PendingVolume {
    table: PendingRequests,
    id: VolumeId,
}

impl PendingRequests {
    /// Enters a volume.
    ///
    /// # Errors
    ///
    /// Another request works on it. Orchestrators repeat requests whose answer is late.
    pub(crate) fn enter(&self, id: &VolumeId) -> Result<PendingVolume, VolumeRefusal> {
        let mut volumes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !volumes.insert(id.clone()) {
            return Err(VolumeRefusal::Busy(id.to_string()));
        }
        Ok(PendingVolume {
            table: self.clone(),
            id: id.clone(),
        })
    }
}

impl Drop for PendingVolume {
    fn drop(&mut self) {
        let mut volumes = self.table.0.lock().unwrap_or_else(PoisonError::into_inner);
        volumes.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_request_at_a_time_works_on_a_volume() {
        let (table, one) = (PendingRequests::default(), VolumeId::of_name("one"));
        let first = table.enter(&one).unwrap();
        assert!(matches!(table.enter(&one), Err(VolumeRefusal::Busy(_))));
        table.enter(&VolumeId::of_name("other")).unwrap();
        drop(first);
        table.enter(&one).unwrap();
    }
}
