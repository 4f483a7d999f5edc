//! Starting and stopping a lender.

use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_clients::{ClientsFileError, RegistryChange};
use netram_proto::id::Incarnation;
use netram_telemetry::{MetricsRegistration, MetricsRegistry};
use netram_transport::{Interest, Listener, MulticastReceiver, NetAddress, Poller, Security, Waker};
use netram_ups::PowerStatus;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::accept::LenderAcceptor;
use crate::config::{LenderConfig, operator_path};
use crate::data::DataService;
use crate::deposit::DepositThread;
use crate::error::LenderStartError;
use crate::journal::ShardJournals;
use crate::power::{self, PowerOrder};
use crate::report::StatusReport;
use crate::report_desk::ReportDesk;
use crate::shard::Shard;
use crate::silent;
use crate::spill::SpillError;
use crate::state::{DaemonState, ThreadEndGuard};
use crate::store::{RestoredMember, StoreOrigin, WindowStore};

const WAKER: u64 = u64::MAX;

/// A running lender. Dropping it stops it at once; its memory stays for the next process.
pub struct Lender {
    shared: Arc<DaemonState>,
    /// The lender's metrics, until it has ended.
    metrics: Mutex<Option<MetricsRegistration<DaemonState>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Result of stopping a lender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopReport {
    /// Number of windows that clients had not left at the end of the grace. They stay in the store.
    pub windows_left: usize,
    /// Whether a thread of the lender panicked.
    pub failed: bool,
}

impl Lender {
    /// Reserves the memory, restores what an earlier process left in it, listens and serves.
    ///
    /// # Errors
    /// `BadConfig` for a setting, `Store` if the memory cannot be obtained, `Bind` for an address, `System`
    /// for a thread or poller.
    pub fn start(config: LenderConfig) -> Result<Lender, LenderStartError> {
        Lender::start_with(config, None)
    }

    /// Starts like [`start`](Self::start) with a service that keeps replicas of volumes. Without one, clients
    /// that ask for a replica are refused.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub fn start_with(
        config: LenderConfig,
        data: Option<Arc<dyn DataService>>,
    ) -> Result<Lender, LenderStartError> {
        config.check()?;
        // Addresses come first, so that a lender that cannot listen leaves no store behind.
        let mut listeners = Vec::with_capacity(config.listen.len());
        for address in &config.listen {
            listeners.push(Listener::bind(address, config.listen_security())?);
        }
        let ordinary = listeners.len();
        if let Some(door) = &config.data_listener {
            for address in &door.listen {
                listeners.push(Listener::bind(address, door.security.clone())?);
            }
        }
        if let Some(group) = &config.multicast {
            // Shards join the group when a session asks; this checks at the start that it can be joined.
            MulticastReceiver::open(group).map_err(system(
                "join the multicast group; name another, or leave `--multicast` out",
            ))?;
        }
        let (store, kept) = WindowStore::open(&config.store_config())?;
        let served = listeners.len();
        listeners.extend(operator_listener(store.path()));
        let mut addresses: Vec<NetAddress> = listeners
            .iter()
            .take(served)
            .map(|listener| listener.address().clone())
            .collect();
        let data_addresses = addresses.split_off(ordinary);
        let shards = config.shard_count();
        let wakers: Result<Vec<Waker>, _> = (0..shards + 2).map(|_| Waker::new()).collect();
        let wakers = wakers.map_err(system("make a waker"))?;
        let shared = Arc::new(DaemonState::new(
            config,
            store,
            data,
            (addresses, data_addresses),
            wakers,
        ));
        announce(&shared, &kept);
        let lender = Lender {
            metrics: Mutex::new(Some(MetricsRegistry::of_process().add(&shared))),
            shared,
            threads: Mutex::default(),
        };
        // From here on an error drops the lender, which stops the threads that already run.
        lender.spawn(listeners, kept)?;
        Ok(lender)
    }

