//! Starting and stopping a lender.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_proto::id::Incarnation;
use netram_transport::{Interest, Listener, MulticastReceiver, NetAddress, Poller, Waker};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::accept::Acceptor;
use crate::config::LenderConfig;
use crate::data::DataService;
use crate::deposit::DepositThread;
use crate::error::LenderStartError;
use crate::journal::ShardJournals;
use crate::report::StatusReport;
use crate::shard::Shard;
use crate::state::{DaemonState, ThreadEndGuard};
use crate::store::{RestoredMember, StoreOrigin, WindowStore};

const WAKER: u64 = u64::MAX;

/// A running lender. Dropping it stops it without grace; its memory stays for the next process.
pub struct Lender {
    shared: Arc<DaemonState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// How a lender ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopReport {
    /// Windows that still held bytes when the grace was over. They stay in the store.
    pub windows_left: usize,
    /// Whether a thread of the lender ended by a panic.
    pub failed: bool,
}

impl Lender {
    /// Reserves the memory, takes up what an earlier process left in it, listens, and serves.
    pub fn start(config: LenderConfig) -> Result<Lender, LenderStartError> {
        Lender::start_with(config, None)
    }

    /// The same with somebody who keeps copies of volumes; without, clients that want one are refused.
    pub fn start_with(
        config: LenderConfig,
        data: Option<Arc<dyn DataService>>,
    ) -> Result<Lender, LenderStartError> {
        config.check()?;
        // Addresses first: a lender that cannot have them should not leave a store behind.
        let mut listeners = Vec::with_capacity(config.listen.len());
        for address in &config.listen {
            listeners.push(Listener::bind(address, config.security.clone())?);
        }
        let ordinary = listeners.len();
        if let Some(door) = &config.data_listener {
            for address in &door.listen {
                listeners.push(Listener::bind(address, door.security.clone())?);
            }
        }
        if let Some(group) = &config.multicast {
            // Shards join it when somebody asks; that it can be joined is to be known now.
            MulticastReceiver::open(group).map_err(system(
                "join the multicast group; name another, or leave `--multicast` out",
            ))?;
        }
        let (store, kept) = WindowStore::open(&config.store_config())?;
        let mut addresses: Vec<NetAddress> = listeners
            .iter()
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
            shared,
            threads: Mutex::default(),
        };
        // From here on an error drops the lender, which stops the threads that run already.
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
        let mut jobs: Vec<Job> = Vec::with_capacity(count + 2);
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
        let (sender, inbox) = channel();
        let keeper = DepositThread::new(Arc::clone(shared), inbox).map_err(system("wait for deposits"))?;
        jobs.push(("netram-deposit".to_owned(), None, Box::new(move || keeper.run())));
        let poller = Poller::new().map_err(system("make a poller"))?;
        let acceptor = Acceptor::new(Arc::clone(shared), poller, listeners, senders, sender)
            .map_err(system("wait for connections"))?;
        jobs.push(("netram-accept".to_owned(), None, Box::new(move || acceptor.run())));
        for (name, pin, run) in jobs {
            let guard = ThreadEndGuard(Arc::clone(shared));
            let body = move || {
                // Dropped last, when all that the thread owned has gone.
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

    /// Stops: nobody is let in any more, clients are told to move away, and the lender ends when every window
    /// is empty or `grace` is over. The memory stays, for the next process.
    pub fn stop(&self, grace: Duration) -> StopReport {
        tracing::info!(grace_ms = grace.as_millis() as u64, "stopping");
        self.shared.stop(Instant::now() + grace);
        self.wait()
    }

    /// Stops like [`stop`](Self::stop), and gives the memory back to the machine, unless a window has bytes
    /// that a client may still need (rule 23) and the settings do not say to discard them.
    pub fn stop_and_give_back(&self, grace: Duration) -> StopReport {
        let stopped = self.stop(grace);
        if stopped.windows_left > 0 && !self.shared.config.discard_windows {
            tracing::warn!(
                windows_left = stopped.windows_left,
                store = %self.shared.store.path().display(),
                "the lent memory is kept for the next process: it holds bytes that clients may still need"
            );
            return stopped;
        }
        self.forget(stopped)
    }

    /// Stops like [`stop`](Self::stop), and gives the memory back to the machine, with whatever is left in
    /// it.
    pub fn stop_and_forget(&self, grace: Duration) -> StopReport {
        let stopped = self.stop(grace);
        self.forget(stopped)
    }

    fn forget(&self, stopped: StopReport) -> StopReport {
        match self.shared.store.forget() {
            Ok(()) => tracing::info!(
                windows_left = stopped.windows_left,
                "the lent memory was given back"
            ),
            Err(error) => tracing::error!(%error, "the lent memory could not be given back"),
        }
        stopped
    }

    /// Waits until the lender has been stopped, by another thread or by a failure.
    pub fn wait(&self) -> StopReport {
        let windows_left = self.shared.wait_ended();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A panic has been counted and printed where it happened.
            let _ = thread.join();
        }
        StopReport {
            windows_left,
            failed: self.shared.failed(),
        }
    }

    /// The lender's status, as a `Status` frame would be answered.
    pub fn report(&self) -> StatusReport {
        self.shared.report()
    }

    /// Where it listens, with the ports that the system chose.
    pub fn addresses(&self) -> &[NetAddress] {
        &self.shared.addresses
    }

    /// Where it listens for data sessions alone.
    pub fn data_addresses(&self) -> &[NetAddress] {
        &self.shared.data_addresses
    }

    /// Names this life of the lender's memory.
    pub fn incarnation(&self) -> Incarnation {
        self.shared.incarnation()
    }

    /// Whether an earlier process's memory was taken up.
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
            // As in `wait`.
            let _ = thread.join();
        }
    }
}

/// A thread's name, its processor, and what it does.
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
    if !matches!(store.origin(), StoreOrigin::Restored | StoreOrigin::New) {
        tracing::warn!(
            reason = ?store.origin(),
            "what an earlier process left in the store could not be taken up; starting empty, under a new incarnation"
        );
    }
    for kept in kept.iter().filter(|kept| kept.window_lost) {
        tracing::error!(
            journal = %kept.memory.journal(),
            "the window's bytes did not check after the restart; it was dropped, its seal is kept"
        );
    }
}

/// Pins this thread to one processor. Without it the lender works, only less evenly.
fn pin_to(processor: Option<usize>) {
    let Some(processor) = processor else { return };
    let mut set = CpuSet::new();
    if processor < CpuSet::MAX_CPU {
        set.set(processor);
    }
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::warn!(processor, %error, "the shard could not be pinned");
    }
}
