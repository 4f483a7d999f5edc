//! The client's part: its connection to the data lender, and the driver of the replica source. Actions that
//! need the volume's files are left to the program, as a second thread of the real client would do them.

use netram_block_machine::{
    ReplicaIdentity, ReplicaMessage, ReplicaSource, SourceAction, SourceConfig, SourceTiming,
};
use netram_proto::id::Lsn;
use netram_proto::journal::View;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{Frame, FrameKind};

use super::serve::ServeOutcome;
use super::{SimDataLender, VOLUME};
use crate::check::rule12;
use crate::event::WorldEvent;
use crate::lender::packet_of;
use crate::process::{ProcessPhase, ServingState};
use crate::world::World;

/// A client's connection to its data lender.
pub(crate) struct DataLink {
    pub(crate) source: ReplicaSource,
    pub(super) session: Option<u64>,
    /// Action that the program must perform on its volume before anything else is sent.
    pub(crate) action: Option<SourceAction>,
    /// Arrival time of the newest frame upwards; frames arrive in order.
    last_up: Time,
}

impl DataLink {
    /// The action that waits for the program, and the connection it is for.
    pub(crate) fn pending_action(&self) -> (Option<u64>, Option<SourceAction>) {
        (self.session, self.action.clone())
    }
}

/// A replica source for an epoch that begins with `view`, of a volume of `bytes`.
pub(crate) fn new_source(world: &World, view: View, bytes: u64, head: Lsn, end: Lsn) -> DataLink {
    let config = SourceConfig {
        identity: ReplicaIdentity {
            volume: VOLUME.0,
            journal: world.kernel.journal(),
        },
        key: Vec::new(),
        capacity: world.kernel.profile.capacity,
        window_bytes: world.kernel.profile.window,
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

impl World {
    /// Sends everything due to the data lender and tells the writer what it has.
    pub(crate) fn pump_data(&mut self, process: usize, serving: &mut ServingState) {
        let Some(mut link) = serving.data.take() else {
            return;
        };
        let now = self.kernel.now();
        link.source.on_stable(serving.writer.stable());
        if link.action.is_none() {
            // The driver asks and acts in one step: nothing comes between, and no resync can begin there.
            link.source.on_head(serving.superblock.head.lsn);
        }
        link.source.on_tick(now);
        if link.source.take_disconnect()
            && let Some(session) = link.session.take()
        {
            link.action = None;
            self.hang_up(session);
        }
        let held = self.data_blocked_host == Some(self.processes[process].host);
        if !held && link.source.wants_connection(now) {
            self.data_sessions += 1;
            link.session = Some(self.data_sessions);
            let (delay, session) = (self.kernel.service_latency(), self.data_sessions);
            self.kernel
                .at(delay, WorldEvent::DataConnected { process, session });
        }
        while link.action.is_none() {
            match link.source.next_action(now) {
                None => break,
                Some(SourceAction::Send(message)) => self.send_data(process, &mut link, &message),
                Some(SourceAction::Ship { header, from, bytes }) => {
                    let mut body = vec![0; bytes];
                    if serving.log.read(from, &mut body).is_err() {
                        break;
                    }
                    self.send_data(process, &mut link, &ReplicaMessage { header, body });
                }
                Some(todo) => link.action = Some(todo),
            }
        }
        let kept = link.source.ack(now);
        if kept.is_some() {
            self.kernel.hit("data: events while it was in service");
        }
        serving.writer.on_replica_ack(kept, now);
        if let Some(seen) = link.source.fenced() {
            serving.writer.on_replica_fenced(seen);
        }
        serving.data = Some(link);
    }

    fn send_data(&mut self, process: usize, link: &mut DataLink, message: &ReplicaMessage) {
        let Some(session) = link.session else { return };
        let packet = packet_of(&message.header, &message.body);
        let at = (self.kernel.now() + self.kernel.service_latency()).max(link.last_up);
        link.last_up = at;
        let event = WorldEvent::DataUp {
            process,
            session,
            packet,
        };
        self.kernel.push(at, event);
    }

    /// Reports that the program performed the action in [`DataLink::action`].
    pub(crate) fn data_done(
        &mut self,
        process: usize,
        tell: impl FnOnce(&mut ReplicaSource, Time) -> Vec<ReplicaMessage>,
    ) {
        let now = self.kernel.now();
        self.with_serving(process, |world, serving| {
            let Some(mut link) = serving.data.take() else {
                return;
            };
            // The connection of the action may have ended since.
            if link.action.take().is_some() {
                for message in tell(&mut link.source, now) {
                    world.send_data(process, &mut link, &message);
                }
            }
            serving.data = Some(link);
        });
        self.settle(process);
    }

    /// Records that `blocks` blocks are dirty although the replica is whole.
    pub(crate) fn data_dirty(&mut self, process: usize, blocks: u64) {
        let now = self.kernel.now();
        self.with_serving(process, |_, serving| {
            if let Some(link) = &mut serving.data {
                link.source.on_dirty(blocks, now);
            }
        });
        self.settle(process);
    }

    pub(crate) fn on_data_connected(&mut self, process: usize, session: u64) {
        let (now, reachable) = (self.kernel.now(), self.reaches_data());
        self.with_link(process, session, |link| match reachable {
            true => link.source.on_connected(now),
            false => {
                link.session = None;
                link.source.on_lost(now);
            }
        });
    }

    pub(crate) fn on_data_up(&mut self, process: usize, session: u64, packet: &[u8]) {
        if !self.reaches_data() {
            // A data lender that cannot be reached resets nothing; it does so when it is back.
            return;
        }
        self.trace_data("gets", packet);
        let Some(data) = &mut self.data else { return };
        let served = data.handle_packet(process, session, packet);
        let alive = data.is_up();
        self.after_data(process, session, served);
        if !alive {
            self.data_died();
        }
    }

    pub(crate) fn on_data_flushed(&mut self) {
        let Some(data) = &mut self.data else { return };
        if !data.is_up() {
            return;
        }
        let flushed = data.flush();
        let alive = data.is_up();
        if let Some((client, session, served)) = flushed {
            self.after_data(client, session, served);
        }
        if !alive {
            self.data_died();
        }
    }

    pub(super) fn after_data(&mut self, process: usize, session: u64, served: ServeOutcome) {
        let latency = self.kernel.service_latency();
        let at = (self.kernel.now() + latency).max(self.data_last_down);
        self.data_last_down = at;
        for message in served.answers {
            let packet = packet_of(&message.header, &message.body);
            self.trace_data("answers", &packet);
            let event = WorldEvent::DataDown {
                process,
                session,
                packet,
            };
            self.kernel.push(at, event);
        }
        if served.flush {
            let delay = self.disk_time();
            self.kernel.at(delay, WorldEvent::DataFlushed);
        }
        if served.became_whole {
            self.compare_replica();
        }
        if served.ends {
            self.hang_up(session);
            self.kernel.push(at, WorldEvent::DataLost { process, session });
        }
    }

    pub(crate) fn on_data_down(&mut self, process: usize, session: u64, packet: &[u8]) {
        let now = self.kernel.now();
        if let Ok(frame) = Frame::parse(packet) {
            if frame.header.kind == FrameKind::Flushed && self.is_data_session(process, session) {
                rule12::flushed(self, process, frame.header.lsn);
            }
            self.with_link(process, session, |link| link.source.on_frame(&frame, now));
        }
    }

    pub(crate) fn on_data_lost(&mut self, process: usize, session: u64) {
        let now = self.kernel.now();
        self.with_link(process, session, |link| {
            link.session = None;
            link.action = None;
            link.source.on_lost(now);
        });
    }

    /// Traces a frame to or from the data lender.
    fn trace_data(&mut self, does: &str, packet: &[u8]) {
        let Ok(frame) = Frame::parse(packet) else { return };
        let header = frame.header;
        if matches!(header.kind, FrameKind::Ping | FrameKind::Pong) {
            return;
        }
        self.kernel.tell(|| {
            format!(
                "the data lender {does} {:?} lsn {} epoch {} mark {} stable {} flags {} body {}",
                header.kind,
                header.lsn,
                header.epoch,
                header.mark,
                header.stable,
                header.flags,
                frame.body.len()
            )
        });
    }

    fn is_data_session(&self, process: usize, session: u64) -> bool {
        let link = self.serving(process).and_then(|serving| serving.data.as_ref());
        let here = link.is_some_and(|link| link.session == Some(session));
        here && self.data.as_ref().is_some_and(|data| data.serves(session))
    }

    pub(super) fn compare_replica(&mut self) {
        if let Some((end, contents)) = self.data.as_mut().and_then(SimDataLender::contents) {
            rule12::whole(self, end, &contents);
        }
    }

    /// Runs `work` on the link of a process that serves, if `session` is its connection.
    fn with_link(&mut self, process: usize, session: u64, work: impl FnOnce(&mut DataLink)) {
        if let ProcessPhase::Serving(serving) = &mut self.processes[process].phase
            && let Some(link) = &mut serving.data
            && link.session == Some(session)
        {
            work(link);
        }
        self.settle(process);
    }

    fn hang_up(&mut self, session: u64) {
        if let Some(data) = &mut self.data {
            data.hang_up(session);
        }
    }

    /// Ends all connections to the data lender; both sides learn of it.
    pub(crate) fn break_data(&mut self, process: usize) {
        let Some(link) = self.serving(process).and_then(|serving| serving.data.as_ref()) else {
            return;
        };
        if let Some(session) = link.session {
            self.hang_up(session);
            self.kernel
                .at(Nanos::from_ms(1), WorldEvent::DataLost { process, session });
        }
    }

    /// Handles the death of the data lender's process and schedules its restart.
    pub(crate) fn data_died(&mut self) {
        self.kernel
            .tell(|| String::from("the data lender's process dies"));
        self.kernel.hit("data: deaths of its process");
        let power_cut = self.kernel.rng.chance(500);
        if let Some(data) = &mut self.data {
            data.crash(power_cut);
        }
        let delay = Nanos::from_ms(self.kernel.rng.pick(&[5, 200, 2000, 12_000]));
        self.kernel.at(delay, WorldEvent::DataStarts);
    }

    pub(crate) fn on_data_starts(&mut self) {
        let Some(data) = &mut self.data else { return };
        data.start();
        if !data.is_up() {
            self.data_died();
        }
    }

    pub(super) fn reaches_data(&self) -> bool {
        let now = self.kernel.now();
        self.data
            .as_ref()
            .is_some_and(|data| data.is_up() && data.away_until <= now)
    }
}