    fn spawn(&self, listeners: Vec<Listener>, kept: Vec<RestoredMember>) -> Result<(), LenderStartError> {
        let shared = &self.shared;
        let count = shared.counters.len();
        let mut kept_by_shard: Vec<Vec<RestoredMember>> = (0..count).map(|_| Vec::new()).collect();
        for kept in kept {
            kept_by_shard[shared.shard_of(kept.memory.journal())].push(kept);
        }
        let mut jobs: Vec<Job> = Vec::with_capacity(count + 4);
        let mut senders = Vec::with_capacity(count);
        for (index, kept) in kept_by_shard.into_iter().enumerate() {
            let poller = Poller::new().map_err(system("make a poller"))?;
            poller
                .add(&shared.wakers[index], WAKER, Interest::Read)
                .map_err(system("wait for a waker"))?;
            let (sender, inbox) = channel();
            senders.push(sender);
            let journals = ShardJournals::new(Arc::clone(shared), kept);
            let shard = Shard::new(index, Arc::clone(shared), poller, inbox, journals);
            let pin = shared.config.pin.get(index).copied();
            jobs.push((
                format!("netram-shard-{index}"),
                pin,
                Box::new(move || shard.run()),
            ));
        }
        if shared.config.spill.is_some() {
            let (disk, senders) = (Arc::clone(shared), senders.clone());
            jobs.push((
                "netram-windows".to_owned(),
                None,
                Box::new(move || silent::run(&disk, &senders)),
            ));
        }
        let (sender, inbox) = channel();
        let deposits = DepositThread::new(Arc::clone(shared), inbox).map_err(system("wait for deposits"))?;
        jobs.push((
            "netram-deposit".to_owned(),
            None,
            Box::new(move || deposits.run()),
        ));
        let poller = Poller::new().map_err(system("make a poller"))?;
        let acceptor = LenderAcceptor::open(Arc::clone(shared), poller, listeners, senders, sender)
            .map_err(system("wait for connections"))?;
        jobs.push(("netram-accept".to_owned(), None, Box::new(move || acceptor.run())));
        let reporter = Arc::clone(shared);
        jobs.push((
            "netram-report".to_owned(),
            None,
            Box::new(move || ReportDesk::run(&reporter)),
        ));
        for (name, pin, run) in jobs {
            let guard = ThreadEndGuard(Arc::clone(shared));
            let body = move || {
                // Dropped last, after everything that the thread owned.
                let _guard = guard;
                pin_to(pin);
                run();
            };
            let thread = std::thread::Builder::new()
                .name(name)
                .spawn(body)
                .map_err(system("start a thread"))?;
            self.threads
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(thread);
        }
        Ok(())
    }

    /// Asks clients to move their windows and pages to other lenders, and takes no new ones. The lender
    /// serves on until it is stopped or [undrained](Self::undrain); [`StatusReport::safe_to_stop`] says when
    /// all have moved.
    pub fn drain(&self) {
        self.shared.order_drain(true);
    }

    /// Ends a drain: clients may return.
    pub fn undrain(&self) {
        self.shared.order_drain(false);
    }

    /// Handles what feeds the lender's machine now, as `ups` says. On battery the lender drains. With the
    /// mains it lends again, unless its operator has given another order meanwhile. With a low battery, stop
    /// it.
    pub fn power(&self, ups: &str, status: &PowerStatus) {
        power::log(ups, status);
        match self.shared.power.note(ups, status, Instant::now()) {
            // Its operator's drain goes on with the mains.
            PowerOrder::Drain if self.shared.drain.last().drains() => self.shared.power.leave_to_operator(),
            PowerOrder::Drain => self.shared.order_drain(true),
            PowerOrder::Undrain => self.shared.order_drain(false),
            PowerOrder::None => (),
        }
    }

    /// Stops accepting connections and drains. Ends when no connected client has a window, no window has
    /// bytes, and owners have moved their pages, or when `grace` is over. Near its end clients are told so,
    /// and leave even without a replacement. The memory stays for the next process.
    pub fn stop(&self, grace: Duration) -> StopReport {
        tracing::info!(grace_ms = grace.as_millis() as u64, "stopping");
        self.shared.stop(Instant::now() + grace);
        self.wait()
    }

    /// Stops like [`stop`](Self::stop) and then writes the windows that are left to the directory for spills,
    /// if there is one. The next start takes them up from there or from memory.
    ///
    /// # Errors
    /// The windows could not be written. They are in memory only.
    pub fn stop_and_spill(&self, grace: Duration) -> Result<StopReport, SpillError> {
        let stopped = self.stop(grace);
        self.spill()?;
        Ok(stopped)
    }

    /// Writes what clients may still need to the disk. Returns whether it is all there.
    fn spill(&self) -> Result<bool, SpillError> {
        let store = &self.shared.store;
        let failed = |source| SpillError::failed(store.path(), "read")(source);
        if self.shared.config.spill.is_none() {
            return Ok(false);
        }
        if store.windows().map_err(failed)? == 0 {
            tracing::info!("no client has a window here: there is nothing to write to the disk");
            if store.spilled_windows() == 0 {
                store.drop_spill()?;
            }
            store.give_spill_room_back();
            return Ok(true);
        }
        let timings = &self.shared.timings;
        let spilled = store.spill().inspect_err(|_| timings.spills_failed.add(1))?;
        if let Some(spilled) = spilled {
            timings.spill.record(spilled.took);
            timings.spilled_bytes.add(spilled.bytes);
            tracing::info!(
                windows = spilled.windows, bytes = spilled.bytes, took_ms = spilled.took.as_millis() as u64,
                path = %spilled.path.display(), "the windows are on the disk"
            );
        }
        Ok(true)
    }

    /// Stops like [`stop`](Self::stop) and releases the memory to the machine. It is kept if there are
    /// windows that a client may still need (rule 23) and the settings do not allow discarding them.
    pub fn stop_and_give_back(&self, grace: Duration) -> StopReport {
        let stopped = self.stop(grace);
        let discards = self.shared.config.discard_windows;
        let is_on_disk = !discards
            && self.spill().unwrap_or_else(|error| {
                tracing::error!(%error, "the windows could not be written to the disk");
                false
            });
        if stopped.windows_left > 0 && !is_on_disk && !discards {
            tracing::warn!(
                windows_left = stopped.windows_left,
                store = %self.shared.store.path().display(),
                "the lent memory is kept for the next process: it has windows that clients may still need"
            );
            return stopped;
        }
        self.forget(stopped)
    }

