//! The client's part: its connection to the data lender, and the driver of the replica source. Actions that
//! need the volume's files are left to the program, as a second thread of the real client would do them.

use netram_block_machine::{
    ReplicaIdentity, ReplicaMessage, ReplicaSource, SourceAction, SourceConfig, SourceTiming,
};
use netram_proto::id::Lsn;
use netram_proto::journal::{JournalWriter, LogFile, View};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::Frame;

use super::machine::VOLUME;
use super::service::DataService;
use crate::disk::SimFile;
use crate::event::WorldEvent;
use crate::kernel::SimKernel;
use crate::lender::packet_of;

/// A client's connection to its data lender.
pub(crate) struct DataLink {
    pub(crate) source: ReplicaSource,
    session: Option<u64>,
    /// Action that the program must perform on its volume before anything else is sent.
    pub(crate) action: Option<SourceAction>,
    /// Arrival time of the newest frame upwards; frames arrive in order.
    last_up: Time,
}

impl DataLink {
    /// A link without connection, for an epoch that begins with `view`, of a volume of `bytes`, whose log
    /// reaches from `head` to `end`.
    pub(crate) fn new(kernel: &SimKernel, view: View, bytes: u64, (head, end): (Lsn, Lsn)) -> DataLink {
        let config = SourceConfig {
            identity: ReplicaIdentity {
                volume: VOLUME.0,
                journal: kernel.journal(),
            },
            key: Vec::new(),
            wrapped_key: Vec::new(),
            capacity: kernel.profile.capacity,
            window_bytes: kernel.profile.window,
            timing: SourceTiming {
                give_up: Nanos::from_ms(3000),
                ..SourceTiming::default()
            },
        };
        DataLink {
            source: ReplicaSource::new(config, view, bytes, head, end),
            session: None,
            action: None,
            last_up: Time(0),
        }
    }

    /// The action that waits for the program, and the connection it is for.
    pub(crate) fn pending_action(&self) -> (Option<u64>, Option<SourceAction>) {
        (self.session, self.action.clone())
    }

    /// The connection, if the data lender has answered on it and keeps this journal's replica.
    pub(crate) fn answered_session(&self) -> Option<u64> {
        let status = self.source.status();
        let asked = status.connected && !status.foreign && status.condition.is_some();
        self.session.filter(|_| asked)
    }

    /// Whether `session` is the connection.
    pub(crate) fn has_session(&self, session: u64) -> bool {
        self.session == Some(session)
    }

    /// Sends everything due to the data lender and tells the writer what it has. `may_connect`: the process
    /// is not kept from connecting. `head` is the log's head.
    pub(crate) fn pump(
        &mut self,
        kernel: &mut SimKernel,
        data: &mut DataService,
        (process, may_connect): (usize, bool),
        writer: &mut JournalWriter,
        (log, head): (&LogFile<SimFile>, Lsn),
    ) {
        let now = kernel.now();
        self.source.on_stable(writer.stable());
        if self.action.is_none() {
            // The driver asks and acts in one step: nothing comes between, and no resync can begin there.
            self.source.on_head(head);
        }
        self.source.on_tick(now);
        if self.source.take_disconnect()
            && let Some(session) = self.session.take()
        {
            self.action = None;
            data.hang_up(session);
        }
        if may_connect && self.source.wants_connection(now) {
            let session = data.open_session();
            self.session = Some(session);
            let delay = kernel.service_latency();
            kernel.at(delay, WorldEvent::DataConnected { process, session });
        }
        while self.action.is_none() {
            match self.source.next_action(now) {
                None => break,
                Some(SourceAction::Send(message)) => self.send(kernel, process, &message),
                Some(SourceAction::Ship { header, from, bytes }) => {
                    let mut body = vec![0; bytes];
                    if log.read(from, &mut body).is_err() {
                        break;
                    }
                    self.send(kernel, process, &ReplicaMessage { header, body });
                }
                Some(todo) => self.action = Some(todo),
            }
        }
        let kept = self.source.ack(now);
        if kept.is_some() {
            kernel.hit("data: events while it was in service");
        }
        writer.on_replica_ack(kept, now);
        if let Some(seen) = self.source.fenced() {
            writer.on_replica_fenced(seen);
        }
    }

    fn send(&mut self, kernel: &mut SimKernel, process: usize, message: &ReplicaMessage) {
        let Some(session) = self.session else { return };
        let packet = packet_of(&message.header, &message.body);
        let at = (kernel.now() + kernel.service_latency()).max(self.last_up);
        self.last_up = at;
        let event = WorldEvent::DataUp {
            process,
            session,
            packet,
        };
        kernel.push(at, event);
    }

    /// Reports that the program performed the action.
    pub(crate) fn on_done(
        &mut self,
        kernel: &mut SimKernel,
        process: usize,
        tell: impl FnOnce(&mut ReplicaSource, Time) -> Vec<ReplicaMessage>,
    ) {
        // The connection of the action may have ended since.
        if self.action.take().is_some() {
            for message in tell(&mut self.source, kernel.now()) {
                self.send(kernel, process, &message);
            }
        }
    }

    /// Handles the end of the attempt to connect.
    pub(crate) fn on_connected(&mut self, reachable: bool, now: Time) {
        match reachable {
            true => self.source.on_connected(now),
            false => {
                self.session = None;
                self.source.on_lost(now);
            }
        }
    }

    /// Handles a frame from the data lender.
    pub(crate) fn on_frame(&mut self, frame: &Frame<'_>, now: Time) {
        self.source.on_frame(frame, now);
    }

    /// Handles the loss of the connection.
    pub(crate) fn on_lost(&mut self, now: Time) {
        self.session = None;
        self.action = None;
        self.source.on_lost(now);
    }

    /// Ends the connection to the data lender; both sides learn of it.
    pub(crate) fn cut(&self, kernel: &mut SimKernel, data: &mut DataService, process: usize) {
        if let Some(session) = self.session {
            data.hang_up(session);
            kernel.at(Nanos::from_ms(1), WorldEvent::DataLost { process, session });
        }
    }
}
