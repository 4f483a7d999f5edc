//! State shared by the threads of one lender: settings, counters, and the request to stop.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use netram_clients::{ClientRegistry, OverLimit, ServerTotals};
use netram_proto::id::{Incarnation, JournalId};
use netram_proto::reclaim::LentWindow;
use netram_proto::wire::{FrameHeader, FrameKind, RefusalReason};
use netram_transport::{MulticastGroup, NetAddress, Waker};

use crate::config::LenderConfig;
use crate::data::DataService;
use crate::drain::{DrainOrders, WithdrawNotice};
use crate::metrics::LenderTimings;
use crate::power::PowerRecord;
use crate::report::{ClientReport, LeftReport, MemoryReport, StatusReport};
use crate::report_desk::ReportDesk;
use crate::stats::{DepositStats, HandshakeFailures, JournalStats, ShardCounters};
use crate::store::WindowStore;
use crate::sys::seconds_of_run;
use crate::thread_pulses::ThreadPulses;

/// Time before the end of a stop at which clients are told that it cannot wait for them any longer, a quarter
/// of the stop at most.
const LAST_NOTICE: Duration = Duration::from_secs(1);

pub(crate) struct DaemonState {
    pub(crate) config: LenderConfig,
    pub(crate) store: Arc<WindowStore>,
    pub(crate) clients: Arc<ClientRegistry>,
    /// The service that keeps replicas of volumes.
    pub(crate) data: Option<Arc<dyn DataService>>,
    pub(crate) addresses: Vec<NetAddress>,
    /// Addresses reserved for data sessions.
    pub(crate) data_addresses: Vec<NetAddress>,
    pub(crate) started: Instant,
    /// The machine's uptime in seconds at that time.
    pub(crate) started_s: u64,
    /// Counters of each shard.
    pub(crate) counters: Vec<ShardCounters>,
    pub(crate) handshakes: HandshakeFailures,
    /// Counters and reports of deposits.
    pub(crate) deposits: DepositStats,
    pub(crate) timings: LenderTimings,
    /// The source of the machine's power.
    pub(crate) power: PowerRecord,
    /// The status for those who ask over links.
    pub(crate) desk: ReportDesk,
    /// Wakers of the shards, then of the deposit thread; the acceptor's is last.
    pub(crate) wakers: Vec<Waker>,
    /// By the indices of wakers.
    pub(crate) pulses: ThreadPulses,
    connections: AtomicUsize,
    connections_max: usize,
    journals: Mutex<BTreeMap<JournalId, Arc<JournalStats>>>,
    stopping: AtomicBool,
    pub(crate) drain: DrainOrders,
    /// The most that the operator lets the lender lend.
    offer: AtomicU64,
    /// Number of times that other windows were asked back than before.
    reclaims: AtomicU64,
    /// Number of journals that are asked to take their windows elsewhere.
    asked_back: AtomicUsize,
    /// Set by a thread that panicked.
    failed: AtomicBool,
    shutdown: Mutex<Shutdown>,
    ended: Condvar,
}

/// Progress of stopping.
struct Shutdown {
    /// When windows are given up even if they hold bytes.
    deadline: Option<Instant>,
    /// When clients are told that the end is near.
    last_notice: Option<Instant>,
    /// Number of threads that still run.
    threads: usize,
    /// Number of windows that there were when their shard ended.
    windows_left: usize,
}

