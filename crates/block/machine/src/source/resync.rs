//! Resync: sends blocks in place of the log, and decides when the replica is whole again.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::limit::{RESYNC_FRAMES_MAX, RESYNC_LAG_PART};
use netram_proto::id::{Epoch, Lsn, WriterId};
use netram_proto::time::Time;
use netram_proto::wire::{ChainPoint, Flag, Frame, FrameHeader, FrameKind, RefusalReason};

use super::super::BLOCK_BYTES;
use super::super::header::ReplicaCondition;
use super::super::message::{
    self, BLOCKS_PER_FRAME, BlockDigest, DIGESTS_PER_FRAME, FollowReply, NUMBERS_PER_FRAME, ReplicaMessage,
    encode_blocks, encode_numbers,
};
use super::{Phase, ReplicaSource, ReplicaTrouble, SourceAction};

/// Blocks that a resync sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResyncScope {
    /// Blocks in the dirty map.
    Dirty,
    /// All blocks that are not holes, because the replica is new.
    Data,
    /// All blocks that differ, found by comparing digests.
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResyncStage {
    /// The driver must fix the set of blocks.
    Begin,
    /// The driver must report where the log begins now.
    Move,
    /// The `Resync` frame is still to be sent.
    Announce(ChainPoint),
    /// The `Resync` frame was sent, with this start of the log.
    Announced(Lsn),
    Copying,
    /// The `ResyncEnd` frame is still to be sent.
    End,
    /// The `ResyncEnd` frame was sent.
    Ended,
    /// The driver must forget the set of blocks.
    Clear,
}

#[derive(Clone, Debug)]
pub(super) struct ResyncState {
    pub(super) scope: ResyncScope,
    pub(super) stage: ResyncStage,
    /// The log lost records that had not been sent. Blocks that became dirty by that must follow, and the
    /// replica's log must begin anew.
    gap: bool,
    /// Number of gaps so far.
    pass: u32,
    /// Frames of this resync have numbers above this.
    first_mark: u32,
    /// Number of the next block to compare.
    pub(super) cursor: u64,
    /// Blocks to be read and sent. If the log begins anew, the rest is sent after that.
    pub(super) chosen: VecDeque<u64>,
    /// Whether all blocks have been chosen.
    pub(super) exhausted: bool,
    /// Number of frames not yet answered.
    pub(super) in_flight: usize,
    /// End of the client's log when blocks were last read; they may show any record below it.
    pub(super) tail: Lsn,
    pub(super) done: u64,
    pub(super) total: u64,
}

impl ResyncState {
    /// The log's head has passed what was sent of it. Blocks already sent stay valid and the resync goes on;
    /// one that started over would never end under a heavy write load.
    pub(super) fn find_gap(&mut self) {
        match self.stage {
            ResyncStage::Copying => self.gap = true,
            ResyncStage::End | ResyncStage::Ended => self.stage = ResyncStage::Move,
            // These stages look at the log's head when they end.
            ResyncStage::Begin
            | ResyncStage::Move
            | ResyncStage::Announce(_)
            | ResyncStage::Announced(_)
            | ResyncStage::Clear => (),
        }
    }
}

impl ReplicaSource {
    /// Starts a resync on the operator's request. With `whole`, it also overwrites a replica that is ahead or
    /// of another history.
    pub fn resync(&mut self, whole: bool) {
        if self.phase == Phase::Up {
            let scope = if whole { ResyncScope::All } else { self.suitable() };
            self.begin(scope);
            return;
        }
        self.wanted = Some(if whole {
            ResyncScope::All
        } else {
            ResyncScope::Dirty
        });
        if let Phase::Down(_) = self.phase
            && !self.is_fenced()
        {
            self.phase = Phase::Down(Time(0));
        }
    }

    /// LSN at which the replica's history leaves ours, if it does. `epoch` and `writer` are of the view that
    /// the replica stores.
    pub(super) fn fork(&self, epoch: Epoch, writer: WriterId) -> Option<Lsn> {
        let following = FollowReply {
            condition: self.condition?,
            flushed: self.flushed,
            epoch,
            writer,
        };
        following.fork(&self.view)
    }

