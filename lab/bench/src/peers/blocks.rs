//! Servers of block devices, written over NBD on a Unix socket: netram's volume, an empty server, nbdkit and
//! qemu-nbd. Writes ask for FUA, except netram's: they wait for a lender in any case.

use std::path::PathBuf;
use std::time::Duration;

use netram_transport::WaitPolicy;

use super::{PeerKind, PeerSubject, must_have, server};
use crate::child::ChildProcess;
use crate::error::BenchError;
use crate::histogram::LatencySummary;
use crate::paper::testbed::write_in_full;
use crate::testbed::{LenderProcess, LenderSpec, SocketKind, Testbed};
use crate::tool::wait_until;
use crate::volume::nbd::NbdClient;
use crate::volume::serve::{DeviceSource, NbdServerProcess};
use crate::volume::{VolumeDirectory, VolumeRedundancy};

/// Size of a write in bytes.
pub(super) const BLOCK_BYTES: usize = 4096;
/// Value of every byte that the client writes.
const WRITTEN: u8 = 0x5a;
/// Size of each device in bytes.
const DEVICE_BYTES: u64 = 128 << 20;

/// A device and its client. Fields drop in this order: a server before its lender.
struct BlockSubject {
    peer: PeerKind,
    client: NbdClient,
    _server: ChildProcess,
    _volume: Option<VolumeDirectory>,
    _lender: Option<LenderProcess>,
    site: Testbed,
}

/// A volume with one lender, or memory without any.
pub(super) fn served(site: &Testbed, peer: PeerKind) -> Result<Box<dyn PeerSubject>, BenchError> {
    let own = Testbed::new(site.program().to_owned(), site.directory())?;
    let (mut lender, mut volume) = (None, None);
    let source = if peer == PeerKind::Volume {
        let spec = LenderSpec {
            wire: SocketKind::Tcp,
            secure: true,
            wait: WaitPolicy::default(),
            core: None,
        };
        let holder = site.lender(spec)?;
        let holders = VolumeRedundancy {
            lenders: vec![holder.address().clone()],
            ..VolumeRedundancy::default()
        };
        let directory = VolumeDirectory::new(site, DEVICE_BYTES, &holders)?;
        let source = DeviceSource::volume(directory.path());
        (lender, volume) = (Some(holder), Some(directory));
        source
    } else {
        DeviceSource::Memory(DEVICE_BYTES)
    };
    let NbdServerProcess { child, client } = NbdServerProcess::start(site, source, None)?;
    Ok(Box::new(BlockSubject {
        peer,
        site: own,
        client,
        _server: child,
        _volume: volume,
        _lender: lender,
    }))
}

/// A server of another project.
pub(super) fn other(site: &Testbed, peer: PeerKind) -> Result<Box<dyn PeerSubject>, BenchError> {
    let site = Testbed::new(site.program().to_owned(), site.directory())?;
    let (socket, file): (PathBuf, PathBuf) = (site.directory().join("nbd"), site.directory().join("disk"));
    let (socket_text, file_text) = (socket.display().to_string(), file.display().to_string());
    let words = match peer {
        PeerKind::NbdkitMemory => {
            let size = DEVICE_BYTES.to_string();
            ["nbdkit", "--foreground", "--unix", &socket_text, "memory", &size].map(str::to_owned)
        }
        PeerKind::NbdkitFile => {
            write_in_full(&file, DEVICE_BYTES)?;
            [
                "nbdkit",
                "--foreground",
                "--unix",
                &socket_text,
                "file",
                &file_text,
            ]
            .map(str::to_owned)
        }
        _ => {
            write_in_full(&file, DEVICE_BYTES)?;
            let socket_flag = format!("--socket={socket_text}");
            [
                "qemu-nbd",
                "--persistent",
                "--format=raw",
                "--cache=writeback",
                &socket_flag,
                &file_text,
            ]
            .map(str::to_owned)
        }
    };
    let process = server(&site, "nbd", &[], &words)?;
    let mut client = None;
    wait_until("an NBD server listens", || {
        client = NbdClient::connect(&socket).ok();
        Ok(client.is_some())
    })?;
    Ok(Box::new(BlockSubject {
        peer,
        site,
        client: client.expect("the condition above is that it is connected"),
        _server: process,
        _volume: None,
        _lender: None,
    }))
}

impl PeerSubject for BlockSubject {
    fn round(&mut self, time: Duration) -> Result<LatencySummary, BenchError> {
        let forced = !matches!(self.peer, PeerKind::Volume | PeerKind::BlockFloor);
        self.client.write_for(time, BLOCK_BYTES, DEVICE_BYTES, forced)
    }

    fn end(mut self: Box<Self>) -> Result<(), BenchError> {
        // The floor stores nothing.
        if self.peer != PeerKind::BlockFloor {
            let mut found = [0; BLOCK_BYTES];
            self.client.read(0, &mut found)?;
            let equal = found.iter().filter(|byte| **byte == WRITTEN).count();
            must_have(self.peer, &self.site, equal as u64, BLOCK_BYTES as u64)?;
        }
        Ok(())
    }
}
