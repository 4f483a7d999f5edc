//! The public interface of an open journal.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_proto::failure::{CallError, RetryPolicy, RetryVerdict};
use netram_proto::id::{Epoch, JournalId, Lsn};
use netram_proto::journal::{ReplicaAck, ServerAck, View, Voter};
use netram_proto::port::{
    AppendError, CommitTicket, CommitVotes, Durability, IoError, LogError, LogState, Record, RecordKind,
    RecordLog, WaitError,
};
use netram_proto::wire::ChainPoint as Chain;
use netram_telemetry::{MetricsRegistration, MetricsRegistry, MetricsServer};
use netram_transport::Waker;

use crate::config::JournalConfig;
use crate::core::JournalState;
use crate::disk_demand::DiskDemand;
use crate::error::{JournalCreateError, JournalGrowError, JournalOpenError};
use crate::fork::ForkMark;
use crate::maintenance::ViewFile;
use crate::metrics;
use crate::open::{self, GrowReport, JournalRecovery, OpenCheck};
use crate::orders::OrderListener;
use crate::paths::{JournalLayout, JournalLock, JournalPaths};
use crate::reason::QuorumError;
use crate::records;
use crate::seal::DataKey;
use crate::ups::JournalUps;

/// An open journal: one writer, any number of threads. Dropping it closes it.
///
/// A child of `fork` has neither the threads nor the links. In it the journal refuses appends and waits
/// ([`AppendError::Closed`]), and dropping it leaves lock, members and files to the parent.
pub struct Journal {
    pub(crate) mark: ForkMark,
    pub(crate) shared: Arc<JournalState>,
    metrics: Option<MetricsRegistration<JournalState>>,
    id: JournalId,
    disk: Option<JoinHandle<()>>,
    maintenance: Option<JoinHandle<ViewFile>>,
    /// The page of metrics, which the journals of a process share. In a child of `fork` it is the parent's.
    page: ManuallyDrop<Option<Arc<MetricsServer>>>,
    /// In a child of `fork` its thread is the parent's.
    pub(crate) ups: ManuallyDrop<JournalUps>,
}

impl Journal {
    /// Creates a journal directory at `root` with a log of `log_bytes`.
    ///
    /// # Errors
    /// `Exists`, `Size` if `log_bytes` is out of bounds, or `Io`.
    pub fn create(root: &Path, log_bytes: u64) -> Result<JournalId, JournalCreateError> {
        JournalPaths::of(root, JournalLayout::Directory).create(log_bytes)
    }

    /// Creates a journal that has no owner: each holder of the cluster key may speak for it. For a region's
    /// node without sealing, whose server gets no key.
    ///
    /// # Errors
    /// Those of [`Journal::create`].
    pub fn create_unowned(root: &Path, log_bytes: u64) -> Result<JournalId, JournalCreateError> {
        JournalPaths::of(root, JournalLayout::Directory).create_unowned(log_bytes)
    }

    /// Recovers the journal at `root`, a directory or a log file, and begins an epoch. Members join in the
    /// background; until then commits wait for the local disk (see [`Journal::wait_for_members`]).
    ///
    /// # Errors
    /// One [`JournalOpenError`] a reaction; the attempt loses nothing.
    pub fn open(root: &Path, config: JournalConfig) -> Result<(Journal, JournalRecovery), JournalOpenError> {
        Journal::open_and(root, config, &mut || Ok(()))
    }

    /// Opens the journal like [`Journal::open`] and calls `complete` when the local log is complete and
    /// synced, before the members are released. After a crash before `complete` returns, the recovery is
    /// repeated; after it the local log alone suffices.
    ///
    /// # Errors
    /// Those of [`Journal::open`]; `Store` if `complete` fails.
    pub fn open_and(
        root: &Path,
        config: JournalConfig,
        complete: &mut dyn FnMut() -> Result<(), IoError>,
    ) -> Result<(Journal, JournalRecovery), JournalOpenError> {
        Journal::open_locked(JournalPaths::at(root).lock()?, config, complete)
    }

