//! Reads dead nodes' journals from their members, with one thread per attempt, until the end is proven.
//!
//! An attempt fences the members. So none may run while the journal's own process offers it: the process may
//! start the journal anew as soon as the server has everything, and would be fenced out of it. An offer that
//! comes during an attempt waits for its end ([`Readings::is_running`]). While an offer is under way, no
//! attempt begins.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use netram_journal::owner::JournalOwner;
use netram_journal::seal::{DataKey, KEY_BYTES};
use netram_journal::{FencedJournal, FencedJournalError, JournalConfig};
use netram_proto::id::JournalId;
use netram_proto::journal::{PeerAnswer, RecoveryError};
use netram_proto::owner::is_owned;
use netram_shared_machine::NodeId;
use netram_shared_machine::server::{NodeJournal, SessionId};
use netram_transport::Security;

use super::mailbox::{DriverEvent, DriverMailbox};
use super::report::StuckReport;
use crate::limit::{FORGET_TIMEOUT, OFFER_TIMEOUT, READ_RETRY_INTERVAL, READ_TIMEOUT};

/// Journals to read.
pub(super) struct Readings {
    all: BTreeMap<NodeId, Reading>,
    offers: BTreeMap<NodeId, (SessionId, Instant)>,
    security: Security,
    mailbox: Arc<DriverMailbox>,
}

struct Reading {
    journal: NodeJournal,
    /// Whether records that cannot be proven are given up.
    accept_loss: bool,
    state: State,
    attempts: u32,
    since: Instant,
    trouble: Option<FencedJournalError>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The next attempt is due at this time.
    Due(Instant),
    Running,
    /// The journal was read by this process.
    Read,
}

impl Readings {
    pub(super) fn new(security: Security, post: Arc<DriverMailbox>) -> Readings {
        Readings {
            all: BTreeMap::new(),
            offers: BTreeMap::new(),
            security,
            mailbox: post,
        }
    }

    /// Adds the journal of a node whose fencing is durable.
    pub(super) fn add(&mut self, node: NodeId, journal: NodeJournal, accept_loss: bool, now: Instant) {
        let reading = Reading {
            journal,
            accept_loss,
            state: State::Due(now),
            attempts: 0,
            since: now,
            trouble: None,
        };
        self.all.insert(node, reading);
    }

    /// Notes that a session offers the node's journal.
    pub(super) fn offered(&mut self, node: NodeId, by: SessionId, now: Instant) {
        self.offers.insert(node, (by, now + OFFER_TIMEOUT));
    }

    /// Notes that the offering session has sent more of it.
    pub(super) fn on_offer_progress(&mut self, node: NodeId, by: SessionId, now: Instant) {
        if let Some(offer) = self.offers.get_mut(&node).filter(|(who, _)| *who == by) {
            offer.1 = now + OFFER_TIMEOUT;
        }
    }

    /// Drops the offers of a closed session.
    pub(super) fn closed(&mut self, session: SessionId) {
        self.offers.retain(|_, (by, _)| *by != session);
    }

    /// Whether the node's members are being fenced and read now.
    pub(super) fn is_running(&self, node: NodeId) -> bool {
        self.all
            .get(&node)
            .is_some_and(|reading| reading.state == State::Running)
    }

    /// Starts all attempts that are due. `waits`: whether a node's journal is still needed.
    pub(super) fn start_due(&mut self, now: Instant, waits: impl Fn(NodeId) -> bool) {
        if self.all.is_empty() && self.offers.is_empty() {
            return;
        }
        self.offers.retain(|_, (_, until)| *until > now);
        let offers = &self.offers;
        self.all
            .retain(|node, reading| !matches!(reading.state, State::Due(_)) || waits(*node));
        for (node, reading) in &mut self.all {
            let due = matches!(reading.state, State::Due(at) if at <= now);
            if !due || offers.contains_key(node) {
                continue;
            }
            reading.attempts = reading.attempts.saturating_add(1);
            match attempt(*node, reading, &self.security, &self.mailbox) {
                Ok(()) => reading.state = State::Running,
                Err(error) => {
                    tracing::error!(node = node.0, %error, "cannot start a thread to read a dead node's journal; trying again");
                    reading.state = State::Due(now + READ_RETRY_INTERVAL);
                }
            }
        }
    }

    /// The node's journal.
    pub(super) fn journal(&self, node: NodeId) -> Option<&NodeJournal> {
        self.all.get(&node).map(|reading| &reading.journal)
    }

    /// Gives up the records of a node's journal that cannot be proven: it is read once more.
    pub(super) fn accept_loss(&mut self, node: NodeId, now: Instant) {
        if let Some(reading) = self.all.get_mut(&node) {
            reading.accept_loss = true;
            if matches!(reading.state, State::Due(_)) {
                reading.state = State::Due(now);
            }
        }
    }

    /// Notes that an attempt has read everything.
    pub(super) fn succeeded(&mut self, node: NodeId) {
        if let Some(reading) = self.all.get_mut(&node) {
            reading.state = State::Read;
            reading.trouble = None;
        }
    }

