//! The maintenance thread: it keeps time for the writer, reconnects lenders, stores views, and polls the
//! links while no commit waits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use netram_proto::failure::{CallError, RetryPolicy, RetryVerdict};
use netram_proto::journal::{SlotPair, View};
use netram_transport::{Link, NetAddress, NetAddressError, Security, connect};

use crate::core::{Core, JournalState};
use crate::file::DiskFile;
use crate::orders::OrderListener;
use crate::reason::LinkFailure;

/// Interval at which the writer is told the time. It bounds how late a silent lender is noticed.
const TICK: Duration = Duration::from_millis(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time that a close waits for lenders to take notice. A lender that does not keeps its window until
/// the journal is opened again or deleted.
const CLOSE_NOTICE_TIMEOUT: Duration = Duration::from_millis(500);
/// Poll interval while a close waits.
const CLOSE_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The view file. Once the journal serves, only the maintenance thread writes it.
pub(crate) struct ViewFile {
    file: DiskFile,
    slots: SlotPair,
    newest: View,
    /// The last view that both slots were given.
    full: View,
}

/// A view to be stored, and how often the system refused it.
#[derive(Default)]
struct PendingView {
    view: Option<View>,
    policy: RetryPolicy,
    /// Earliest time of the next attempt.
    due: Option<Instant>,
}

impl ViewFile {
    pub(crate) fn new(file: DiskFile, slots: SlotPair, newest: View) -> ViewFile {
        let full = newest.clone();
        ViewFile {
            file,
            slots,
            newest,
            full,
        }
    }

    /// The view that the file holds.
    pub(crate) fn newest(&self) -> &View {
        &self.newest
    }

    /// Durably stores `view`.
    pub(crate) fn store(&mut self, view: View) -> Result<(), CallError> {
        view.store(&mut self.slots, &self.file, &mut self.full)?;
        self.newest = view;
        Ok(())
    }
}

/// Runs until the journal is closed, and returns the view file for the last view.
pub(crate) fn run(
    shared: &Arc<JournalState>,
    mut view_file: ViewFile,
    mut orders: Option<OrderListener>,
) -> ViewFile {
    let mut pending = PendingView::default();
    loop {
        let (view, wanted) = {
            let mut core = shared.core();
            if core.closed {
                return view_file;
            }
            // Frames may have arrived before a pause of this process, so they are handled before the time.
            // While a commit waits its thread polls the links; a second poller would only contend for the
            // lock.
            if let Some(_lead) = shared.waiting.lead() {
                shared.pump(&mut core);
            }
            core.writer.on_tick(shared.now());
            shared.send(&mut core);
            let now = shared.now();
            let wanted: Vec<ConnectTask> = (0..core.writer.lender_count())
                .filter_map(|index| {
                    let wants = core.writer.wants_connection(index, now);
                    wants.then(|| ConnectTask::of(&core, index))
                })
                .collect();
            (core.writer.view_to_store(), wanted)
        };
        for task in wanted {
            start_connecting(shared, task);
        }
        if let Some(orders) = &mut orders {
            orders.serve(shared);
        }
        if let Some(view) = view {
            announce(shared, view_file.newest(), &view);
            pending.view = Some(view);
        }
        // More may be due at once.
        if !store(shared, &mut view_file, &mut pending) {
            rest(shared);
        }
    }
}

fn rest(shared: &JournalState) {
    let woken = shared.maintenance.lock().expect("nothing panics under this lock");
    let waited = shared
        .maintenance_wake
        .wait_timeout_while(woken, TICK, |woken| !*woken);
    *waited.expect("nothing panics under this lock").0 = false;
}

fn announce(shared: &JournalState, before: &View, view: &View) {
    let names: Vec<&str> = view
        .members
        .iter()
        .map(|member| member.address.as_str())
        .collect();
    if view.has_windows_of(before) {
        // The journal becomes clean or wakes, twice per idle period.
        tracing::debug!(version = view.version, clean = ?view.clean.map(|lsn| lsn.0), "new view of the same members");
    } else {
        tracing::info!(version = view.version, counting = view.counting, members = ?names, "new view");
        shared.events.note(match names.is_empty() {
            true => "no lender is a member".to_owned(),
            false => format!("members are {}", names.join(", ")),
        });
    }
    // The view is announced at the same time for replicas; the writer decides when it counts.
    shared.copy.note_view(view.clone());
}

/// Stores the pending view if it is due. Returns whether it is stored.
///
/// A view that the system refuses stays pending. Until it is stored a commit needs the members of both the
/// old and the new view, so a crash may leave either in the file.
fn store(shared: &JournalState, view_file: &mut ViewFile, pending: &mut PendingView) -> bool {
    let Some(view) = &pending.view else { return false };
    if pending.due.is_some_and(|due| Instant::now() < due) {
        return false;
    }
    let Err(failure) = view_file.store(view.clone()) else {
        *pending = PendingView::default();
        shared.refusals.view.store(0, Ordering::Relaxed);
        let mut core = shared.core();
        core.writer.on_view_stored(shared.now());
        shared.counters.views.add(1);
        shared.send(&mut core);
        return true;
    };
    match shared.judge(&mut pending.policy, failure, false, "view") {
        RetryVerdict::Again(pause) => {
            shared.refusals.view.store(failure.error.errno, Ordering::Relaxed);
            pending.due = Some(Instant::now() + Duration::from_nanos(pause.pause.0));
        }
        RetryVerdict::GiveUp => {
            *pending = PendingView::default();
            shared.poison(failure.error, "view");
        }
    }
    false
}

/// A connection that is to be made.
struct ConnectTask {
    index: usize,
    address: String,
    security: Security,
}

impl ConnectTask {
    fn of(core: &Core, index: usize) -> ConnectTask {
        ConnectTask {
            index,
            address: core.writer.address(index).to_owned(),
            security: core.security.clone(),
        }
    }

    fn connect(&self) -> Result<Link, LinkFailure> {
        // The writer was given the text of an address.
        let unlikely = |error: NetAddressError| LinkFailure::LocalSystem(error.to_string());
        let address: NetAddress = self.address.parse().map_err(unlikely)?;
        connect(&address, &self.security, CONNECT_TIMEOUT).map_err(|error| LinkFailure::from(&error))
    }
}

/// Connects in a new thread, so that a silent host does not stop the maintenance thread's clock.
fn start_connecting(shared: &Arc<JournalState>, task: ConnectTask) {
    let (connecting, index) = (Arc::clone(shared), task.index);
    let spawned = std::thread::Builder::new()
        .name("netram-connect".into())
        .spawn(move || {
            let shared = connecting;
            let address = &task.address;
            let connected = task.connect().and_then(|mut link| {
                let introduced = shared.owner.introduce(&mut link);
                introduced.map_or(Err(LinkFailure::CutOff), |()| Ok(link))
            });
            let mut core = shared.core();
            if core.closed {
                return;
            }
            let watched = connected.and_then(|link| {
                let watched = shared.waiting.watch(&link, index);
                watched.map_or_else(
                    |error| Err(LinkFailure::LocalSystem(error.to_string())),
                    |()| Ok(link),
                )
            });
            match watched {
                Ok(link) => {
                    tracing::info!(lender = %address, "connected");
                    shared.events.note(format!("the lender {address} was connected"));
                    shared.install(&mut core, index, link);
                }
                Err(why) => {
                    // Attempts repeat, and each reason is logged once; a wrong key matters most.
                    if core.links.note_failure(index, &why) {
                        tracing::warn!(lender = %address, %why, "cannot reach the lender; retrying");
                        shared
                            .events
                            .note(format!("the lender {address} cannot be reached: {why}"));
                    }
                    core.writer.on_lost(index, shared.now());
                }
            }
        });
    if let Err(error) = spawned {
        let mut core = shared.core();
        core.links
            .note_failure(index, &LinkFailure::LocalSystem(error.to_string()));
        core.writer.on_lost(index, shared.now());
    }
}

impl JournalState {
    /// Called before the journal is closed: waits until each lender is either connected or unreachable. A
    /// journal closed right after its opening has no link yet to lenders that hold windows of earlier epochs.
    pub(crate) fn connect_before_close(&self) {
        let until = Instant::now() + CLOSE_NOTICE_TIMEOUT;
        let mut core = self.core();
        while Instant::now() < until && !core.closed {
            self.pump(&mut core);
            let now = self.now();
            let meeting =
                |index: usize| core.writer.is_meeting(index, now) && core.links.failure(index).is_none();
            if !(0..core.writer.lender_count()).any(meeting) {
                return;
            }
            drop(core);
            std::thread::sleep(CLOSE_POLL_INTERVAL);
            core = self.core();
        }
    }

    /// Tells the lenders that the journal is closed, and waits until the connected ones have confirmed.
    pub(crate) fn announce_close(&self, core: &mut Core) {
        let until = Instant::now() + CLOSE_NOTICE_TIMEOUT;
        core.writer.on_close();
        self.send(core);
        while core.writer.is_leaving() && Instant::now() < until {
            std::thread::sleep(CLOSE_POLL_INTERVAL);
            self.pump(core);
        }
    }

    /// Called before the journal is closed: refused writes are no longer retried for long.
    pub(crate) fn begin_close(&self) {
        let mut state = self.disk.state.lock().expect("nothing panics under this lock");
        state.closing = true;
        self.disk.wake.notify_all();
    }

    /// Ends the journal: all further operations fail, and waiting threads are woken.
    pub(crate) fn end(&self) {
        let mut core = self.core();
        core.closed = true;
        self.publish(&mut core);
        drop(core);
        self.room.notify_all();
        self.wake_maintenance();
        self.waiting.wake();
        let mut state = self.disk.state.lock().expect("nothing panics under this lock");
        state.stop = true;
        self.disk.wake.notify_all();
        self.disk.parked.store(false, Ordering::SeqCst);
    }
}