    /// Stops like [`stop`](Self::stop) and releases the memory to the machine with everything in it.
    pub fn stop_and_forget(&self, grace: Duration) -> StopReport {
        let stopped = self.stop(grace);
        self.forget(stopped)
    }

    fn forget(&self, stopped: StopReport) -> StopReport {
        match self.shared.store.forget() {
            Ok(()) => tracing::info!(
                windows_left = stopped.windows_left,
                "the lent memory was released"
            ),
            Err(error) => tracing::error!(%error, "cannot release the lent memory"),
        }
        stopped
    }

    /// Waits until another thread or a failure has stopped the lender.
    pub fn wait(&self) -> StopReport {
        let windows_left = self.shared.wait_ended();
        drop(self.metrics.lock().unwrap_or_else(PoisonError::into_inner).take());
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // The panic was counted and printed where it happened.
            let _ = thread.join();
        }
        StopReport {
            windows_left,
            failed: self.shared.failed(),
        }
    }

    /// The lender's status, as sent in answer to a `Status` frame.
    pub fn report(&self) -> StatusReport {
        self.shared.report()
    }

    /// The same without copies of volumes, so that no disk is waited for.
    pub fn report_of_memory(&self) -> StatusReport {
        self.shared.report_of_memory(Instant::now())
    }

    /// Whether every thread that serves has gone round its loop since this returned `true` last. Ask once a
    /// second or less often; an idle thread answers within [`PULSE_MAX`](crate::limit::PULSE_MAX).
    pub fn threads_answered(&self) -> bool {
        self.shared.pulses.all_answered()
    }

    /// Reads the file of named clients again. Connections of clients that are still in it go on; those whose
    /// key is gone end within a moment, and their windows stay. After an error everything stays as it was.
    ///
    /// # Errors
    /// The file cannot be read, or says something that cannot be. `None`: there are no named clients.
    pub fn reload_clients(&self) -> Result<Option<RegistryChange>, ClientsFileError> {
        self.shared.clients.reload()
    }

    /// The addresses that the lender listens at, with the ports that the system chose.
    pub fn addresses(&self) -> &[NetAddress] {
        &self.shared.addresses
    }

    /// The addresses that accept only data sessions.
    pub fn data_addresses(&self) -> &[NetAddress] {
        &self.shared.data_addresses
    }

    /// The random number of this life of the lender's memory.
    pub fn incarnation(&self) -> Incarnation {
        self.shared.incarnation()
    }

    /// How the store was obtained: restored or new, and why.
    pub fn origin(&self) -> StoreOrigin {
        self.shared.store.origin()
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        self.shared.stop(Instant::now());
        for thread in self
            .threads
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            // The panic was counted and printed where it happened.
            let _ = thread.join();
        }
    }
}

/// Listens for the operator beside the store. A lender serves without it, if another user's file is there.
fn operator_listener(store: &Path) -> Option<Listener> {
    let address = NetAddress::Unix(operator_path(store));
    match Listener::bind(&address, Security::Insecure) {
        Ok(listener) => Some(listener),
        Err(error) => {
            tracing::warn!(%address, %error, "no socket for the operator: `netram lender forget` will not find this lender");
            None
        }
    }
}

/// A thread's name, its processor and its function.
type Job = (String, Option<usize>, Box<dyn FnOnce() + Send>);

fn system(step: &'static str) -> impl FnOnce(std::io::Error) -> LenderStartError {
    move |source| LenderStartError::System { step, source }
}

fn announce(shared: &DaemonState, kept: &[RestoredMember]) {
    let addresses: Vec<String> = shared.addresses.iter().map(NetAddress::to_string).collect();
    let store = &shared.store;
    tracing::info!(
        name = shared.config.name, addresses = addresses.join(" "), memory = store.memory(),
        store = %store.path().display(), incarnation = %store.incarnation(), origin = ?store.origin(),
        journals = kept.len(), shards = shared.counters.len(), wait = %shared.config.wait, "lending"
    );
    if matches!(store.origin(), StoreOrigin::Loaded | StoreOrigin::Reopened) {
        tracing::info!(
            windows = store.spilled_windows(),
            "windows from before the last stop are here to be read; clients join anew"
        );
    }
    if !store.origin().keeps_windows() && store.origin() != StoreOrigin::New {
        tracing::warn!(
            reason = ?store.origin(),
            "the store of an earlier process could not be restored; starting empty with a new incarnation"
        );
    }
    for kept in kept.iter().filter(|kept| kept.window_lost) {
        tracing::error!(
            journal = %kept.memory.journal(),
            "the window's bytes failed their checks after the restart: the window was dropped, its fence is kept"
        );
    }
}

/// Pins this thread to one processor. A failure only makes latencies less even.
fn pin_to(processor: Option<usize>) {
    let Some(processor) = processor else { return };
    let mut set = CpuSet::new();
    if processor < CpuSet::MAX_CPU {
        set.set(processor);
    }
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::warn!(processor, %error, "cannot pin the shard");
    }
}