impl DaemonState {
    pub(crate) fn new(
        config: LenderConfig,
        store: Arc<WindowStore>,
        data: Option<Arc<dyn DataService>>,
        (addresses, data_addresses): (Vec<NetAddress>, Vec<NetAddress>),
        wakers: Vec<Waker>,
    ) -> DaemonState {
        let shards = wakers.len() - 2;
        // Each has a waker but the one that builds reports, and the one for the disk.
        let threads = wakers.len() + 1 + usize::from(config.spill.is_some());
        let clients = config.clients.clone();
        let clients = clients.unwrap_or_else(|| Arc::new(ClientRegistry::of_one()));
        clients.set_totals(ServerTotals {
            memory: store.memory(),
            journals: store.journals_max().into(),
            connections: config.connections_max() as u64,
            pages: config.deposits_bytes(),
        });
        DaemonState {
            offer: AtomicU64::new(store.memory()),
            reclaims: AtomicU64::new(0),
            asked_back: AtomicUsize::new(0),
            connections_max: config.connections_max(),
            config,
            store,
            clients,
            data,
            addresses,
            data_addresses,
            started: Instant::now(),
            started_s: seconds_of_run(),
            counters: (0..shards).map(|_| ShardCounters::default()).collect(),
            handshakes: HandshakeFailures::default(),
            deposits: DepositStats::default(),
            timings: LenderTimings::default(),
            power: PowerRecord::default(),
            desk: ReportDesk::default(),
            connections: AtomicUsize::new(0),
            journals: Mutex::default(),
            stopping: AtomicBool::new(false),
            drain: DrainOrders::new(shards + 1),
            failed: AtomicBool::new(false),
            shutdown: Mutex::new(Shutdown {
                deadline: None,
                last_notice: None,
                threads,
                windows_left: 0,
            }),
            pulses: ThreadPulses::new(wakers.len()),
            wakers,
            ended: Condvar::new(),
        }
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        self.store.incarnation()
    }

    /// The waker of the deposit thread.
    pub(crate) fn deposit_waker(&self) -> &Waker {
        &self.wakers[self.counters.len()]
    }

    /// Index of the acceptor's waker.
    pub(crate) fn acceptor_waker(&self) -> usize {
        self.counters.len() + 1
    }

    /// A refusal by the lender itself, not by a member.
    pub(crate) fn refusal(&self, refusal: RefusalReason) -> FrameHeader {
        let mut header = FrameHeader::new(FrameKind::Refuse);
        header.flags = refusal as u8;
        header.sender = self.incarnation().0;
        header
    }

    /// A refusal for a client that may not have what it asks for.
    pub(crate) fn over_limit(&self, over: &OverLimit) -> FrameHeader {
        let mut header = self.refusal(RefusalReason::OverClientLimit);
        header.lsn.0 = over.resource as u64;
        header.stable.0 = over.limit;
        header
    }

    /// The shard that owns `journal`.
    pub(crate) fn shard_of(&self, journal: JournalId) -> usize {
        // Ids are random, but no rule says which of their bits are.
        let folded = (journal.0 ^ (journal.0 >> 64)) as u64;
        let mixed = folded.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        mixed as usize % self.counters.len()
    }

    /// Whether the limit allows one more connection.
    pub(crate) fn has_permit(&self) -> bool {
        self.connections.load(Ordering::Relaxed) < self.connections_max
    }

    /// A permit for one more connection, if the limit allows; dropping it gives it back.
    pub(crate) fn permit(self: &Arc<DaemonState>) -> Option<ConnectionPermit> {
        let limit = self.connections_max;
        let more = |count: usize| (count < limit).then_some(count + 1);
        self.connections
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .ok()?;
        Some(ConnectionPermit(Arc::clone(self)))
    }

    /// Adds `journal` to the reports.
    pub(crate) fn list(&self, journal: JournalId) -> Arc<JournalStats> {
        Arc::clone(self.journals().entry(journal).or_default())
    }

    pub(crate) fn unlist(&self, journal: JournalId) {
        self.journals().remove(&journal);
    }

    fn journals(&self) -> MutexGuard<'_, BTreeMap<JournalId, Arc<JournalStats>>> {
        self.journals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lender's status. Reads the copies' files on a data lender, so the threads that serve clients leave
    /// this to [`ReportDesk`].
    pub(crate) fn report(&self) -> StatusReport {
        let mut report = self.report_of_memory(Instant::now());
        if let Some(data) = &self.data {
            report.replicas = data.replicas();
            let copies = data.copies();
            for client in &mut report.clients {
                client.data.used = copies.by_client.get(&client.name).copied().unwrap_or(0);
            }
            report.copies = Some(copies);
        }
        report
    }

