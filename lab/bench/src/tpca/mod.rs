//! TPC-A on recoverable memory, as in the RVM paper and in TR-190: one client thread, three access patterns,
//! and the same code whether a commit waits for the disk or for members.

pub mod access;
mod bank;

use std::time::{Duration, Instant};

use netram_journal::Journal;
use netram_proto::port::Durability;
use netram_rvm::RealStorage;
use netram_transport::WaitPolicy;
use serde::Serialize;

pub use access::{AccessPattern, AccountChooser};
pub use bank::{Bank, BankAudit, TELLERS};

use crate::commit::name_of;
use crate::error::{BenchError, ErrorContext};
use crate::histogram::{LatencyRecorder, LatencySummary};
use crate::machine::CorePin;
use crate::testbed::{CoreAssignment, LenderProcess, LenderSpec, SocketKind, Testbed};

/// Size in bytes of the log of TR-190's measurements.
pub const LOG_BYTES: u64 = 8 << 20;
/// One part in this many of the run's time, at its start, is not measured.
const WARM_UP_PART: u32 = 10;
/// Interval at which the caller hears of the progress.
const TICK: Duration = Duration::from_millis(100);

/// Parameters of one row.
#[derive(Clone, Debug)]
pub struct TpcaSpec {
    /// Number of accounts in units of 1,024.
    pub accounts_k: u64,
    /// Access pattern.
    pub pattern: AccessPattern,
    /// Durability of each commit.
    pub durability: Durability,
    /// Number of members, each a lender process.
    pub members: usize,
    /// Wait policy of client and lenders.
    pub wait: WaitPolicy,
    /// Whether links are encrypted and records sealed.
    pub secure: bool,
    /// Modelled slower disk: milliseconds added to each sync.
    pub modelled_sync_ms: u32,
    /// Duration of the run.
    pub time: Duration,
}

/// A measured row.
#[derive(Clone, Debug, Serialize)]
pub struct TpcaRow {
    /// Number of accounts in units of 1,024.
    pub accounts_k: u64,
    /// Access pattern.
    pub pattern: AccessPattern,
    /// Durability of each commit.
    pub durability: &'static str,
    /// Number of members.
    pub members: usize,
    /// Milliseconds that a modelled slow disk added to each sync.
    pub modelled_sync_ms: u32,
    /// Latencies of the transactions.
    pub transactions: LatencySummary,
    /// Number of commits that waited because the log was full.
    pub full_stalls: u64,
    /// Number of transactions in the bank's books afterwards, including the warm-up's; the audit passed.
    pub booked: u64,
}

impl TpcaSpec {
    /// TPC-A with `members` on 32 K accounts touched at random; without members, on the local disk.
    pub fn with(members: usize, time: Duration) -> TpcaSpec {
        TpcaSpec {
            accounts_k: 32,
            pattern: AccessPattern::Random,
            durability: if members == 0 {
                Durability::Disk
            } else {
                Durability::Remote
            },
            members,
            wait: WaitPolicy::default(),
            secure: true,
            modelled_sync_ms: 0,
            time,
        }
    }
}

/// Measures one row: starts lenders, founds a bank, runs, and audits the books.
///
/// # Errors
///
/// Fails if the testbed cannot be set up, a commit fails, or the audit finds a contradiction.
pub fn measure(site: &Testbed, spec: &TpcaSpec, tick: &mut dyn FnMut(u64)) -> Result<TpcaRow, BenchError> {
    let seats = CoreAssignment::find();
    let wait = if spec.wait == WaitPolicy::Spin {
        seats.lender_wait(spec.members)
    } else {
        spec.wait
    };
    let mut lenders: Vec<LenderProcess> = Vec::new();
    for index in 0..spec.members {
        let core = if wait == WaitPolicy::Spin {
            seats.lender(index)
        } else {
            None
        };
        lenders.push(site.lender(LenderSpec {
            wire: SocketKind::Tcp,
            secure: spec.secure,
            wait,
            core,
        })?);
    }
    let addresses = lenders.iter().map(|lender| lender.address().clone()).collect();
    let mut config = site.config(addresses, spec.secure, spec.wait);
    config.modelled_sync_delay = Duration::from_millis(spec.modelled_sync_ms.into());
    if spec.members == 0 {
        config.disk_delay = Duration::ZERO;
    }
    let opened = site.journal(LOG_BYTES, config)?;
    let mut bank = Bank::create(
        opened.journal,
        opened.id,
        &opened.directory,
        spec.accounts_k * 1024,
    )?;
    bank.rvm().start_truncation().context("start truncation")?;
    let children: Vec<u32> = lenders.iter().map(|lender| lender.child().id()).collect();
    let _pinned = if spec.wait == WaitPolicy::Spin {
        Some(CorePin::to(seats.client())?)
    } else {
        None
    };
    let transactions = run(&mut bank, spec, &children, tick)?;
    let full_stalls = bank.rvm().statistics().full_stalls;
    let books = bank.audit()?;
    Ok(TpcaRow {
        accounts_k: spec.accounts_k,
        pattern: spec.pattern,
        durability: name_of(spec.durability),
        members: spec.members,
        modelled_sync_ms: spec.modelled_sync_ms,
        transactions,
        full_stalls,
        booked: books.transactions,
    })
}

/// Runs transactions for the requested time; `tick` gets their number now and then.
///
/// # Errors
///
/// Fails if a commit does.
pub fn run(
    bank: &mut Bank<Journal, RealStorage>,
    spec: &TpcaSpec,
    children: &[u32],
    tick: &mut dyn FnMut(u64),
) -> Result<LatencySummary, BenchError> {
    let mut chooser = AccountChooser::new(spec.pattern, bank.accounts(), 1);
    let warm = Instant::now() + spec.time / WARM_UP_PART;
    while Instant::now() < warm {
        bank.transact(&mut chooser, spec.durability)?;
    }
    let mut recorder = LatencyRecorder::start(children);
    let (end, mut next_tick, mut count) = (Instant::now() + spec.time, Instant::now() + TICK, 0);
    loop {
        let began = Instant::now();
        if began >= end {
            return Ok(recorder.finish());
        }
        bank.transact(&mut chooser, spec.durability)?;
        recorder.record(began.elapsed());
        count += 1;
        if began >= next_tick {
            tick(count);
            next_tick = began + TICK;
        }
    }
}
