//! Floors of the figures by block size, measured between the systems' cells: `fdatasync` of a record's bytes
//! on the same disk, and an exchange of a commit's bytes between two processes on the same cores.

use std::collections::BTreeMap;
use std::time::Duration;

use netram_proto::wire::record_bytes;
use netram_rvm::record::payload_bytes;

use super::cell::Tr190Cell;
use super::experiment::Tr190Effort;
use super::system::FloorKind;
use crate::disk;
use crate::echo::{self, EchoClient, EchoServer, ExchangeSizes};
use crate::error::BenchError;
use crate::histogram::LatencySummary;
use crate::machine::CorePin;
use crate::socket::PollPause;
use crate::testbed::{CoreAssignment, SocketKind, Testbed};

/// Number of syncs in one cell.
const SYNCS: usize = 500;
const SYNCS_QUICK: usize = 100;
/// Maximum time of one cell of exchanges.
const EXCHANGE: Duration = Duration::from_millis(300);

/// Echo processes, one for each block size, started on first use.
pub struct Tr190Floors<'s> {
    site: &'s Testbed,
    cores: CoreAssignment,
    pingers: BTreeMap<u64, EchoClient>,
}

impl<'s> Tr190Floors<'s> {
    /// Floors at `site`.
    pub fn new(site: &'s Testbed) -> Tr190Floors<'s> {
        Tr190Floors {
            site,
            cores: CoreAssignment::find(),
            pingers: BTreeMap::new(),
        }
    }

    /// Measures the floor of a transaction that changes one range of `bytes`.
    ///
    /// # Errors
    ///
    /// Fails if the disk or an echo process fails.
    pub fn measure(
        &mut self,
        floor: FloorKind,
        bytes: u64,
        effort: Tr190Effort,
    ) -> Result<Tr190Cell, BenchError> {
        // A range somewhere in a segment of some MiB, as usual.
        let range = (0, 1 << 20, bytes as u32);
        let payload = payload_bytes(0, std::iter::once(range)) as usize;
        let summary = match floor {
            FloorKind::Sync => {
                let syncs = if effort.quick { SYNCS_QUICK } else { SYNCS };
                disk::sync_overwrites(self.site.directory(), record_bytes(payload, true), syncs)?
            }
            FloorKind::Exchange => {
                let pinger = self.pinger(bytes, payload)?;
                let _pinned = CorePin::to(CoreAssignment::find().client())?;
                echo::round(std::slice::from_ref(pinger), effort.cap.min(EXCHANGE))?
            }
        };
        Ok(of(summary))
    }

    fn pinger(&mut self, bytes: u64, payload: usize) -> Result<&EchoClient, BenchError> {
        if !self.pingers.contains_key(&bytes) {
            let echo = EchoServer {
                listen: self.site.listen(SocketKind::Tcp).to_string(),
                exchange: ExchangeSizes::of_commit(payload, true),
                core: self.cores.lender(0),
                pause: PollPause::Spin,
                asks: None,
            };
            let pinger = EchoClient::start(self.site.program(), echo, self.site.directory(), Ok)?;
            self.pingers.insert(bytes, pinger);
        }
        Ok(&self.pingers[&bytes])
    }
}

fn of(summary: LatencySummary) -> Tr190Cell {
    Tr190Cell {
        tps: summary.per_second,
        transactions: summary.count,
        p50_us: summary.p50_us,
        p99_us: summary.p99_us,
        max_us: summary.max_us,
        full_stalls: 0,
    }
}