    /// The replica has reported its condition: continue with its log or with blocks.
    pub(super) fn on_greeted(&mut self, condition: ReplicaCondition, fork: Option<Lsn>, now: Time) {
        let wanted = self.wanted.take();
        let follows = condition == ReplicaCondition::Following;
        self.foreign = fork.is_some();
        if wanted == Some(ResyncScope::All) {
            self.begin(ResyncScope::All);
        } else if follows && self.flushed > self.stable {
            let (theirs, ours) = (self.flushed, self.stable);
            self.give_up(now, ReplicaTrouble::Ahead { theirs, ours });
        } else if let Some(at) = fork.filter(|_| follows) {
            self.give_up(now, ReplicaTrouble::Diverged(at));
        } else if wanted.is_some() || !follows || self.flushed < self.head {
            self.begin(self.suitable());
        }
    }

    /// Smallest set of blocks that makes the replica whole again.
    pub(super) fn suitable(&self) -> ResyncScope {
        match (self.condition, self.since()) {
            (Some(ReplicaCondition::New), _) => ResyncScope::Data,
            (_, Some(since)) if since <= self.stable && !self.foreign => ResyncScope::Dirty,
            _ => ResyncScope::All,
        }
    }

    fn since(&self) -> Option<Lsn> {
        match self.condition? {
            ReplicaCondition::Following => Some(self.flushed),
            ReplicaCondition::Inconsistent { since } => since,
            ReplicaCondition::New | ReplicaCondition::TakenOver => None,
        }
    }

    pub(super) fn begin(&mut self, scope: ResyncScope) {
        self.resync = Some(ResyncState {
            scope,
            stage: ResyncStage::Begin,
            gap: false,
            pass: 0,
            first_mark: self.mark,
            cursor: 0,
            chosen: VecDeque::new(),
            exhausted: false,
            in_flight: 0,
            tail: Lsn(0),
            done: 0,
            total: 0,
        });
    }

    /// [`SourceAction::Begin`] is done: the log's head was `start`, and the set has about `total` blocks.
    /// `all`: the set has every block, because the dirty map was not complete since then.
    pub fn on_begun(&mut self, start: ChainPoint, total: u64, all: bool) {
        let stable = self.stable;
        if let Some(resync) = &mut self.resync
            && resync.stage == ResyncStage::Begin
        {
            if all && resync.scope == ResyncScope::Dirty {
                resync.scope = ResyncScope::All;
            }
            resync.stage = ResyncStage::Announce(start);
            resync.total = total;
            // The replica's image may have had every record up to `stable`, and is taken back to where its
            // log begins anew. It is whole only after its log has passed `stable` again, even if no block is
            // sent.
            resync.tail = start.lsn.max(stable);
        }
    }

    /// [`SourceAction::Move`] is done: the log's head and the approximate number of dirty blocks that were
    /// not chosen yet. `None`: the dirty map is not complete since then.
    pub fn on_moved(&mut self, moved: Option<(ChainPoint, u64)>) {
        let stable = self.stable;
        let Some(resync) = self
            .resync
            .as_mut()
            .filter(|resync| resync.stage == ResyncStage::Move)
        else {
            return;
        };
        match moved {
            Some((start, blocks)) => {
                resync.stage = ResyncStage::Announce(start);
                (resync.gap, resync.exhausted) = (false, false);
                resync.pass += 1;
                resync.total = resync.total.max(resync.done + blocks);
                resync.tail = resync.tail.max(start.lsn).max(stable);
            }
            None => self.begin(ResyncScope::All),
        }
    }

    /// The replica is whole, but `blocks` blocks are still dirty, because the end of their resync was lost or
    /// the blocks were damaged. A resync begins by itself, or after `repair` if one has just ended.
    pub fn on_dirty(&mut self, blocks: u64, now: Time) {
        let whole = self.phase == Phase::Up && self.condition == Some(ReplicaCondition::Following);
        if blocks == 0 || !whole || self.resync.is_some() || self.closing {
            return;
        }
        if core::mem::take(&mut self.resynced) {
            self.repair_at = now + self.config.timing.repair;
        }
        if self.repair_at <= now {
            self.begin(self.suitable());
        }
    }

    /// [`SourceAction::Choose`] is done, and the log then began at `head`. No numbers: every block has been
    /// chosen.
    pub fn on_chosen(&mut self, numbers: &[u64], head: Lsn) {
        if let Some(resync) = &mut self.resync {
            resync.chosen.extend(numbers);
            resync.exhausted = numbers.is_empty();
        }
        self.on_head(head);
    }