    /// Opens the journal like [`Journal::open_and`] under a lock that the caller has taken
    /// ([`JournalPaths::lock`]), so that no other process can have opened it since.
    ///
    /// # Errors
    /// Those of [`Journal::open_and`].
    pub fn open_locked(
        lock: JournalLock,
        config: JournalConfig,
        complete: &mut dyn FnMut() -> Result<(), IoError>,
    ) -> Result<(Journal, JournalRecovery), JournalOpenError> {
        let opened = open::open(lock, config, complete)?;
        crate::forget::tell_in_background();
        let (shared, id) = (Arc::new(opened.shared), opened.journal);
        shared.counters.recovered(&opened.recovered);
        let metrics = MetricsRegistry::of_process().add(&shared);
        let system = |what| move |source| JournalOpenError::System { what, source };
        let builder = |name: &str| std::thread::Builder::new().name(name.into());
        let for_disk = Arc::clone(&shared);
        let disk = builder("netram-disk")
            .spawn(move || crate::disk::run(&for_disk))
            .map_err(system("starting the disk thread"))?;
        let (for_keeper, view_file) = (Arc::clone(&shared), opened.view_file);
        let orders = OrderListener::bind(view_file.newest().writer);
        let maintenance = builder("netram-upkeep")
            .spawn(move || crate::maintenance::run(&for_keeper, view_file, orders))
            .map_err(system("starting the maintenance thread"))?;
        // Last: an error above would leave it served.
        let page = ManuallyDrop::new(shared.config.metrics.as_ref().and_then(metrics::serve));
        let journal = Journal {
            mark: ForkMark::here(),
            shared,
            metrics: Some(metrics),
            id,
            disk: Some(disk),
            maintenance: Some(maintenance),
            page,
            ups: ManuallyDrop::new(JournalUps::default()),
        };
        if let Some(source) = &journal.shared.config.ups {
            journal.watch_ups(source).map_err(system("watching the UPS"))?;
        }
        Ok((journal, opened.recovered))
    }

    /// Determines whether the journal at `root` would open, without changing anything here or at lenders.
    ///
    /// # Errors
    /// The settings contradict themselves, or a file of the journal cannot be read.
    pub fn check(root: &Path, config: &JournalConfig) -> Result<OpenCheck, JournalOpenError> {
        open::check(root, config)
    }

    /// Does the same for a data lender's copy with the view `view` and a log that ends at `end`, to be
    /// recovered at `root`.
    pub fn check_copy(
        root: &Path,
        view: &View,
        end: Lsn,
        key: &DataKey,
        config: &JournalConfig,
    ) -> OpenCheck {
        open::check_copy(root, view, end, key, config)
    }

    /// Enlarges the log of the journal at `root` to `log_bytes`, rounded up to whole pages. No process may
    /// have it open. It is recovered first and must then be empty, so its user trims it before.
    ///
    /// # Errors
    /// `Recovery` if the journal does not open, `Refused` if the log is not empty or the size is not
    /// possible.
    pub fn grow(root: &Path, config: &JournalConfig, log_bytes: u64) -> Result<GrowReport, JournalGrowError> {
        open::grow(root, config, log_bytes)
    }

