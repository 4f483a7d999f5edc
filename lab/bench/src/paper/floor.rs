//! The floors of the figures by block size, taken between the systems' cells: `fdatasync` of a record's bytes on the same disk, and an
//! exchange of a commit's bytes between two processes on the same cores.

use std::collections::BTreeMap;
use std::time::Duration;

use netram_proto::wire::record_bytes;
use netram_rvm::record::payload_bytes;

use super::cell::Cell;
use super::experiment::Effort;
use super::system::Floor;
use crate::disk;
use crate::echo::{self, Echo, Exchange, Pinger};
use crate::error::BenchError;
use crate::histogram::Summary;
use crate::machine::Pinned;
use crate::site::{Seats, Site, Wire};
use crate::socket::Pause;

/// Syncs of one cell.
const SYNCS: usize = 500;
const SYNCS_QUICK: usize = 100;
/// Time of one cell of exchanges, at most.
const EXCHANGE: Duration = Duration::from_millis(300);

/// Echo processes, one a block size, started when first asked for.
pub struct Floors<'s> {
    site: &'s Site,
    seats: Seats,
    pingers: BTreeMap<u64, Pinger>,
}

impl<'s> Floors<'s> {
    /// Floors at `site`.
    pub fn new(site: &'s Site) -> Floors<'s> {
        Floors {
            site,
            seats: Seats::find(),
            pingers: BTreeMap::new(),
        }
    }

    /// Measures the floor below a transaction that changes one range of `bytes`.
    pub fn measure(&mut self, floor: Floor, bytes: u64, effort: Effort) -> Result<Cell, BenchError> {
        // Somewhere in a segment of some MiB, as most of them are.
        let range = (0, 1 << 20, bytes as u32);
        let payload = payload_bytes(0, std::iter::once(range)) as usize;
        let summary = match floor {
            Floor::Sync => {
                let syncs = if effort.quick { SYNCS_QUICK } else { SYNCS };
                disk::sync_overwrites(self.site.folder(), record_bytes(payload, true), syncs)?
            }
            Floor::Exchange => {
                let pinger = self.pinger(bytes, payload)?;
                let _pinned = Pinned::to(Seats::find().client())?;
                echo::round(std::slice::from_ref(pinger), effort.cap.min(EXCHANGE))?
            }
        };
        Ok(of(summary))
    }

    fn pinger(&mut self, bytes: u64, payload: usize) -> Result<&Pinger, BenchError> {
        if !self.pingers.contains_key(&bytes) {
            let echo = Echo {
                listen: self.site.listen(Wire::Tcp).to_string(),
                exchange: Exchange::of_commit(payload, true),
                core: self.seats.lender(0),
                pause: Pause::Spin,
                asks: None,
            };
            let pinger = Pinger::start(self.site.program(), echo, self.site.folder(), Ok)?;
            self.pingers.insert(bytes, pinger);
        }
        Ok(&self.pingers[&bytes])
    }
}

fn of(summary: Summary) -> Cell {
    Cell {
        tps: summary.per_second,
        transactions: summary.count,
        p50_us: summary.p50_us,
        p99_us: summary.p99_us,
        max_us: summary.max_us,
        full_stalls: 0,
    }
}