    /// [`SourceAction::Digest`] is done. Returns the frame to send. `tail` is the log's end after the last
    /// block was read. No digests: the volume ends at `first`.
    pub fn on_digested(
        &mut self,
        first: u64,
        digests: &[BlockDigest],
        tail: Lsn,
        now: Time,
    ) -> Option<ReplicaMessage> {
        let resync = self.resync.as_mut()?;
        if digests.is_empty() {
            resync.exhausted = true;
            return None;
        }
        resync.cursor = first + digests.len() as u64;
        resync.tail = resync.tail.max(tail);
        let mut message = self.numbered(FrameKind::Digests, now)?;
        message.header.lsn = Lsn(first);
        message.body = digests.concat();
        Some(message)
    }

    /// [`SourceAction::Read`] is done. Returns the frames to send. A block is `None` if it is all zeros.
    /// `tail` is the log's end after the last block was read.
    pub fn on_read(
        &mut self,
        blocks: &[(u64, Option<Vec<u8>>)],
        tail: Lsn,
        now: Time,
    ) -> Vec<ReplicaMessage> {
        let Some(resync) = &mut self.resync else {
            return Vec::new();
        };
        resync.tail = resync.tail.max(tail);
        if resync.scope != ResyncScope::All || resync.pass > 0 {
            resync.done += blocks.len() as u64;
        }
        let data = blocks
            .iter()
            .filter_map(|(number, bytes)| Some((*number, bytes.as_deref()?)));
        let body = encode_blocks(data);
        let zeros = |block: &&(u64, Option<Vec<u8>>)| block.1.is_none();
        let holes: Vec<u64> = blocks.iter().filter(zeros).map(|block| block.0).collect();
        let mut messages = Vec::new();
        if !body.is_empty() {
            messages.extend(
                self.numbered(FrameKind::Blocks, now)
                    .map(|message| ReplicaMessage { body, ..message }),
            );
        }
        if !holes.is_empty() {
            messages.extend(self.numbered(FrameKind::Blocks, now).map(|mut message| {
                message.header.flags = Flag::HOLES;
                message.body = encode_numbers(&holes);
                message
            }));
        }
        messages
    }

    /// [`SourceAction::Clear`] is done.
    pub fn on_cleared(&mut self) {
        self.resync = None;
        self.resynced = true;
        if self.phase == Phase::Up && self.sent < self.head {
            self.begin(self.suitable());
        }
    }

    /// [`SourceAction::Mark`] is done: the blocks are in the dirty map.
    pub fn on_marked(&mut self) {
        self.bad.clear();
        if self.phase == Phase::Up && self.resync.is_none() {
            self.begin(self.suitable());
        }
    }

    /// Next step of the resync.
    pub(super) fn copy(&mut self) -> Option<SourceAction> {
        if !self.bad.is_empty() && self.resync.is_none() {
            return Some(SourceAction::Mark(self.bad.clone()));
        }
        let since = self.since();
        let (flushed, flight_max) = (self.flushed, self.flight_max());
        let resync = self.resync.as_mut()?;
        match resync.stage {
            ResyncStage::Begin => Some(SourceAction::Begin {
                scope: resync.scope,
                since,
            }),
            ResyncStage::Move => Some(SourceAction::Move { since: flushed }),
            ResyncStage::Announce(start) => self.announce(start),
            // Blocks that became dirty by this gap are chosen and then no longer marked. They must not be
            // sent before the replica's log has begun anew: the replica would put older records over them and
            // never get the newer ones.
            ResyncStage::Copying if resync.gap && resync.pass > 0 => {
                if resync.in_flight > 0 {
                    return None;
                }
                resync.stage = ResyncStage::Move;
                self.copy()
            }
            ResyncStage::Copying if resync.in_flight + 2 > flight_max => None,
            ResyncStage::Copying if !resync.chosen.is_empty() => {
                let count = resync.chosen.len().min(BLOCKS_PER_FRAME);
                Some(SourceAction::Read(resync.chosen.drain(..count).collect()))
            }
            ResyncStage::Copying if !resync.exhausted => Some(match resync.scope {
                ResyncScope::All if resync.pass == 0 => SourceAction::Digest {
                    first: resync.cursor,
                    count: DIGESTS_PER_FRAME,
                },
                _ => SourceAction::Choose {
                    max: BLOCKS_PER_FRAME,
                    pass: resync.pass,
                },
            }),
            ResyncStage::Copying if resync.in_flight == 0 => {
                resync.stage = if resync.gap {
                    ResyncStage::Move
                } else {
                    ResyncStage::End
                };
                self.copy()
            }
            ResyncStage::End => {
                resync.stage = ResyncStage::Ended;
                let tail = resync.tail;
                Some(SourceAction::Send(ReplicaMessage::bare(FrameHeader {
                    lsn: tail,
                    ..self.header(FrameKind::ResyncEnd)
                })))
            }
            ResyncStage::Clear => Some(SourceAction::Clear),
            ResyncStage::Announced(_) | ResyncStage::Copying | ResyncStage::Ended => None,
        }
    }

