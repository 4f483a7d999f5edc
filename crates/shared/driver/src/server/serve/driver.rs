//! The serving thread: it owns the machine, the store's memory and all links, and never waits for a disk.
//!
//! Each turn takes the mailbox, the links' messages and the disk's progress, and carries out the machine's
//! actions after each event. At its end all links are sent what is due. So a record is on its way to all
//! other nodes in the turn in which it came.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_journal::FencedJournalError;
use netram_journal::fenced_journal::FencedRecords;
use netram_proto::failure::RetryBackoff;
use netram_proto::id::Lsn;
use netram_proto::port::IoError;
use netram_proto::time::Time;
use netram_rvm::record::KIND_COMPACT;
use netram_shared_machine::server::{DurableFact, LinkEnd, NodeState, ServerAction, SessionId};
use netram_shared_machine::{NodeId, RecordNumber, RegionServer};
use netram_transport::{Interest, Poller, ReadyEvents, WaitPolicy, WaitStep};

use super::RegionServeError;
use super::mailbox::{DriverEvent, DriverMailbox};
use super::node_link::{NodeLink, ServerPayload};
use super::readings::Readings;
use super::receive::RecordRefusal;
use crate::channel::{AcceptedSession, SessionKind};
use crate::limit::HOUSEKEEPING_INTERVAL;
use crate::server::store::{PayloadError, RegionStore};

pub(super) const WAKER_TOKEN: u64 = u64::MAX;
const EVENTS: usize = 64;

/// State of the serving thread.
pub(super) struct ServeDriver {
    pub(super) server: RegionServer<ServerPayload>,
    pub(super) store: RegionStore,
    /// Addresses on which nodes connect.
    pub(super) addresses: Vec<String>,
    /// Status that was last sent over a link, and its time.
    pub(super) last_status: Option<(Instant, Vec<u8>)>,
    pub(super) links: BTreeMap<SessionId, NodeLink>,
    pub(super) readings: Readings,
    pub(super) mailbox: Arc<DriverMailbox>,
    pub(super) poller: Poller,
    pub(super) wait: WaitPolicy,
    pub(super) lease: Duration,
    /// Longest payload that the log takes, in bytes.
    pub(super) payload_bytes_max: usize,
    pub(super) sessions: u64,
    /// Facts on their way to the disk: end of each in the log, and its ticket.
    pub(super) facts: VecDeque<(Lsn, u64)>,
    /// Action that the disk refused, which must be carried out before any other.
    pub(super) stalled: Option<ServerAction<ServerPayload>>,
    pub(super) refusals: RetryBackoff,
    /// Lenders in the nodes' settings: any node may have a window there.
    pub(super) lenders: Vec<String>,
    /// Gone nodes for which a failure to tell their lenders has been logged.
    pub(super) forget_failure_logged: BTreeSet<NodeId>,
    /// Reasons for the fencing of nodes that are not gone yet.
    pub(super) fenced: BTreeMap<NodeId, String>,
    pub(super) began: Instant,
    pub(super) now: Instant,
    /// Time of the machine's next tick.
    pub(super) tick: Instant,
    /// Sessions with bytes that have left the kernel, which the poller does not report.
    pub(super) due: Vec<SessionId>,
    /// Whether a link could be sent more at once.
    pub(super) unfilled: bool,
    /// Time of the last message for whose answer a transaction may be waiting.
    pub(super) requested_at: Instant,
    /// Reused memory for a list of all sessions, and for a message's head.
    pub(super) all: Vec<SessionId>,
    pub(super) scratch: Vec<u8>,
}

impl ServeDriver {
    /// Serves until it is told to stop, and makes everything durable.
    ///
    /// # Errors
    ///
    /// [`RegionServeError`] if the disk or the poller fails.
    pub(super) fn run(mut self) -> Result<(), RegionServeError> {
        let mut events = ReadyEvents::with_capacity(EVENTS);
        let mut news = Vec::new();
        self.run_actions()?;
        while !self.mailbox.is_stopping() {
            self.now = Instant::now();
            let mut moved = self.take_events(&mut news)?;
            moved |= self.take_links(&events)?;
            moved |= self.take_time()?;
            let server = &self.server;
            self.readings
                .start_due(self.now, |node| is_awaited(server.node_state(node)));
            if moved || self.unfilled {
                self.fill_all()?;
            }
            self.wait(&mut events)?;
        }
        self.finish()
    }

