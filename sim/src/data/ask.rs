//! Questions to the data lender over sessions of their own: blocks for a volume that lacks them, and the
//! questions of a restore. The answer comes at once, or the data lender is away; time passes only between
//! questions.

use netram_block::{BLOCK_BYTES, BlockFetch, FetchError};
use netram_block_machine::message::{BLOCKS_PER_FRAME, FollowRequest};
use netram_block_machine::{FollowReply, ReplicaIdentity, ReplicaMessage};
use netram_proto::id::Lsn;
use netram_proto::journal::View;
use netram_proto::wire::{Flag, FrameKind};

use super::VOLUME;
use crate::lender::packet_of;
use crate::world::{World, WorldHandle};

/// The data lender's answer, or the number of its refusal. `None` if no answer came.
pub(crate) type DataAnswer = Option<Result<ReplicaMessage, u8>>;

impl World {
    /// The data lender's parameters for the volume.
    pub(crate) fn follow_of_volume(&self) -> FollowRequest {
        FollowRequest {
            identity: ReplicaIdentity {
                volume: VOLUME.0,
                journal: self.kernel.journal(),
            },
            bytes: self.volume_bytes,
            capacity: self.kernel.profile.capacity,
            key: Vec::new(),
        }
    }

    /// Opens a connection used only for questions.
    pub(crate) fn data_session(&mut self) -> u64 {
        self.data_sessions += 1;
        self.data_sessions
    }

    /// Sends `question` over `session` and returns the answer of kind `expected`. Other frames that arrive
    /// are delivered to `process`.
    pub(crate) fn ask_data(
        &mut self,
        process: usize,
        session: u64,
        question: &ReplicaMessage,
        expected: FrameKind,
    ) -> DataAnswer {
        if !self.reaches_data() {
            return None;
        }
        let now = self.kernel.now();
        let packet = packet_of(&question.header, &question.body);
        let data = self.data.as_mut().filter(|data| data.paused_until <= now)?;
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
        self.after_data(process, session, served);
        if !alive {
            self.data_died();
            return None;
        }
        answer.map(|answer| match answer.header.kind {
            FrameKind::Refuse => Err(answer.header.flags),
            _ => Ok(answer),
        })
    }

    /// Asks the replica to keep `view` if its history is that of `ours`. With `closed` the volume is closed
    /// and the replica has all of it. Returns the session.
    pub(crate) fn store_view_at_data(
        &mut self,
        process: usize,
        view: &View,
        ours: &View,
        closed: bool,
    ) -> Option<Result<u64, u8>> {
        let session = self.data_session();
        let follow = self.follow_of_volume().claim(view.epoch, view.writer, closed);
        let following = match self.ask_data(process, session, &follow, FrameKind::Following)? {
            Ok(answer) => FollowReply::decode(&answer.frame())?,
            Err(refusal) => return Some(Err(refusal)),
        };
        if following.fork(ours).is_some() {
            return Some(Err(0));
        }
        let keep = ReplicaMessage::keep_view(view, self.volume_bytes, closed);
        let kept = self.ask_data(process, session, &keep, FrameKind::ViewStored)?;
        Some(kept.map(|_| session))
    }

    /// Fetches blocks for `process`: over its connection if it has one, otherwise over a session of its own.
    fn fetch(
        &mut self,
        process: usize,
        first: u64,
        count: usize,
        at_least: Lsn,
    ) -> Result<Vec<u8>, FetchError> {
        let serving = self.serving(process).ok_or(FetchError::Unreachable)?;
        let link = serving.data.as_ref().ok_or(FetchError::Unreachable)?;
        let held = self.data_blocked_host == Some(self.processes[process].host);
        let session = match held {
            true => self.early_session(process)?,
            false => {
                let status = link.source.status();
                let asked = status.connected && !status.foreign && status.condition.is_some();
                link.session.filter(|_| asked).ok_or(FetchError::Unreachable)?
            }
        };
        self.kernel.hit(match held {
            true => "data: blocks fetched while a volume was opened",
            false => "data: blocks fetched",
        });
        let ask = ReplicaMessage::fetch(1, first, count as u32, at_least);
        let answer = self.ask_data(process, session, &ask, FrameKind::Fetched);
        let Some(Ok(answer)) = answer else {
            return Err(FetchError::Unreachable);
        };
        match answer.header.flags & (Flag::BAD | Flag::LATER) {
            0 if answer.header.lsn.0 == first => Ok(answer.body),
            Flag::LATER => Err(FetchError::Unreachable),
            _ => Err(FetchError::Damaged),
        }
    }

    fn early_session(&mut self, process: usize) -> Result<u64, FetchError> {
        let view = self.hosts[self.processes[process].host].view.clone();
        let session = self.data_session();
        let follow = self.follow_of_volume().message(view.epoch, view.writer);
        let answer = self.ask_data(process, session, &follow, FrameKind::Following);
        let following = match answer {
            Some(Ok(answer)) => FollowReply::decode(&answer.frame()),
            _ => None,
        };
        match following.is_some_and(|following| following.has_blocks_of(&view)) {
            true => Ok(session),
            false => Err(FetchError::Unreachable),
        }
    }
}

/// Source from which a process's volume takes missing blocks.
pub(crate) struct SimFetch {
    pub(crate) world: WorldHandle,
    pub(crate) process: usize,
    /// Whether there is a data lender.
    pub(crate) exists: bool,
}

impl BlockFetch for SimFetch {
    fn fetch(&self, first: u64, at_least: Lsn, into: &mut [u8]) -> Result<(), FetchError> {
        let bytes = BLOCK_BYTES as usize;
        let parts = into.chunks_mut(BLOCKS_PER_FRAME * bytes);
        for (first, part) in (first..).step_by(BLOCKS_PER_FRAME).zip(parts) {
            let count = part.len() / bytes;
            let world = &mut *self.world.borrow_mut();
            part.copy_from_slice(&world.fetch(self.process, first, count, at_least)?);
        }
        Ok(())
    }

    fn exists(&self) -> bool {
        self.exists
    }
}
