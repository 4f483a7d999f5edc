//! Processes of one row's measurement: lenders, echo processes, delaying proxies, and the journal.

use std::time::Duration;

use netram_journal::JournalConfig;
use netram_transport::{NetAddress, WaitPolicy};

use super::{CommitEffort, CommitSpec};
use crate::child::ChildProcess;
use crate::delay::DelayProxy;
use crate::echo::{self, EchoClient, EchoServer, ExchangeSizes};
use crate::error::BenchError;
use crate::histogram::LatencySummary;
use crate::machine::CorePin;
use crate::socket::PollPause;
use crate::testbed::{self, CoreAssignment, LenderProcess, LenderSpec, OpenJournal, Testbed};

/// Log size in bytes: large enough that trimming is rare, small enough to create quickly.
const LOG_BYTES: u64 = 32 << 20;
/// Wait policy of a lender behind a delaying process. It shares its core with that process, and like the echo
/// process it must not fall asleep within a longer round trip.
const LONG_YIELD: WaitPolicy = WaitPolicy::Yield { us: 2_000 };

/// Everything that runs during one row's measurement. Fields drop in this order: the journal before its
/// lenders.
pub(crate) struct CommitSetup {
    journal: OpenJournal,
    pub(crate) single: Vec<EchoClient>,
    pub(super) fan_out: Vec<EchoClient>,
    _wires: Vec<ChildProcess>,
    lenders: Vec<LenderProcess>,
    cores: CoreAssignment,
}

impl CommitSetup {
    pub(crate) fn new(site: &Testbed, spec: &CommitSpec) -> Result<CommitSetup, BenchError> {
        let seats = CoreAssignment::find();
        let wait = if spec.wait == WaitPolicy::Spin {
            seats.lender_wait(spec.members)
        } else {
            spec.wait
        };
        let (mut lenders, mut wires, mut addresses) = (vec![], vec![], vec![]);
        let mut through = |address: NetAddress, core| -> Result<NetAddress, BenchError> {
            if spec.added_rtt_us == 0 {
                return Ok(address);
            }
            let (wire, address) = DelayProxy::start(
                site.program(),
                &address,
                spec.added_rtt_us,
                core,
                site.directory(),
            )?;
            wires.push(wire);
            Ok(address)
        };
        for index in 0..spec.members {
            let core = seats.lender(index);
            // A delaying process needs the lender's core now and then, and a spinning lender would keep it.
            let wait = if spec.added_rtt_us > 0 { LONG_YIELD } else { wait };
            let lender = site.lender(LenderSpec {
                wire: spec.wire,
                secure: spec.secure,
                wait,
                core,
            })?;
            addresses.push(through(lender.address().clone(), core)?);
            lenders.push(lender);
        }
        let crowded = spec.added_rtt_us > 0 || !seats.spinning(spec.members);
        let mut pinger = |index, yields| {
            let core = seats.lender(index);
            let echo = EchoServer {
                listen: site.listen(spec.wire).to_string(),
                exchange: ExchangeSizes::of_commit(spec.record_bytes, spec.secure),
                core,
                pause: if yields { PollPause::Yield } else { PollPause::Spin },
                asks: None,
            };
            EchoClient::start(site.program(), echo, site.directory(), |to| through(to, core))
        };
        let singles = if spec.members > 0 { 0..1 } else { 0..0 };
        let single: Result<Vec<EchoClient>, _> =
            singles.map(|at| pinger(at, spec.added_rtt_us > 0)).collect();
        let several = if spec.members > 1 { 0..spec.members } else { 0..0 };
        let fan_out: Result<Vec<EchoClient>, _> = several.map(|at| pinger(at, crowded)).collect();
        let (single, fan_out) = (single?, fan_out?);
        let journal = site.journal(LOG_BYTES, journal_config(site, spec, addresses))?;
        Ok(CommitSetup {
            journal,
            single,
            fan_out,
            _wires: wires,
            lenders,
            cores: seats,
        })
    }

    /// A round of the floor with the lenders paused, which may spin on an echo process's core.
    pub(crate) fn floor(
        &self,
        pingers: &[EchoClient],
        effort: CommitEffort,
    ) -> Result<Option<LatencySummary>, BenchError> {
        if pingers.is_empty() {
            return Ok(None);
        }
        let _pinned = CorePin::to(self.cores.client())?;
        self.pause()?;
        let summary = echo::round(pingers, effort.round);
        self.resume()?;
        summary.map(Some)
    }

    /// Stops the lenders, which may spin, while something else is measured.
    pub(crate) fn pause(&self) -> Result<(), BenchError> {
        { self.lenders.iter() }.try_for_each(|lender| lender.child().pause())
    }

    /// Lets paused lenders run on.
    pub(crate) fn resume(&self) -> Result<(), BenchError> {
        { self.lenders.iter() }.try_for_each(|lender| lender.child().resume())
    }

    pub(crate) fn commits(
        &self,
        spec: &CommitSpec,
        effort: CommitEffort,
    ) -> Result<LatencySummary, BenchError> {
        // Without members the disk thread does the work, and a waiting client must not keep it from a core.
        let _pinned = if spec.members > 0 {
            Some(CorePin::to(self.cores.client())?)
        } else {
            None
        };
        let lenders: Vec<u32> = self.lenders.iter().map(|lender| lender.child().id()).collect();
        super::commits(&self.journal.journal, spec, effort.round, &lenders)
    }
}

fn journal_config(site: &Testbed, spec: &CommitSpec, addresses: Vec<NetAddress>) -> JournalConfig {
    let mut config = site.config(addresses, spec.secure, spec.wait);
    config.timing = testbed::patient_timing();
    config.modelled_sync_delay = Duration::from_millis(spec.modelled_sync_ms.into());
    if spec.members == 0 {
        // No other commits come, so a delay for batching would only add to the disk's time.
        config.disk_delay = Duration::ZERO;
    }
    config
}
