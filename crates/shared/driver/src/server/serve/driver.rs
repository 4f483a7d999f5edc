//! The thread that serves: it has the machine, the store's memory and all links, and waits for no disk.
//!
//! A turn takes the post, what the links have brought, what the disk has; after each event everything that the machine says is
//! done. At its end all links are given what there is for them, so that a record is on its way to all other nodes in
//! the turn in which it came.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_journal::RemainsError;
use netram_journal::remains::Found;
use netram_proto::failure::RetryBackoff;
use netram_proto::id::Lsn;
use netram_proto::port::IoError;
use netram_proto::time::Time;
use netram_rvm::record::KIND_COMPACT;
use netram_shared_machine::server::{Closed, Deed, Fact, Session, Standing};
use netram_shared_machine::{NodeId, Number, Server};
use netram_transport::{Events, Interest, Poller, WaitPolicy, WaitStep};

use super::ServeError;
use super::hear::Unfit;
use super::line::{Line, Payload};
use super::post::{News, Post};
use super::readings::Readings;
use crate::channel::{Arrival, Errand};
use crate::limit::HOUSEKEEPING;
use crate::server::store::{RecordError, Store};

pub(super) const BELL: u64 = u64::MAX;
const EVENTS: usize = 64;

/// See the module.
pub(super) struct Driver {
    pub(super) server: Server<Payload>,
    pub(super) store: Store,
    /// Where nodes come in.
    pub(super) addresses: Vec<String>,
    /// The status as it was told last over a link, and when.
    pub(super) told: Option<(Instant, Vec<u8>)>,
    pub(super) lines: BTreeMap<Session, Line>,
    pub(super) readings: Readings,
    pub(super) post: Arc<Post>,
    pub(super) poller: Poller,
    pub(super) wait: WaitPolicy,
    pub(super) lease: Duration,
    /// The longest payload that the log takes.
    pub(super) payload_bytes_max: usize,
    pub(super) sessions: u64,
    /// Facts on their way to the disk: where each ends in the log, and its ticket.
    pub(super) facts: VecDeque<(Lsn, u64)>,
    /// The deed that the disk refused, which must be done before any other; and how often it was.
    pub(super) stalled: Option<Deed<Payload>>,
    pub(super) refusals: RetryBackoff,
    /// Lenders that nodes are told of: any node may have a window there.
    pub(super) lenders: Vec<String>,
    /// Nodes that are gone, of whom it was said that lenders do not know.
    pub(super) wasted: BTreeSet<NodeId>,
    /// Why nodes are fenced that are not gone yet.
    pub(super) fenced: BTreeMap<NodeId, String>,
    pub(super) began: Instant,
    pub(super) now: Instant,
    /// When the machine is to hear of the time.
    pub(super) tick: Instant,
    /// Sessions that have something to read which the poller does not report: it has left the kernel.
    pub(super) due: Vec<Session>,
    /// A link could be given more at once.
    pub(super) unfilled: bool,
    /// When a node last said something for whose answer somebody may wait.
    pub(super) asked: Instant,
    /// Memory for a list of all sessions, and for a message's head.
    pub(super) all: Vec<Session>,
    pub(super) scratch: Vec<u8>,
}

impl Driver {
    /// Serves until it is asked to stop, and makes everything durable.
    pub(super) fn run(mut self) -> Result<(), ServeError> {
        let mut events = Events::with_capacity(EVENTS);
        let mut news = Vec::new();
        self.do_deeds()?;
        while !self.post.is_stopping() {
            self.now = Instant::now();
            let mut moved = self.take_post(&mut news)?;
            moved |= self.take_links(&events)?;
            moved |= self.take_time()?;
            let server = &self.server;
            self.readings
                .start_due(self.now, |node| is_awaited(server.standing(node)));
            if moved || self.unfilled {
                self.fill_all()?;
            }
            self.rest(&mut events)?;
        }
        self.finish()
    }

