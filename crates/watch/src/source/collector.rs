//! The threads that ask, and the state that they keep.
//!
//! | thread | does |
//! |---|---|
//! | `netram-ask`, [`WORKERS`] of them | each asks one target at a time, within a deadline |
//! | `netram-search` | looks for lenders that are not known yet |
//! | `netram-local` | looks for journals that are open on this machine |
//! | `netram-view` | publishes the state twice a second |
//!
//! A view takes the last state that was published, and waits for nobody.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use netram_discover::probe::request;
use netram_discover::{ClusterFile, Discovery, FoundBy, FoundLender, ProbeError, find};
use netram_journal::LinkFailure;
use netram_journal::orders::{OpenJournalSocket, OrderError, open_journals};
use netram_lender::StatusReport;
use netram_proto::wire::{FrameHeader, FrameKind};
use netram_transport::{NetAddress, Security, connect};

use super::exposition::read_page;
use super::page::PageTarget;
use super::schedule::AskSchedule;
use crate::limit::{ASK_TIMEOUT, LOCAL_SEARCH_INTERVAL, SEARCH_INTERVAL, WORKERS};
use crate::view::{ClusterView, ClusterWatcher, LenderRow, Moment, Sighting};
use crate::words::count;

/// Time between two published states.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(500);
/// Longest sleep of a thread that has nobody to ask.
const IDLE: Duration = Duration::from_millis(200);

/// Reads the cluster file anew, so that a change of it needs no restart.
pub type ClusterReader = Box<dyn Fn() -> Result<ClusterFile, String> + Send>;
/// Tells what journals of this machine are used for: directory, kind, and name.
pub type UseReader = Box<dyn Fn() -> Vec<(String, String, String)> + Send>;

/// The targets that are asked.
pub struct CollectorSettings {
    /// The cluster file.
    pub cluster: ClusterReader,
    /// Lenders that are known beside it.
    pub lenders: Vec<NetAddress>,
    /// Protection of the links to lenders.
    pub security: Security,
    /// Pages of metrics.
    pub pages: Vec<PageTarget>,
    /// The uses of journals.
    pub uses: UseReader,
}

/// A state that is kept up to date, until it is dropped.
pub struct ViewCollector {
    shared: Arc<CollectorShared>,
    is_fixed: bool,
}

/// Something to ask.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AskTarget {
    Lender(NetAddress),
    Journal(OpenJournalSocket),
    Page(PageTarget),
}

struct CollectorShared {
    begun: Instant,
    security: Security,
    state: Mutex<CollectorState>,
    /// Signalled when there may be a target to ask, and at the end.
    wake: Condvar,
    view: Mutex<(Instant, Arc<ClusterView>)>,
}

struct CollectorState {
    watcher: ClusterWatcher,
    schedule: AskSchedule<AskTarget>,
    /// Journals of other users.
    foreign: BTreeSet<OpenJournalSocket>,
    remarks: Vec<String>,
    has_searched: [bool; 2],
    is_over: bool,
}

impl ViewCollector {
    /// Begins to ask.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(settings: CollectorSettings) -> io::Result<ViewCollector> {
        let CollectorSettings {
            cluster,
            lenders,
            security,
            pages,
            uses,
        } = settings;
        let collector = ViewCollector::with(security, ClusterView::default());
        let shared = &collector.shared;
        {
            let mut state = shared.lock();
            for lender in &lenders {
                state.schedule.add(0, AskTarget::Lender(lender.clone()));
            }
            for page in pages {
                state.schedule.add(0, AskTarget::Page(page));
            }
        }
        // A thread that is not started ends the others: the collector is dropped.
        for _ in 0..WORKERS {
            shared.spawn("netram-ask", |shared| shared.work())?;
        }
        shared.spawn("netram-search", move |shared| shared.search(&cluster, &lenders))?;
        shared.spawn("netram-local", move |shared| shared.look_here(&uses))?;
        shared.spawn("netram-view", |shared| shared.publish())?;
        Ok(collector)
    }

    /// A state that stays as it is.
    pub fn fixed(view: ClusterView) -> ViewCollector {
        let mut collector = ViewCollector::with(Security::Insecure, view);
        collector.is_fixed = true;
        collector
    }

    /// Whether the state stays as it is.
    pub fn is_fixed(&self) -> bool {
        self.is_fixed
    }

    fn with(security: Security, view: ClusterView) -> ViewCollector {
        let state = CollectorState {
            watcher: ClusterWatcher::default(),
            schedule: AskSchedule::new(),
            foreign: BTreeSet::new(),
            remarks: Vec::new(),
            has_searched: [false; 2],
            is_over: false,
        };
        ViewCollector {
            shared: Arc::new(CollectorShared {
                begun: Instant::now(),
                security,
                state: Mutex::new(state),
                wake: Condvar::new(),
                view: Mutex::new((Instant::now(), Arc::new(view))),
            }),
            is_fixed: false,
        }
    }

    /// The last state, and its age.
    pub fn view(&self) -> (Arc<ClusterView>, Duration) {
        let view = self.shared.view.lock().unwrap_or_else(PoisonError::into_inner);
        let age = match self.is_fixed {
            true => Duration::ZERO,
            false => view.0.elapsed(),
        };
        (Arc::clone(&view.1), age)
    }
}