    /// The status without copies of volumes. Waits for no disk.
    pub(crate) fn report_of_memory(&self, now: Instant) -> StatusReport {
        // Read before what it covers.
        let is_obeyed = self.drain.is_obeyed();
        let mut report = StatusReport {
            name: self.config.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            incarnation: self.incarnation().to_string(),
            domain: self.config.domain.clone(),
            uptime_s: now.duration_since(self.started).as_secs(),
            pid: std::process::id(),
            addresses: self.addresses.iter().map(NetAddress::to_string).collect(),
            data_addresses: self.data_addresses.iter().map(NetAddress::to_string).collect(),
            multicast: self.config.multicast.as_ref().map(MulticastGroup::to_string),
            secure: self.config.is_secure(),
            stopping: self.stopping(),
            power: self.power.report(now),
            draining: self.drain.last().drains(),
            memory: MemoryReport {
                reserved: self.store.memory(),
                used: self.store.lent(),
                free: self.store.free(),
                quota: self.store.quota(),
                deposits: self.store.deposits(),
                deposits_max: self.config.deposits_bytes(),
                deposits_limit: Some(self.deposits.limit()),
                given_back: self.store.given_back(),
                offered: Some(self.store.offered()),
                windows_asked: self.asked_back.load(Ordering::Relaxed),
                huge_bytes: self.store.huge_bytes(),
            },
            wait: self.config.wait.to_string(),
            shards: self.counters.len(),
            connections: self.connections.load(Ordering::Relaxed),
            journals_used: self.store.journals(),
            journals_max: self.store.journals_max(),
            ..StatusReport::default()
        };
        for counters in &self.counters {
            counters.add_to(&mut report.counters);
        }
        self.deposits.add_to(&mut report);
        report.counters.handshakes_failed = self.handshakes.by_kind();
        let journals = self.journals();
        report.journals = journals
            .iter()
            .map(|(id, stats)| stats.report(*id, self.started, now))
            .collect();
        drop(journals);
        report.left = LeftReport::of(&report.journals, &report.deposits);
        report.safe_to_stop = is_obeyed && report.left == LeftReport::default();
        report.clients = self.clients.usage().iter().map(ClientReport::of).collect();
        report
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// When windows are given up, once the lender is stopping.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.shutdown().deadline
    }

    /// Tells every thread to stop, at `deadline` at the latest. The earliest deadline counts.
    pub(crate) fn stop(&self, deadline: Instant) {
        let mut ending = self.shutdown();
        let deadline = ending.deadline.map_or(deadline, |earlier| earlier.min(deadline));
        let grace = deadline.saturating_duration_since(Instant::now());
        let last_notice = deadline - LAST_NOTICE.min(grace / 4);
        ending.deadline = Some(deadline);
        ending.last_notice = Some(last_notice);
        drop(ending);
        self.stopping.store(true, Ordering::Release);
        self.desk.stop();
        self.store.silent().stop();
        self.wake_all();
    }

    /// Gives the operator's order that clients move away, or may return.
    pub(crate) fn order_drain(&self, drain: bool) {
        if self.drain.give(drain) {
            tracing::info!(drain, "this lender is drained, or lends again");
            self.wake_all();
        }
    }

    /// Gives the operator's order to lend at most `bytes`, as far as the memory that was set aside at the
    /// start allows.
    pub(crate) fn order_offer(&self, bytes: u64) {
        self.offer
            .store(bytes.min(self.store.memory()), Ordering::Release);
        self.wake(self.deposit_waker());
    }

    /// The most that the operator lets the lender lend.
    pub(crate) fn offer_ordered(&self) -> u64 {
        self.offer.load(Ordering::Acquire)
    }

    /// The windows whose clients are connected.
    pub(crate) fn attended_windows(&self) -> Vec<LentWindow> {
        let chunk = 1 << self.store.chunk_shift();
        let journals = self.journals();
        let windows = journals.iter().map(|(journal, stats)| LentWindow {
            journal: *journal,
            bytes: match stats.sessions.load(Ordering::Relaxed) {
                0 => 0,
                _ => stats.window_bytes().next_multiple_of(chunk),
            },
        });
        windows.filter(|window| window.bytes > 0).collect()
    }