    /// Notes that an attempt has failed. The reason is logged the first time, and when it changes.
    pub(super) fn failed(&mut self, node: NodeId, error: FencedJournalError, now: Instant) {
        let Some(reading) = self.all.get_mut(&node) else {
            return;
        };
        let before = reading.trouble.as_ref().map(ToString::to_string);
        if before != Some(error.to_string()) {
            tracing::error!(
                node = node.0,
                %error,
                "a fenced node's journal cannot be read to its proven end; the node's locks stay taken until it can; trying again"
            );
        }
        reading.trouble = Some(error);
        reading.state = State::Due(now + READ_RETRY_INTERVAL);
    }

    /// Reason why a node's journal has not been read, if so.
    pub(super) fn stuck(&self, node: NodeId, now: Instant) -> Option<StuckReport> {
        let reading = self.all.get(&node)?;
        let trouble = reading.trouble.as_ref()?;
        Some(StuckReport {
            reason: trouble.to_string(),
            lenders: missing(trouble),
            attempts: reading.attempts,
            seconds: now.duration_since(reading.since).as_secs(),
        })
    }

    /// Attempts and time so far, for a journal that was read.
    pub(super) fn read_since(&self, node: NodeId, now: Instant) -> StuckReport {
        let reading = self.all.get(&node);
        StuckReport {
            attempts: reading.map_or(0, |reading| reading.attempts),
            seconds: reading.map_or(0, |reading| now.duration_since(reading.since).as_secs()),
            ..StuckReport::default()
        }
    }

    /// Tells the members of a gone node's journal to free its windows; also `lenders`, which may have some.
    pub(super) fn forget(&mut self, node: NodeId, journal: &NodeJournal, lenders: &[String]) {
        self.offers.remove(&node);
        self.all.remove(&node);
        let Some(remains) = fenced_journal(journal) else {
            // A node with such a journal was never admitted.
            return self.mailbox.send(DriverEvent::ForgetTried(node, Vec::new()));
        };
        let config = JournalConfig {
            patience: FORGET_TIMEOUT,
            ..config(journal, &self.security)
        };
        let others = lenders.to_vec();
        let post = Arc::clone(&self.mailbox);
        let tell = move || post.send(DriverEvent::ForgetTried(node, remains.forget(&others, &config)));
        let started = std::thread::Builder::new()
            .name("netram-forget".to_owned())
            .spawn(tell);
        if let Err(error) = started {
            tracing::error!(node = node.0, %error, "cannot start a thread to tell a gone node's lenders to free its memory; trying again");
            self.mailbox
                .send(DriverEvent::ForgetTried(node, lenders.to_vec()));
        }
    }
}

/// Whether the bytes are the key of this journal, or empty for one whose records are not sealed.
pub(super) fn is_key_of(journal: JournalId, key: &[u8]) -> bool {
    match key.try_into() {
        Ok(key) => JournalOwner::of(journal, &DataKey::from_bytes(key)).is_ok(),
        Err(_) => key.is_empty() && !is_owned(journal.0),
    }
}

fn fenced_journal(journal: &NodeJournal) -> Option<FencedJournal> {
    // Without a key no record is sealed, and any key will do.
    let key = match journal.key.is_empty() {
        true => [0; KEY_BYTES],
        false => journal.key.as_slice().try_into().ok()?,
    };
    Some(FencedJournal {
        view: journal.view.clone(),
        server_end: journal.end,
        key: DataKey::from_bytes(key),
    })
}

fn config(journal: &NodeJournal, security: &Security) -> JournalConfig {
    JournalConfig {
        security: security.clone(),
        seal: !journal.key.is_empty(),
        patience: READ_TIMEOUT,
        ..JournalConfig::default()
    }
}

/// Fences and reads a journal once, in a thread of its own.
fn attempt(
    node: NodeId,
    reading: &Reading,
    security: &Security,
    post: &Arc<DriverMailbox>,
) -> std::io::Result<()> {
    let journal = &reading.journal;
    let remains =
        fenced_journal(journal).ok_or_else(|| std::io::Error::other("the journal's key is invalid"))?;
    let config = JournalConfig {
        accept_loss: reading.accept_loss,
        ..config(journal, security)
    };
    let post = Arc::clone(post);
    let read = move || post.send(DriverEvent::JournalRead(node, remains.read(&config)));
    let started = std::thread::Builder::new()
        .name("netram-recover".to_owned())
        .spawn(read);
    started.map(drop)
}

fn missing(error: &FencedJournalError) -> Vec<String> {
    let FencedJournalError::Refused(RecoveryError::Missing { missing, .. }, _) = error else {
        return Vec::new();
    };
    let named = missing.iter().map(|(address, answer)| match answer {
        PeerAnswer::Amnesiac => format!("{address} (restarted without its memory)"),
        PeerAnswer::Unreachable => format!("{address} (unreachable)"),
        _ => format!("{address} (no answer)"),
    });
    named.collect()
}
