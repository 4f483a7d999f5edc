//! The data lender as the rest of the world reaches it: sessions, frames that arrive, and deaths.

use netram_block_machine::message::FollowRequest;
use netram_block_machine::{ReplicaIdentity, ReplicaMessage};
use netram_proto::id::Lsn;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{Frame, FrameKind};

use super::machine::{SimDataLender, VOLUME};
use super::serve::ServeOutcome;
use crate::check::rule12;
use crate::event::WorldEvent;
use crate::kernel::SimKernel;
use crate::lender::packet_of;
use crate::volume_history::VolumeHistory;

/// The data lender's answer, or the number of its refusal. `None` if no answer came.
pub(crate) type DataAnswer = Option<Result<ReplicaMessage, u8>>;

/// The data lender of a world, if it has one, and the connections to it.
pub(crate) struct DataService {
    lender: Option<SimDataLender>,
    sessions: u64,
    /// Host whose processes do not connect yet, because their volume is being opened.
    held_host: Option<usize>,
    /// Arrival time of the newest frame to the client; such frames arrive in order.
    last_down: Time,
    volume_bytes: u64,
    /// Whether a program is reading blocks for the data lender.
    reads_to_send: bool,
    acked_in_service: Lsn,
}

impl DataService {
    /// A service without a data lender.
    pub(crate) fn new() -> DataService {
        DataService {
            lender: None,
            sessions: 0,
            held_host: None,
            last_down: Time(0),
            volume_bytes: 0,
            reads_to_send: false,
            acked_in_service: Lsn(0),
        }
    }

    /// Gives the world a data lender that keeps a volume of `bytes`.
    pub(crate) fn attach(&mut self, lender: SimDataLender, bytes: u64) {
        self.lender = Some(lender);
        self.volume_bytes = bytes;
    }

    /// Takes the data lender's machine out of service.
    pub(crate) fn detach(&mut self) -> Option<SimDataLender> {
        self.lender.take()
    }

    /// The data lender's machine.
    pub(crate) fn lender(&self) -> Option<&SimDataLender> {
        self.lender.as_ref()
    }

    /// The data lender's machine.
    pub(crate) fn lender_mut(&mut self) -> Option<&mut SimDataLender> {
        self.lender.as_mut()
    }

    /// Whether the world has a data lender.
    pub(crate) fn exists(&self) -> bool {
        self.lender.is_some()
    }

    /// Size of the volume in bytes; zero in worlds that never had a data lender.
    pub(crate) fn volume_bytes(&self) -> u64 {
        self.volume_bytes
    }

    /// Keeps the processes of a host from connecting, or no longer.
    pub(crate) fn hold(&mut self, host: Option<usize>) {
        self.held_host = host;
    }

    /// Whether the processes of a host are kept from connecting.
    pub(crate) fn is_held(&self, host: usize) -> bool {
        self.held_host == Some(host)
    }

    /// Records whether a program is reading blocks for the data lender.
    pub(crate) fn set_reads_to_send(&mut self, reads: bool) {
        self.reads_to_send = reads;
    }

    /// Whether a program is reading blocks for the data lender.
    pub(crate) fn reads_to_send(&self) -> bool {
        self.reads_to_send
    }

    /// Records what members had acknowledged while the data lender was in service.
    pub(crate) fn note_acked(&mut self, acked: Lsn) {
        self.acked_in_service = acked;
    }

    /// LSN that members had acknowledged while the data lender was in service.
    pub(crate) fn acked_in_service(&self) -> Lsn {
        self.acked_in_service
    }

    /// Number of a new connection.
    pub(crate) fn open_session(&mut self) -> u64 {
        self.sessions += 1;
        self.sessions
    }

    /// Whether the data lender can be reached.
    pub(crate) fn is_reachable(&self, now: Time) -> bool {
        self.lender
            .as_ref()
            .is_some_and(|data| data.is_up() && data.away_until <= now)
    }

    /// Whether the data lender accepts frames of a connection.
    pub(crate) fn serves(&self, session: u64) -> bool {
        self.lender.as_ref().is_some_and(|data| data.serves(session))
    }

    /// The data lender's parameters for the volume.
    pub(crate) fn follow_request(&self, kernel: &SimKernel) -> FollowRequest {
        FollowRequest {
            identity: ReplicaIdentity {
                volume: VOLUME.0,
                journal: kernel.journal(),
            },
            bytes: self.volume_bytes,
            capacity: kernel.profile.capacity,
            key: Vec::new(),
            wrapped_key: Vec::new(),
        }
    }