    /// Waits for more. For records and for the disk it sleeps at once: nobody waits for what comes of them, and a thread that yields takes
    /// turns on the core from those of nodes and lenders that somebody waits for.
    fn rest(&mut self, events: &mut Events) -> Result<(), ServeError> {
        let step = match self.unfilled || !self.due.is_empty() {
            true => WaitStep::Poll,
            false => self.wait.step(self.now.duration_since(self.asked)),
        };
        let slept = match step {
            WaitStep::Poll => None,
            WaitStep::Yield => {
                std::thread::yield_now();
                None
            }
            WaitStep::Block => {
                let longest = self.tick.saturating_duration_since(self.now);
                let (post, poller) = (&self.post, &self.poller);
                let sleep = || poller.wait(events, Some(longest));
                post.bell.nap(|| post.has_any(), sleep)?
            }
        };
        if slept.is_none() {
            self.poller.wait(events, Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// What other threads say, and what the disk has.
    fn take_post(&mut self, news: &mut Vec<News>) -> Result<bool, ServeError> {
        if !self.post.collect(news) {
            return Ok(false);
        }
        for one in news.drain(..) {
            match one {
                News::Arrived(arrival) => self.let_in(*arrival),
                News::Read(node, outcome) => self.take_reading(node, outcome)?,
                News::Told(node, untold) => self.take_telling(node, &untold)?,
                News::AcceptLoss(node, asker) => {
                    let accepted = self.accept_loss(node)?;
                    // Whoever asked may have gone.
                    let _ = asker.try_send(accepted);
                }
                News::Asked(asker) => {
                    // Whoever asked may have gone.
                    let _ = asker.try_send(self.report());
                }
            }
        }
        if let Some(error) = self.store.trouble() {
            return Err(ServeError::Disk(error));
        }
        self.take_durable()?;
        Ok(true)
    }

    /// Tells the machine what the disk has. What a fact follows from is durable with it, whichever of the two the machine hears of first.
    fn take_durable(&mut self) -> Result<(), ServeError> {
        let durable = self.store.durable();
        let mut position = None;
        while let Some(kept) = self.store.next_kept() {
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
        self.do_deeds()
    }

    fn let_in(&mut self, arrival: Arrival) {
        self.sessions += 1;
        let session = Session(self.sessions);
        let errand = arrival.errand;
        let mut line = Line::new(arrival, self.now);
        if errand == Errand::Status {
            line.channel.queue(&[self.status_lately()]);
            line.close(self.now);
        }
        if let Err(error) = self.poller.add(&line.channel, session.0, Interest::Read) {
            // The kernel's memory or watches are at an end. Whoever came finds its link closed and comes again; those who are here go on.
            tracing::error!(peer = line.channel.peer(), %error, "a session could not be waited for, and is closed");
            return;
        }
        self.lines.insert(session, line);
        // What has left the kernel with the greeting is not reported.
        self.due.push(session);
    }

    fn take_time(&mut self) -> Result<bool, ServeError> {
        if self.now < self.tick {
            return Ok(false);
        }
        self.server.on_tick(self.time());
        self.give_up_accepted();
        self.tick = self.now + (self.lease / 8).min(HOUSEKEEPING);
        self.plan_tick();
        self.do_deeds()?;
        let now = self.now;
        let over = |(session, line): (&Session, &Line)| {
            let stranger = self.server.node(*session).is_none() && line.closing.is_none();
            let over = line.is_over(now) || (stranger && line.held.is_none() && line.is_silent(now));
            over.then_some(*session)
        };
        let over: Vec<Session> = self.lines.iter().filter_map(over).collect();
        for session in over {
            self.end(session, "it is over", Closed::Broken)?;
        }
        Ok(true)
    }

    /// Has the machine hear of the time at the very moment when a node is late.
    pub(super) fn plan_tick(&mut self) {
        if let Some(late) = self.server.deadline() {
            self.tick = self.tick.min(self.began + Duration::from_nanos(late.0));
        }
    }

    /// The disk refused a deed for now: it is the next one, after a pause. Links are served meanwhile, nothing is kept for
    /// nodes, and their members hold what is not kept.
    fn stall(&mut self, deed: Deed<Payload>, why: &dyn std::fmt::Display) {
        self.stalled = Some(deed);
        let pause = self.refusals.failed(IoError::ENOSPC);
        if pause.news {
            tracing::error!(%why, "the server's disk refuses a change; nothing more is kept until it takes it");
        }
        self.tick = self.tick.min(self.now + Duration::from_nanos(pause.pause.0));
    }

    fn stored(&mut self) {
        if self.refusals.succeeded() > 0 {
            tracing::info!("the server's disk takes changes again");
        }
    }

    /// Does what the machine says.
    pub(super) fn do_deeds(&mut self) -> Result<(), ServeError> {
        while let Some(deed) = self.stalled.take().or_else(|| self.server.poll()) {
            match deed {
                Deed::Store { ticket, fact } => {
                    let end = match &fact {
                        Fact::Gone { node } if !self.has_lenders(*node) => self.store.bury(*node),
                        fact => self.store.write_down(fact.clone()),
                    };
                    let end = match end {
                        Err(error) if error.is_refusal() => {
                            self.stall(Deed::Store { ticket, fact }, &error);
                            return Ok(());
                        }
                        end => end?,
                    };
                    self.stored();
                    self.facts.push_back((end, ticket));
                }
                Deed::Apply {
                    position,
                    node,
                    number,
                    end,
                    payload,
                } => {
                    let stored = match self.store.merge(node, number, end, &payload) {
                        Err(error) if error.is_refusal() => {
                            let deed = Deed::Apply {
                                position,
                                node,
                                number,
                                end,
                                payload,
                            };
                            self.stall(deed, &error);
                            return Ok(());
                        }
                        stored => stored?,
                    };
                    self.stored();
                    assert_eq!(stored.position, position, "machine and table count alike");
                }
                Deed::Recover { node, journal } => {
                    let accepted = self
                        .store
                        .table()
                        .node(node)
                        .is_some_and(|node| node.loss_accepted);
                    self.readings.add(node, journal, accepted, self.now);
                }
                Deed::Forget { node, journal } => {
                    self.fenced.remove(&node);
                    self.readings.forget(node, &journal, &self.lenders);
                }
                Deed::Fenced { node, why } => {
                    tracing::warn!(node = node.0, %why, "a node is fenced");
                    self.fenced.insert(node, why.to_string());
                }
                Deed::Refused { node, why } => {
                    tracing::error!(
                        node = node.0,
                        %why,
                        "a dead node's journal has a record that cannot be: it and what is behind it is left out"
                    );
                }
                Deed::Close(session) => {
                    self.readings.closed(session);
                    self.lines.remove(&session);
                }
            }
        }
        Ok(())
    }

    /// Whether there is anybody who may have a window of a node's journal.
    fn has_lenders(&self, node: NodeId) -> bool {
        let node = self.store.table().node(node);
        let members = node.is_some_and(|node| !node.view.members.is_empty());
        members || !self.lenders.is_empty()
    }

    /// The lenders of a node that is gone were told that they may give its windows back, but for some. Whoever looks after this hears of that once.
    fn take_telling(&mut self, node: NodeId, untold: &[String]) -> Result<(), ServeError> {
        let all = untold.is_empty();
        if all {
            self.wasted.remove(&node);
        } else if self.wasted.insert(node) {
            let lenders = untold.join(", ");
            tracing::warn!(
                node = node.0,
                lenders,
                "lenders could not be told yet to give back what a node that is gone had; they are told when they can be reached"
            );
        }
        self.server.on_told(self.time(), node, all);
        self.do_deeds()
    }

    /// A dead node's journal was read, or could not be. Then what waited for that goes on.
    fn take_reading(&mut self, node: NodeId, outcome: Result<Found, RemainsError>) -> Result<(), ServeError> {
        match outcome {
            Ok(found) => {
                if let Some(loss) = &found.loss_accepted {
                    tracing::error!(
                        node = node.0,
                        loss,
                        "acknowledged records may be missing, which was accepted"
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
        self.do_deeds()?;
        let waits = |(session, line): (&Session, &Line)| {
            let held = line.held.as_ref()?;
            (held.node == node).then_some(*session)
        };
        let waiting: Vec<Session> = self.lines.iter().filter_map(waits).collect();
        for session in waiting {
            let held = self.lines.get_mut(&session).and_then(|line| line.held.take());
            if let Some(held) = held {
                self.hear(session, held.message)?;
            }
        }
        Ok(())
    }

    /// The records of a dead node's journal that are new here, up to the first that is none of the region.
    fn genuine(&self, node: NodeId, found: Found) -> Vec<(Number, Payload)> {
        let Some(journal) = self.readings.journal(node) else {
            return Vec::new();
        };
        let merged = self
            .store
            .table()
            .node(node)
            .map_or(Number(0), |node| node.merged);
        let mut number = journal.kept;
        let mut records = Vec::new();
        for record in found.records {
            number = number.next();
            if number <= merged {
                continue;
            }
            let fits = match record.kind {
                KIND_COMPACT => self.check(&record.payload),
                kind => Err(Unfit::Record(RecordError::Kind(kind.0))),
            };
            if let Err(error) = fits {
                tracing::error!(
                    node = node.0,
                    number = number.0,
                    %error,
                    "a dead node's journal has a record that cannot be: it and what is behind it is left out"
                );
                break;
            }
            records.push((number, Payload::from(record.payload)));
        }
        records
    }

    pub(super) fn time(&self) -> Time {
        Time(u64::try_from(self.now.duration_since(self.began).as_nanos()).unwrap_or(u64::MAX))
    }

    /// Nodes go on: they resume with the next server.
    fn finish(mut self) -> Result<(), ServeError> {
        self.fill_all()?;
        self.lines.clear();
        Ok(self.store.close()?)
    }
}

/// Whether a node's journal is still to be read.
fn is_awaited(standing: Option<Standing>) -> bool {
    matches!(standing, Some(Standing::Reading | Standing::Stuck))
}