    /// Waits for more events. While only records and the disk are expected it sleeps at once, since no
    /// transaction waits for them. A polling thread would take the core from threads of nodes and lenders
    /// that a transaction does wait for.
    fn wait(&mut self, events: &mut ReadyEvents) -> Result<(), RegionServeError> {
        let step = match self.unfilled || !self.due.is_empty() {
            true => WaitStep::Poll,
            false => self.wait.step(self.now.duration_since(self.requested_at)),
        };
        let slept = match step {
            WaitStep::Poll => None,
            WaitStep::Yield => {
                netram_transport::yield_core();
                None
            }
            WaitStep::Block => {
                let longest = self.tick.saturating_duration_since(self.now);
                let (post, poller) = (&self.mailbox, &self.poller);
                let sleep = || poller.wait(events, Some(longest));
                post.waker.sleep_until_woken(|| post.has_any(), sleep)?
            }
        };
        if slept.is_none() {
            self.poller.wait(events, Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// Handles the events of other threads, and the disk's progress.
    fn take_events(&mut self, news: &mut Vec<DriverEvent>) -> Result<bool, RegionServeError> {
        if !self.mailbox.collect(news) {
            return Ok(false);
        }
        for one in news.drain(..) {
            match one {
                DriverEvent::Arrived(arrival) => self.add_link(*arrival),
                DriverEvent::JournalRead(node, outcome) => self.on_journal_read(node, outcome)?,
                DriverEvent::ForgetTried(node, untold) => self.on_forget_tried(node, &untold)?,
                DriverEvent::AcceptLoss(node, asker) => {
                    let accepted = self.accept_loss(node)?;
                    // The client may have disconnected.
                    let _ = asker.try_send(accepted);
                }
                DriverEvent::StatusRequested(asker) => {
                    // The client may have disconnected.
                    let _ = asker.try_send(self.report());
                }
            }
        }
        if let Some(error) = self.store.trouble() {
            return Err(RegionServeError::Disk(error));
        }
        self.take_durable()?;
        Ok(true)
    }

    /// Reports to the machine what is durable. A fact is durable together with the records before it,
    /// whichever of them the machine hears of first.
    fn take_durable(&mut self) -> Result<(), RegionServeError> {
        let durable = self.store.durable();
        let mut position = None;
        while let Some(kept) = self.store.next_durable() {
            position = Some(kept.position);
        }
        if let Some(position) = position {
            self.server.on_durable(position);
        }
        let mut ticket = None;
        while let Some((_, next)) = self.facts.pop_front_if(|(end, _)| *end <= durable) {
            ticket = Some(next);
        }
        if let Some(ticket) = ticket {
            self.server.on_stored(self.time(), ticket);
        }
        self.run_actions()
    }

    fn add_link(&mut self, arrival: AcceptedSession) {
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let (errand, owned) = (arrival.kind, arrival.owned);
        let mut line = NodeLink::new(arrival, self.now);
        if errand == SessionKind::Status {
            line.channel.queue(&[self.status_lately()]);
            line.close(self.now);
        }
        if let Err(error) = self.poller.add(&line.channel, session.0, Interest::Read) {
            // The kernel's memory or watches are exhausted. The client finds its connection closed and tries
            // again; present sessions go on.
            tracing::error!(peer = line.channel.peer(), %error, "cannot wait for a new session; it is closed");
            return;
        }
        self.links.insert(session, line);
        if let Some(journal) = owned {
            self.server.on_proven(session, journal);
        }
        // Bytes that have left the kernel with the greeting are not reported.
        self.due.push(session);
    }

    fn take_time(&mut self) -> Result<bool, RegionServeError> {
        if self.now < self.tick {
            return Ok(false);
        }
        self.server.on_tick(self.time());
        self.give_up_accepted();
        self.tick = self.now + (self.lease / 8).min(HOUSEKEEPING_INTERVAL);
        self.plan_tick();
        self.run_actions()?;
        let now = self.now;
        let over = |(session, line): (&SessionId, &NodeLink)| {
            let stranger = self.server.node(*session).is_none() && line.closing.is_none();
            let over = line.is_over(now) || (stranger && line.deferred.is_none() && line.is_silent(now));
            over.then_some(*session)
        };
        let is_revoked =
            |(session, line): (&SessionId, &NodeLink)| line.channel.is_revoked().then_some(*session);
        let revoked: Vec<SessionId> = self.links.iter().filter_map(is_revoked).collect();
        let over: Vec<SessionId> = self.links.iter().filter_map(over).collect();
        for session in over {
            self.end(session, "its time is over", LinkEnd::Broken)?;
        }
        for session in revoked {
            self.end(
                session,
                "its key is no longer in the file of clients",
                LinkEnd::Broken,
            )?;
        }
        Ok(true)
    }

    /// Plans the machine's next tick for the moment at which a node's lease ends.
    pub(super) fn plan_tick(&mut self) {
        if let Some(late) = self.server.deadline() {
            self.tick = self.tick.min(self.began + Duration::from_nanos(late.0));
        }
    }

    /// Keeps an action that the disk refused, to try it again after a pause. Until then links are served and
    /// nothing becomes durable; the nodes' members hold their records.
    fn stall(&mut self, action: ServerAction<ServerPayload>, why: &dyn std::fmt::Display) {
        self.stalled = Some(action);
        let pause = self.refusals.failed(IoError::ENOSPC);
        if pause.should_log {
            tracing::error!(%why, "the server's disk refuses a write; no record becomes durable here until it is accepted; trying again");
        }
        self.tick = self.tick.min(self.now + Duration::from_nanos(pause.pause.0));
    }

    fn stored(&mut self) {
        if self.refusals.succeeded() > 0 {
            tracing::info!("the server's disk accepts writes again");
        }
    }

    /// Carries out the machine's actions.
    pub(super) fn run_actions(&mut self) -> Result<(), RegionServeError> {
        while let Some(action) = self.stalled.take().or_else(|| self.server.poll()) {
            match action {
                ServerAction::Store { ticket, fact } => {
                    let end = match &fact {
                        DurableFact::Gone { node } if !self.has_lenders(*node) => self.store.retire(*node),
                        fact => self.store.record_fact(fact.clone()),
                    };
                    let end = match end {
                        Err(error) if error.is_refusal() => {
                            self.stall(ServerAction::Store { ticket, fact }, &error);
                            return Ok(());
                        }
                        end => end?,
                    };
                    self.stored();
                    self.facts.push_back((end, ticket));
                }
                ServerAction::Apply {
                    position,
                    node,
                    number,
                    end,
                    payload,
                } => {
                    let merged = match self.store.merge(node, number, end, &payload) {
                        Err(error) if error.is_refusal() => {
                            let action = ServerAction::Apply {
                                position,
                                node,
                                number,
                                end,
                                payload,
                            };
                            self.stall(action, &error);
                            return Ok(());
                        }
                        merged => merged?,
                    };
                    self.stored();
                    assert_eq!(merged.position, position, "machine and table count alike");
                }
                ServerAction::Recover { node, journal } => {
                    let accepted = self.is_loss_accepted(node);
                    self.readings.add(node, journal, accepted, self.now);
                }
                ServerAction::Forget { node, journal } => {
                    self.fenced.remove(&node);
                    self.readings.forget(node, &journal, &self.lenders);
                }
                ServerAction::Fenced { node, why } => {
                    tracing::warn!(node = node.0, %why, "a node is fenced");
                    self.fenced.insert(node, why.to_string());
                }
                ServerAction::Refused { node, why } => {
                    tracing::error!(
                        node = node.0,
                        %why,
                        "a dead node's journal has an invalid record: this record and all later ones are left out"
                    );
                }
                ServerAction::Close(session) => {
                    self.readings.closed(session);
                    self.links.remove(&session);
                }
            }
        }
        Ok(())
    }

    fn is_loss_accepted(&self, node: NodeId) -> bool {
        let node = self.store.table().node(node);
        node.is_some_and(|node| node.loss_accepted)
    }

    /// Whether any lender may have a window of a node's journal.
    fn has_lenders(&self, node: NodeId) -> bool {
        let node = self.store.table().node(node);
        let members = node.is_some_and(|node| !node.view.members.is_empty());
        members || !self.lenders.is_empty()
    }

    /// Notes the end of an attempt to tell a gone node's lenders that its windows may be freed. `untold`:
    /// lenders that could not be reached, which is logged once per node.
    fn on_forget_tried(&mut self, node: NodeId, untold: &[String]) -> Result<(), RegionServeError> {
        let all = untold.is_empty();
        if all {
            self.forget_failure_logged.remove(&node);
        } else if self.forget_failure_logged.insert(node) {
            let lenders = untold.join(", ");
            tracing::warn!(
                node = node.0,
                lenders,
                "some lenders could not be told to free the memory of a node that is gone; they will be told when they can be reached"
            );
        }
        self.server.on_forget_tried(self.time(), node, all);
        self.run_actions()
    }

    /// Handles the end of an attempt to read a dead node's journal, and the messages that waited for it.
    fn on_journal_read(
        &mut self,
        node: NodeId,
        outcome: Result<FencedRecords, FencedJournalError>,
    ) -> Result<(), RegionServeError> {
        match outcome {
            Ok(found) => {
                if let Some(loss) = &found.loss_accepted {
                    tracing::error!(
                        node = node.0,
                        loss,
                        "acknowledged records of a dead node may be missing; the loss was accepted"
                    );
                }
                let records = self.genuine(node, found);
                self.readings.succeeded(node);
                self.server.on_recovered(node, records);
            }
            Err(error) => {
                self.readings.failed(node, error, self.now);
                self.server.on_stuck(node);
            }
        }
        self.run_actions()?;
        let waits = |(session, line): (&SessionId, &NodeLink)| {
            let held = line.deferred.as_ref()?;
            (held.node == node).then_some(*session)
        };
        let waiting: Vec<SessionId> = self.links.iter().filter_map(waits).collect();
        for session in waiting {
            let held = self.links.get_mut(&session).and_then(|line| line.deferred.take());
            if let Some(held) = held {
                self.on_message(session, held.message)?;
            }
        }
        Ok(())
    }

    /// New records of a dead node's journal, up to the first that is invalid for the region.
    fn genuine(&self, node: NodeId, found: FencedRecords) -> Vec<(RecordNumber, ServerPayload)> {
        let Some(journal) = self.readings.journal(node) else {
            return Vec::new();
        };
        let merged = self
            .store
            .table()
            .node(node)
            .map_or(RecordNumber(0), |node| node.merged);
        let mut number = journal.kept;
        let mut records = Vec::new();
        for record in found.records {
            number = number.next();
            if number <= merged {
                continue;
            }
            let fits = match record.kind {
                KIND_COMPACT => self.check(&record.payload),
                kind => Err(RecordRefusal::Record(PayloadError::Kind(kind.0))),
            };
            if let Err(error) = fits {
                tracing::error!(
                    node = node.0,
                    number = number.0,
                    %error,
                    "a dead node's journal has an invalid record: this record and all later ones are left out"
                );
                break;
            }
            records.push((number, ServerPayload::from(record.payload)));
        }
        records
    }

    pub(super) fn time(&self) -> Time {
        Time(u64::try_from(self.now.duration_since(self.began).as_nanos()).unwrap_or(u64::MAX))
    }

    /// Ends serving. Nodes go on, and resume with the next server.
    fn finish(mut self) -> Result<(), RegionServeError> {
        self.fill_all()?;
        self.links.clear();
        Ok(self.store.close()?)
    }
}

/// Whether a node's journal is still to be read.
fn is_awaited(standing: Option<NodeState>) -> bool {
    matches!(standing, Some(NodeState::Reading | NodeState::Stuck))
}