    /// Sends `question` over a session and returns the answer of kind `expected`. Other frames that arrive
    /// are delivered to `process`.
    pub(crate) fn ask(
        &mut self,
        kernel: &mut SimKernel,
        volume: &VolumeHistory,
        (process, session): (usize, u64),
        question: &ReplicaMessage,
        expected: FrameKind,
    ) -> DataAnswer {
        let now = kernel.now();
        if !self.is_reachable(now) {
            return None;
        }
        let packet = packet_of(&question.header, &question.body);
        let data = self.lender.as_mut().filter(|data| data.paused_until <= now)?;
        let mut served = data.handle_packet(process, session, &packet);
        if data.is_up() {
            // No other client speaks here, so a sync that is under way may end now, even if it was begun for
            // another session.
            if let Some((.., more)) = data.flush() {
                served.answers.extend(more.answers);
                served.became_whole |= more.became_whole;
            }
            served.flush = false;
        }
        let found = served.answers.iter().position(|answer| {
            let kind = answer.header.kind;
            kind == expected || kind == FrameKind::Refuse
        });
        let answer = found.map(|at| served.answers.remove(at));
        let alive = data.is_up();
        self.deliver(kernel, volume, (process, session), served);
        if !alive {
            self.died(kernel);
            return None;
        }
        answer.map(|answer| match answer.header.kind {
            FrameKind::Refuse => Err(answer.header.flags),
            _ => Ok(answer),
        })
    }

    /// Handles a frame that arrives at the data lender.
    pub(crate) fn on_frame(
        &mut self,
        kernel: &mut SimKernel,
        volume: &VolumeHistory,
        (process, session): (usize, u64),
        packet: &[u8],
    ) {
        if !self.is_reachable(kernel.now()) {
            // A data lender that cannot be reached resets nothing; it does so when it is back.
            return;
        }
        trace_frame(kernel, "gets", packet);
        let Some(data) = &mut self.lender else { return };
        let served = data.handle_packet(process, session, packet);
        let alive = data.is_up();
        self.deliver(kernel, volume, (process, session), served);
        if !alive {
            self.died(kernel);
        }
    }

    /// Handles the end of a sync of the data lender's log.
    pub(crate) fn on_flushed(&mut self, kernel: &mut SimKernel, volume: &VolumeHistory) {
        let Some(data) = &mut self.lender else { return };
        if !data.is_up() {
            return;
        }
        let flushed = data.flush();
        let alive = data.is_up();
        if let Some((client, session, served)) = flushed {
            self.deliver(kernel, volume, (client, session), served);
        }
        if !alive {
            self.died(kernel);
        }
    }

    /// Sends the data lender's answers on their way, and checks a replica that has just become whole.
    fn deliver(
        &mut self,
        kernel: &mut SimKernel,
        volume: &VolumeHistory,
        (process, session): (usize, u64),
        served: ServeOutcome,
    ) {
        let at = (kernel.now() + kernel.service_latency()).max(self.last_down);
        self.last_down = at;
        for message in served.answers {
            let packet = packet_of(&message.header, &message.body);
            trace_frame(kernel, "answers", &packet);
            let event = WorldEvent::DataDown {
                process,
                session,
                packet,
            };
            kernel.push(at, event);
        }
        if served.flush {
            let delay = kernel.disk_time();
            kernel.at(delay, WorldEvent::DataFlushed);
        }
        if served.became_whole
            && let Some((end, contents)) = self.lender.as_mut().and_then(SimDataLender::contents)
        {
            rule12::whole(kernel, volume, end, &contents);
        }
        if served.ends {
            self.hang_up(session);
            kernel.push(at, WorldEvent::DataLost { process, session });
        }
    }

    /// Ends a connection at the data lender.
    pub(crate) fn hang_up(&mut self, session: u64) {
        if let Some(data) = &mut self.lender {
            data.hang_up(session);
        }
    }

    /// Handles the death of the data lender's process and schedules its restart.
    pub(crate) fn died(&mut self, kernel: &mut SimKernel) {
        kernel.tell(|| String::from("the data lender's process dies"));
        kernel.hit("data: deaths of its process");
        let power_cut = kernel.rng.chance(500);
        if let Some(data) = &mut self.lender {
            data.crash(power_cut);
        }
        let delay = Nanos::from_ms(kernel.rng.pick(&[5, 200, 2000, 12_000]));
        kernel.at(delay, WorldEvent::DataStarts);
    }

    /// Starts the data lender's process, which may die while it starts.
    pub(crate) fn start(&mut self, kernel: &mut SimKernel) {
        let Some(data) = &mut self.lender else { return };
        data.start();
        if !data.is_up() {
            self.died(kernel);
        }
    }

    /// Ends all faults of the data lender.
    pub(crate) fn heal(&mut self) {
        if let Some(data) = &mut self.lender {
            (data.away_until, data.paused_until) = (Time(0), Time(0));
            data.disk.borrow_mut().heal();
            data.start();
        }
    }
}

/// Traces a frame to or from the data lender.
fn trace_frame(kernel: &mut SimKernel, does: &str, packet: &[u8]) {
    let Ok(frame) = Frame::parse(packet) else { return };
    let header = frame.header;
    if matches!(header.kind, FrameKind::Ping | FrameKind::Pong) {
        return;
    }
    kernel.tell(|| {
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