    /// Asks the journals that `asks` names to take their windows elsewhere, and no others any more.
    pub(crate) fn ask_back(&self, asks: impl Fn(JournalId) -> bool) {
        let journals = self.journals();
        let asked = journals.iter().filter(|(journal, stats)| {
            let asked = asks(**journal);
            stats.asked_back.store(asked, Ordering::Relaxed);
            asked
        });
        self.asked_back.store(asked.count(), Ordering::Relaxed);
        drop(journals);
        self.reclaims.fetch_add(1, Ordering::Release);
        self.wakers[..self.counters.len()]
            .iter()
            .for_each(|waker| self.wake(waker));
    }

    /// Number of times that other windows were asked back than before. Changes after what it counts.
    pub(crate) fn reclaims(&self) -> u64 {
        self.reclaims.load(Ordering::Acquire)
    }

    /// Notes that a client has left a window. The machine may be waiting for its memory.
    pub(crate) fn window_left(&self) {
        if self.asked_back.load(Ordering::Relaxed) > 0 {
            self.wake(self.deposit_waker());
        }
    }

    fn wake(&self, waker: &Waker) {
        if let Err(error) = waker.wake() {
            tracing::error!(%error, "cannot wake a thread of the lender; it will act a little later");
        }
    }

    fn wake_all(&self) {
        self.wakers.iter().for_each(|waker| self.wake(waker));
    }

    /// Whether the lender gives clients no more memory, since it drains or stops.
    pub(crate) fn gives_no_more(&self) -> bool {
        self.stopping() || self.drain.last().drains()
    }

    /// The notice that sessions are due. A stop begins as a drain.
    pub(crate) fn leave_notice(&self, now: Instant) -> Option<WithdrawNotice> {
        if !self.stopping() {
            return self.drain.last().drains().then_some(WithdrawNotice::Drains);
        }
        let near = self.shutdown().last_notice.is_none_or(|at| at <= now);
        Some(match near {
            true => WithdrawNotice::Stops,
            false => WithdrawNotice::Drains,
        })
    }

    /// Waits until every thread has ended. Returns the number of windows that there were then.
    pub(crate) fn wait_ended(&self) -> usize {
        let ending = self.shutdown();
        let running = |ending: &mut Shutdown| ending.threads > 0;
        self.ended
            .wait_while(ending, running)
            .unwrap_or_else(PoisonError::into_inner)
            .windows_left
    }

    pub(crate) fn failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Notes that a shard ends with `count` windows.
    pub(crate) fn leave_windows(&self, count: usize) {
        self.shutdown().windows_left += count;
    }

    fn shutdown(&self) -> MutexGuard<'_, Shutdown> {
        self.shutdown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to one connection.
pub(crate) struct ConnectionPermit(Arc<DaemonState>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Held by each thread; its drop reports the thread's end. A thread that panics stops the whole lender: the
/// memory outlives the process, and a lender that serves only some journals is useless.
pub(crate) struct ThreadEndGuard(pub(crate) Arc<DaemonState>);

impl Drop for ThreadEndGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::Release);
            self.0.stop(Instant::now());
        }
        self.0.shutdown().threads -= 1;
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_bench::TestDaemon;

    #[test]
    fn a_thread_that_panics_stops_the_lender() {
        let daemon = TestDaemon::new(1);
        let shared = Arc::clone(&daemon.shared);
        let guards = [(); 4].map(|()| ThreadEndGuard(Arc::clone(&shared)));
        let [broken, keeper, other, reporter] = guards;
        let thread = std::thread::spawn(move || {
            let _guard = broken;
            // Unwinds as a panic does, without its message.
            std::panic::resume_unwind(Box::new("broken"));
        });
        assert!(thread.join().is_err());
        assert!(shared.stopping() && shared.failed());
        assert!(
            shared
                .deadline()
                .is_some_and(|deadline| deadline <= Instant::now()),
            "at once"
        );
        drop((keeper, other, reporter));
        shared.wait_ended();
    }
}