impl Drop for ViewCollector {
    /// Threads end by themselves: some may wait for an answer.
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.wake.notify_all();
    }
}

impl CollectorShared {
    fn lock(&self) -> MutexGuard<'_, CollectorState> {
        // A panic is printed where it happens; the state is complete between two sightings.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(
        self: &Arc<Self>,
        name: &str,
        run: impl FnOnce(&CollectorShared) + Send + 'static,
    ) -> io::Result<()> {
        let shared = Arc::clone(self);
        let builder = std::thread::Builder::new().name(name.to_owned());
        builder.spawn(move || run(&shared)).map(|_| ())
    }

    fn now(&self) -> Moment {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment {
            mono_ms: self.begun.elapsed().as_millis() as u64,
            unix_ms: since_1970.as_millis() as u64,
        }
    }

    /// Waits, at most this long. Returns whether the thread goes on.
    fn wait(&self, span: Duration) -> bool {
        let deadline = Instant::now() + span;
        let mut state = self.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if state.is_over || left.is_zero() {
                return !state.is_over;
            }
            let waited = self.wake.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn work(&self) {
        let mut state = self.lock();
        while !state.is_over {
            let Some(target) = state.schedule.next(self.now().mono_ms) else {
                let waited = self.wake.wait_timeout(state, IDLE);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            drop(state);
            let (sighting, has_answered) = self.ask(&target);
            let now = self.now();
            state = self.lock();
            let is_known = state.schedule.asked(now.mono_ms, &target, has_answered);
            match (sighting, target) {
                (Some(sighting), _) if is_known => state.watcher.handle(now, sighting),
                (None, AskTarget::Journal(socket)) if has_answered => {
                    state.foreign.insert(socket);
                }
                _ => (),
            }
        }
    }

    /// Asks a target. Returns what it said, and whether it answered.
    fn ask(&self, target: &AskTarget) -> (Option<Sighting>, bool) {
        match target {
            AskTarget::Lender(address) => {
                let answer = ask_lender(address, &self.security);
                let has_answered = answer.is_ok();
                let sighting = Sighting::Lender {
                    address: address.to_string(),
                    answer: answer.map(Box::new),
                };
                (Some(sighting), has_answered)
            }
            AskTarget::Journal(socket) => {
                let answer = match socket.report(ASK_TIMEOUT) {
                    Ok(report) => Ok(Box::new(report)),
                    // Its user is asked for by nobody else.
                    Err(OrderError::Foreign(_)) => return (None, true),
                    // It is being closed: the next look tells.
                    Err(OrderError::Io(error)) if error.kind() == ErrorKind::ConnectionRefused => {
                        return (None, false);
                    }
                    Err(error) => Err(error.to_string()),
                };
                let has_answered = answer.is_ok();
                let socket = socket.name().to_owned();
                (Some(Sighting::Journal { socket, answer }), has_answered)
            }
            AskTarget::Page(page) => {
                let answer = page.fetch(ASK_TIMEOUT).map(|text| Box::new(read_page(&text)));
                let has_answered = answer.is_ok();
                let page = page.to_string();
                (Some(Sighting::Process { page, answer }), has_answered)
            }
        }
    }

    /// Looks for lenders, again and again.
    fn search(&self, cluster: &ClusterReader, lenders: &[NetAddress]) {
        loop {
            let (discovery, mut remarks) = match cluster() {
                Ok(cluster) => (find(&cluster, lenders, &self.security), Vec::new()),
                Err(error) => (find(&nowhere(), lenders, &self.security), vec![error]),
            };
            remarks.extend(discovery.failures.iter().map(ToString::to_string));
            self.found(&discovery, remarks);
            if !self.wait(SEARCH_INTERVAL) {
                return;
            }
        }
    }

    fn found(&self, discovery: &Discovery, remarks: Vec<String>) {
        let now = self.now();
        let mut state = self.lock();
        state.remarks = remarks;
        let named = discovery.lenders.iter().map(named).collect();
        state.watcher.handle(now, Sighting::Named(named));
        for lender in &discovery.lenders {
            let target = AskTarget::Lender(lender.address.clone());
            state.schedule.add(now.mono_ms, target);
        }
        let CollectorState {
            watcher, schedule, ..
        } = &mut *state;
        schedule.retain(|target| match target {
            AskTarget::Lender(address) => watcher.has_lender(&address.to_string()),
            _ => true,
        });
        state.has_searched[0] = true;
        drop(state);
        self.wake.notify_all();
    }

    /// Looks for open journals, again and again.
    fn look_here(&self, uses: &UseReader) {
        let mut known = BTreeSet::new();
        loop {
            // The kernel's table can always be read; without it, nothing changes.
            let open = open_journals().unwrap_or_else(|_| known.clone());
            let used = uses();
            let now = self.now();
            let mut state = self.lock();
            state.watcher.handle(now, Sighting::Uses(used));
            for socket in known.difference(&open) {
                state
                    .watcher
                    .handle(now, Sighting::Closed(socket.name().to_owned()));
            }
            state.foreign.retain(|socket| open.contains(socket));
            state.schedule.retain(|target| match target {
                AskTarget::Journal(socket) => open.contains(socket),
                _ => true,
            });
            for socket in open.difference(&known) {
                state
                    .schedule
                    .add(now.mono_ms, AskTarget::Journal(socket.clone()));
            }
            state.has_searched[1] = true;
            drop(state);
            self.wake.notify_all();
            known = open;
            if !self.wait(LOCAL_SEARCH_INTERVAL) {
                return;
            }
        }
    }

    fn publish(&self) {
        loop {
            let now = self.now();
            let taken = Instant::now();
            let view = {
                let mut state = self.lock();
                let mut remarks = state.remarks.clone();
                let foreign = state.foreign.len() as u64;
                if foreign > 0 {
                    remarks.push(format!(
                        "{} of other users: only root is told about all",
                        count(foreign, "open journal")
                    ));
                }
                state.watcher.handle(now, Sighting::Remarks(remarks));
                if state.has_searched == [true, true] && state.schedule.is_complete() {
                    state.watcher.handle(now, Sighting::Complete);
                }
                state.watcher.view(now)
            };
            *self.view.lock().unwrap_or_else(PoisonError::into_inner) = (taken, Arc::new(view));
            if !self.wait(PUBLISH_INTERVAL) {
                return;
            }
        }
    }
}

/// A cluster file that names nothing.
fn nowhere() -> ClusterFile {
    ClusterFile {
        mdns: false,
        ..ClusterFile::none()
    }
}

fn named(lender: &FoundLender) -> LenderRow {
    let source = |by: &FoundBy| match by {
        FoundBy::Known => "NETRAM_LENDERS".to_owned(),
        by => by.to_string(),
    };
    LenderRow {
        address: lender.address.to_string(),
        name: lender.name.clone().unwrap_or_default(),
        domain: lender.domain.clone().unwrap_or_default(),
        found_by: lender.by.iter().map(source).collect(),
        ..LenderRow::default()
    }
}

fn ask_lender(address: &NetAddress, security: &Security) -> Result<LenderRow, String> {
    let deadline = Instant::now() + ASK_TIMEOUT;
    let body = connect(address, security, ASK_TIMEOUT)
        .map_err(ProbeError::from)
        .and_then(|link| request(link, FrameHeader::new(FrameKind::Status), deadline))
        .map_err(|error| match &error {
            ProbeError::Connect(error) => LinkFailure::from(error).to_string(),
            ProbeError::NoAnswer => LinkFailure::NoAnswer.to_string(),
            other => other.to_string(),
        })?;
    let report = StatusReport::from_frame_body(&body);
    let report = report.map_err(|error| format!("it sent a report that cannot be read: {error}"))?;
    Ok(LenderRow::of_report(&address.to_string(), &report))
}
