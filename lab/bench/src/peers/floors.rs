//! netram's commits, and the floors of all commits.

use std::path::PathBuf;
use std::time::Duration;

use netram_transport::WaitPolicy;

use super::{COMMIT_BYTES, PeerKind, PeerSubject};
use crate::commit::setup::CommitSetup;
use crate::commit::{CommitEffort, CommitSpec};
use crate::disk;
use crate::error::BenchError;
use crate::histogram::LatencySummary;
use crate::testbed::Testbed;

/// Syncs of a round for each second of it, on a disk of any speed.
const SYNCS_PER_SECOND: f64 = 400.0;

/// A journal with its lenders, or an echo process in their place.
struct NetramSubject {
    peer: PeerKind,
    spec: CommitSpec,
    setup: CommitSetup,
}

/// Starts netram, or its floor.
pub(super) fn netram(site: &Testbed, peer: PeerKind) -> Result<Box<dyn PeerSubject>, BenchError> {
    let spins = matches!(peer, PeerKind::NetramSpin | PeerKind::Exchange);
    let spec = CommitSpec {
        record_bytes: COMMIT_BYTES,
        members: if peer == PeerKind::NetramTwo { 2 } else { 1 },
        wait: if spins {
            WaitPolicy::Spin
        } else {
            WaitPolicy::default()
        },
        ..CommitSpec::default()
    };
    let setup = CommitSetup::new(site, &spec)?;
    // Lenders that spin would take the others' core.
    setup.pause()?;
    Ok(Box::new(NetramSubject { peer, spec, setup }))
}

impl PeerSubject for NetramSubject {
    fn round(&mut self, time: Duration) -> Result<LatencySummary, BenchError> {
        let effort = CommitEffort {
            rounds: 1,
            round: time,
        };
        let summary = if self.peer == PeerKind::Exchange {
            self.setup.floor(&self.setup.single, effort)?.unwrap_or_default()
        } else {
            self.setup.resume()?;
            self.setup.commits(&self.spec, effort)?
        };
        self.setup.pause()?;
        Ok(summary)
    }

    fn end(self: Box<Self>) -> Result<(), BenchError> {
        self.setup.resume()
    }
}

/// The disk, without any program.
struct SyncSubject {
    directory: PathBuf,
    bytes: usize,
}

/// Floor of everything that waits for the disk.
pub(super) fn sync(site: &Testbed, bytes: usize) -> Box<dyn PeerSubject> {
    Box::new(SyncSubject {
        directory: site.directory().to_owned(),
        bytes,
    })
}

impl PeerSubject for SyncSubject {
    fn round(&mut self, time: Duration) -> Result<LatencySummary, BenchError> {
        let count = (time.as_secs_f64() * SYNCS_PER_SECOND).ceil() as usize;
        disk::sync_overwrites(&self.directory, self.bytes, count)
    }

    fn end(self: Box<Self>) -> Result<(), BenchError> {
        Ok(())
    }
}