    /// Announces the resync to the replica, whose log begins anew at `start`.
    fn announce(&mut self, start: ChainPoint) -> Option<SourceAction> {
        let resync = self.resync.as_mut()?;
        resync.stage = ResyncStage::Announced(start.lsn);
        let flags = match resync.scope {
            ResyncScope::Data | ResyncScope::All if resync.pass == 0 => Flag::FULL,
            // The replica builds on the blocks that it has, or was already told not to.
            _ => 0,
        };
        Some(SourceAction::Send(ReplicaMessage::bare(FrameHeader {
            lsn: start.lsn,
            mark: start.chain,
            flags,
            ..self.header(FrameKind::Resync)
        })))
    }

    /// Maximum number of block frames in flight. Small while the replica's log lags far behind, so that the
    /// log's head does not pass it; never zero, so that a resync ends under any write load.
    fn flight_max(&self) -> usize {
        let lag = self.stable.since(self.flushed);
        let follows = self.sent >= self.head;
        match follows && lag > self.config.capacity / RESYNC_LAG_PART {
            true => 2,
            false => RESYNC_FRAMES_MAX,
        }
    }

    /// The data lender answered the frame of number `mark`.
    pub(super) fn on_answered(&mut self, mark: u32) {
        if let Some(resync) = self.resync.as_mut().filter(|resync| mark > resync.first_mark) {
            resync.in_flight = resync.in_flight.saturating_sub(1);
        }
    }

    pub(super) fn on_differ(&mut self, frame: &Frame<'_>, now: Time) {
        // Answers to an earlier resync may still arrive.
        let ours = |resync: &&mut ResyncState| frame.header.mark > resync.first_mark;
        let Some(resync) = self.resync.as_mut().filter(ours) else {
            return;
        };
        let first = frame.header.lsn.0;
        let beyond = first.saturating_add(8 * frame.body.len() as u64) > resync.cursor.saturating_add(7);
        if beyond || resync.scope != ResyncScope::All {
            self.give_up(now, ReplicaTrouble::Refused(RefusalReason::Malformed));
            return;
        }
        resync.in_flight = resync.in_flight.saturating_sub(1);
        for (index, byte) in frame.body.iter().enumerate() {
            for bit in (0..8).filter(|bit| byte & 1 << bit != 0) {
                let number = first + 8 * index as u64 + bit;
                if number < resync.cursor {
                    resync.chosen.push_back(number);
                }
            }
        }
        resync.done = resync.cursor;
    }

    pub(super) fn on_bad(&mut self, frame: &Frame<'_>) {
        let blocks = self.bytes / BLOCK_BYTES as u64;
        if let Some(numbers) = message::numbers(frame.body) {
            let room = NUMBERS_PER_FRAME - self.bad.len().min(NUMBERS_PER_FRAME);
            self.bad
                .extend(numbers.filter(|&number| number < blocks).take(room));
        }
    }

    pub(super) fn set_stage(&mut self, stage: ResyncStage) {
        if let Some(resync) = &mut self.resync {
            resync.stage = stage;
        }
    }

    fn numbered(&mut self, kind: FrameKind, now: Time) -> Option<ReplicaMessage> {
        let header = self.header(kind);
        let resync = self.resync.as_mut()?;
        resync.in_flight += 1;
        self.mark += 1;
        self.owed_since.get_or_insert(now);
        Some(ReplicaMessage::bare(FrameHeader {
            mark: self.mark,
            ..header
        }))
    }
}