    /// Does the same as [`RecordLog::append`] and also returns the next record's chain value. With it and the
    /// payload, a shared region's server can find the next record at this node's members.
    ///
    /// # Errors
    /// The record is too large, the log is full, or the journal is fenced, closed or failed.
    pub fn append_linked(
        &self,
        kind: RecordKind,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(CommitTicket, Chain), AppendError> {
        if self.mark.is_child() {
            return Err(AppendError::Closed);
        }
        self.shared.append(kind, length, fill)
    }

    /// The journal's id.
    pub fn id(&self) -> JournalId {
        self.id
    }

    /// Waits until the members' acknowledgements count.
    ///
    /// # Errors
    /// After `timeout`: why they do not.
    pub fn wait_for_members(&self, timeout: Duration) -> Result<(), QuorumError> {
        let deadline = Instant::now() + timeout;
        loop {
            // In a clean journal they count from the first append on.
            let blocked = self.shared.core().writer.blocked();
            match blocked {
                None => return Ok(()),
                Some(_) if Instant::now() >= deadline => {
                    return self.status().quorum_error().map_or(Ok(()), Err);
                }
                Some(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// A handle by which a thread that does not have the journal can make its commits wait for the disk.
    pub fn disk_demand(&self) -> DiskDemand {
        DiskDemand::new(&self.shared)
    }

    /// Writes everything to the local disk, releases the members and ends the epoch. The next opening then
    /// needs no lender. Dropping the journal does the same but reports no error.
    ///
    /// A shared journal's members keep their windows, which may be all that the server can read of this node.
    /// See [`Journal::leave`].
    ///
    /// # Errors
    /// The disk failed or the journal was fenced; the next opening recovers it.
    pub fn close(mut self) -> Result<(), WaitError> {
        self.shut_down(Voter::Disk)
    }

    /// Closes a shared journal after the server has recorded that this node left. The members are told to
    /// free their windows. Returns `false` if the server lacks records; the journal is then closed as by
    /// [`Journal::close`].
    ///
    /// # Errors
    /// The disk failed or the journal was fenced.
    pub fn leave(mut self) -> Result<bool, WaitError> {
        let kept = {
            let core = self.shared.core();
            core.writer.server_ack().map(|kept| kept.end) == Some(core.end)
        };
        let releases = if kept {
            self.shared.config.voter
        } else {
            Voter::Disk
        };
        self.shut_down(releases).map(|()| kept)
    }

    /// Closes the journal. Members are released if the journal's voter is `releases`.
    fn shut_down(&mut self, releases: Voter) -> Result<(), WaitError> {
        let (Some(disk), Some(maintenance)) = (self.disk.take(), self.maintenance.take()) else {
            return Ok(());
        };
        if self.mark.is_child() {
            // The threads belong to the parent: joining them here would never end. The links and the lock do,
            // too, and dropping the last owner would close them.
            let _parents = ManuallyDrop::new((disk, maintenance, Arc::clone(&self.shared)));
            return Err(WaitError::Closed);
        }
        drop(self.metrics.take());
        self.shared.begin_close();
        let end = self.shared.core().end.lsn;
        let voter = self.shared.config.voter;
        let flushed = match voter {
            Voter::Disk => self.shared.wait(CommitTicket { lsn: end, end }, Durability::Disk),
            // The disk thread writes everything before it ends. The server may never answer.
            Voter::Server => Ok(CommitVotes::default()),
        };
        if releases == voter && flushed.is_ok() {
            self.shared.connect_before_close();
        }
        self.shared.end();
        let disk_ended = disk.join();
        let view_file = maintenance.join();
        assert!(disk_ended.is_ok(), "the disk thread panicked");
        let view_file = view_file.expect("the maintenance thread panicked");
        let closed = flushed.and_then(|_| match releases == voter {
            true => self.release_members(view_file),
            false => self.store_end(),
        });
        self.shared.unlock();
        closed
    }

    /// Stores in the superblock that everything is on the disk, if it is.
    fn store_end(&self) -> Result<(), WaitError> {
        let (stable, disk_error) = {
            let core = self.shared.core();
            (core.writer.stable(), core.disk_error)
        };
        let failed = WaitError::DiskFailed;
        disk_error.map_or(Ok(()), |error| Err(failed(error)))?;
        let stored = retry_briefly(&self.shared, || self.shared.store_superblock(None, stable));
        stored.map_err(|failure| failed(failure.error))
    }

    /// Stores a view without members once everything is on the disk, and tells the members that they may free
    /// their windows.
    fn release_members(&self, mut view_file: ViewFile) -> Result<(), WaitError> {
        self.store_end()?;
        let (stable, reigns) = {
            let core = self.shared.core();
            (core.writer.stable(), core.writer.epochs().clone())
        };
        // The maintenance thread may have announced a view whose write was refused until now.
        let told = self.shared.copy.newest().version;
        let view = View {
            epochs: reigns,
            version: told.max(view_file.newest().version) + 1,
            counting: false,
            clean: None,
            base: stable,
            members: Vec::new(),
            ..view_file.newest().clone()
        };
        let stored = retry_briefly(&self.shared, || view_file.store(view.clone()));
        stored.map_err(|failure| WaitError::DiskFailed(failure.error))?;
        let mut core = self.shared.core();
        self.shared.announce_close(&mut core);
        Ok(())
    }

    /// The view that is durable here, or about to be.
    pub fn newest_view(&self) -> View {
        self.shared.copy.newest()
    }

    /// Sets a waker that is woken whenever the disk has more records or there is another view.
    pub fn watch(&self, waker: Arc<Waker>) {
        self.shared.copy.watch(waker);
    }

    /// Sets what the data lender in service holds; `None` if none is in service. Must be repeated every few
    /// moments, or the data lender counts as out of service.
    pub fn set_replica_ack(&self, kept: Option<ReplicaAck>) {
        let mut core = self.shared.core();
        core.writer.on_replica_ack(kept, self.shared.now());
        self.shared.publish(&mut core);
    }

    /// Sets what the server of a shared region keeps. A record appended here must end at `kept.end`.
    /// Acknowledgements may arrive out of order.
    pub fn set_server_ack(&self, kept: ServerAck) {
        let mut core = self.shared.core();
        core.writer.on_server_ack(kept, self.shared.now());
        self.shared.send(&mut core);
        drop(core);
        self.shared.room.notify_all();
    }

    /// The last acknowledgement of a shared region's server; `None` if the journal is not shared.
    pub fn server_ack(&self) -> Option<ServerAck> {
        self.shared.core().writer.server_ack()
    }

    /// Number of the view that would count if the server had it. [`Journal::newest_view`] is that view, or
    /// about to be a later one.
    pub fn view_for_server(&self) -> Option<u64> {
        self.shared.core().writer.view_for_server()
    }

    /// Whether appends to a shared journal may have to wait for its server alone, because members do not
    /// count or a view waits for the server. Records must then be sent to the server before they are
    /// acknowledged.
    pub fn needs_server(&self) -> bool {
        let core = self.shared.core();
        let shared = core.writer.server_ack().is_some();
        shared && (!core.writer.counting() || core.writer.view_for_server().is_some())
    }

    /// Notes that the server of a shared region has fenced this node. From now on nothing is acknowledged;
    /// the server decides the outcome of unacknowledged records.
    pub fn set_fenced_by_server(&self) {
        let (seen, _) = self.newest_view().fence();
        self.on_replica_fenced(seen);
    }

    /// The epoch that fenced this journal, if any.
    pub fn fenced(&self) -> Option<Epoch> {
        self.shared.core().writer.fenced()
    }

    /// Notes that the data lender follows a newer epoch: this journal was restored or taken over elsewhere.
    pub fn on_replica_fenced(&self, seen: Epoch) {
        let mut core = self.shared.core();
        core.writer.on_replica_fenced(seen);
        self.shared.publish(&mut core);
    }

    /// Where the durable records end, and the next record's chain value.
    pub fn stable_link(&self) -> Chain {
        self.shared.core().writer.stable_point()
    }

    /// The chain value at `at`, which is between the log's head and its stable end.
    ///
    /// # Errors
    /// `at` is out of range or not at a record, or the log cannot be read.
    pub fn link_at(&self, at: Lsn) -> Result<Chain, LogError> {
        records::link_at(&self.shared.log, self.shared.head_link(), self.stable_link(), at)
    }

    /// Fills `into` with the log's raw, sealed bytes from `from` on, up to the stable end. Returns their
    /// number. With them a log elsewhere becomes identical; they may end within a record.
    ///
    /// # Errors
    /// `from` is out of range, or the log cannot be read.
    pub fn read_raw(&self, from: Lsn, into: &mut [u8]) -> Result<usize, LogError> {
        let state = self.state();
        if from < state.head || from > state.stable {
            return Err(LogError::OutOfRange(from));
        }
        let there = state.stable.since(from).min(into.len() as u64) as usize;
        let read = self.shared.log.read(from, &mut into[..there]);
        read.map_err(LogError::Io)?;
        // Bytes trimmed in the meantime may have been overwritten.
        match from < self.state().head {
            true => Err(LogError::OutOfRange(from)),
            false => Ok(there),
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Err(error) = self.shut_down(Voter::Disk)
            && !self.mark.is_child()
        {
            tracing::warn!(%error, "the journal was not closed cleanly; the next opening will recover it");
        }
        if !self.mark.is_child() {
            drop(self.page.take());
            self.ups.stop();
        }
    }
}

impl RecordLog for Journal {
    fn append(
        &self,
        kind: RecordKind,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<CommitTicket, AppendError> {
        self.append_linked(kind, length, fill).map(|(ticket, _)| ticket)
    }

    fn wait(&self, ticket: CommitTicket, durability: Durability) -> Result<CommitVotes, WaitError> {
        if self.mark.is_child() {
            return Err(WaitError::Closed);
        }
        self.shared.wait(ticket, durability)
    }

    fn state(&self) -> LogState {
        let shared = self.shared.deref();
        LogState {
            head: Lsn(shared.head.load(Ordering::Acquire)),
            stable: Lsn(shared.stable.load(Ordering::Acquire)),
            acked: Lsn(shared.acked.load(Ordering::Acquire)),
            tail: Lsn(shared.tail.load(Ordering::Acquire)),
            capacity: shared.log.capacity(),
            payload_max: shared.payload_max,
        }
    }

    fn read(&self, from: Lsn, each: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
        let stable = self.state().stable;
        let start = self.link_at(from)?;
        records::read(&self.shared.log, &self.shared.sealer, start, stable, each)
    }

    fn trim(&self, head: Lsn) -> Result<(), LogError> {
        if self.mark.is_child() {
            return Err(LogError::Closed);
        }
        let link = self.link_at(head)?;
        if self.server_ack().is_some_and(|kept| kept.end.lsn < head) {
            return Err(LogError::OutOfRange(head));
        }
        let stable = self.state().stable;
        if let Err(failure) = self.shared.store_superblock(Some(link), stable) {
            // After a refusal the head is unchanged, and the caller retries.
            if failure.is_final() {
                self.shared.poison(failure.error, "log");
            }
            return Err(LogError::Io(failure.error));
        }
        self.shared.head.fetch_max(head.0, Ordering::AcqRel);
        Ok(())
    }
}

/// Completes a journal that is being closed; refused writes are retried for a short time.
fn retry_briefly(
    shared: &JournalState,
    mut work: impl FnMut() -> Result<(), CallError>,
) -> Result<(), CallError> {
    let mut policy = RetryPolicy::new();
    loop {
        let Err(failure) = work() else { return Ok(()) };
        match shared.judge(&mut policy, failure, true, "end") {
            RetryVerdict::Again(pause) => std::thread::sleep(Duration::from_nanos(pause.pause.0)),
            RetryVerdict::GiveUp => return Err(failure),
        }
    }
}

#[cfg(test)]
mod tests;
