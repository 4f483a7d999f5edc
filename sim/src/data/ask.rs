//! Questions to the data lender over sessions of their own: blocks for a volume that lacks them, and the
//! questions of a restore. The answer comes at once, or the data lender is away; time passes only between
//! questions.

use netram_block::{BLOCK_BYTES, BlockFetch, FetchError};
use netram_block_machine::message::BLOCKS_PER_FRAME;
use netram_block_machine::{FollowReply, ReplicaMessage, ReplicaSource};
use netram_proto::id::Lsn;
use netram_proto::journal::View;
use netram_proto::time::Time;
use netram_proto::wire::{Flag, FrameKind};

use super::service::DataAnswer;
use crate::process::events::settle;
use crate::process::life::with_serving;
use crate::world::{World, WorldHandle};

/// See [`super::DataService::ask`].
pub(crate) fn ask_data(
    world: &mut World,
    process: usize,
    session: u64,
    question: &ReplicaMessage,
    expected: FrameKind,
) -> DataAnswer {
    let by = (process, session);
    world
        .data
        .ask(&mut world.kernel, world.hosts.volume(), by, question, expected)
}

/// Reports that the program performed the action in [`super::DataLink::action`].
pub(crate) fn data_done(
    world: &mut World,
    process: usize,
    tell: impl FnOnce(&mut ReplicaSource, Time) -> Vec<ReplicaMessage>,
) {
    with_serving(world, process, |world, serving| {
        if let Some(link) = &mut serving.data {
            link.on_done(&mut world.kernel, process, tell);
        }
    });
    settle(world, process);
}

/// Records that `blocks` blocks are dirty although the replica is whole.
pub(crate) fn data_dirty(world: &mut World, process: usize, blocks: u64) {
    let now = world.kernel.now();
    with_serving(world, process, |_, serving| {
        if let Some(link) = &mut serving.data {
            link.source.on_dirty(blocks, now);
        }
    });
    settle(world, process);
}

/// Ends all connections to the data lender; both sides learn of it.
pub(crate) fn break_data(world: &mut World, process: usize) {
    with_serving(world, process, |world, serving| {
        if let Some(link) = &serving.data {
            link.cut(&mut world.kernel, &mut world.data, process);
        }
    });
}

/// Asks the replica to keep `view` if its history is that of `ours`. With `closed` the volume is closed
/// and the replica has all of it. Returns the session.
pub(crate) fn store_view_at_data(
    world: &mut World,
    process: usize,
    view: &View,
    ours: &View,
    closed: bool,
) -> Option<Result<u64, u8>> {
    let session = world.data.open_session();
    let follow = world
        .data
        .follow_request(&world.kernel)
        .claim(view.epoch, view.writer, closed);
    let following = match ask_data(world, process, session, &follow, FrameKind::Following)? {
        Ok(answer) => FollowReply::decode(&answer.frame())?,
        Err(refusal) => return Some(Err(refusal)),
    };
    if following.fork(ours).is_some() {
        return Some(Err(0));
    }
    let keep = ReplicaMessage::keep_view(view, world.data.volume_bytes(), closed);
    let kept = ask_data(world, process, session, &keep, FrameKind::ViewStored)?;
    Some(kept.map(|_| session))
}

/// Fetches blocks for `process`: over its connection if it has one, otherwise over a session of its own.
fn fetch(
    world: &mut World,
    process: usize,
    first: u64,
    count: usize,
    at_least: Lsn,
) -> Result<Vec<u8>, FetchError> {
    let serving = world.processes.serving(process).ok_or(FetchError::Unreachable)?;
    let link = serving.data.as_ref().ok_or(FetchError::Unreachable)?;
    let held = world.data.is_held(world.processes[process].host);
    let session = match held {
        true => early_session(world, process)?,
        false => link.answered_session().ok_or(FetchError::Unreachable)?,
    };
    world.kernel.hit(match held {
        true => "data: blocks fetched while a volume was opened",
        false => "data: blocks fetched",
    });
    let ask = ReplicaMessage::fetch(1, first, count as u32, at_least);
    let answer = ask_data(world, process, session, &ask, FrameKind::Fetched);
    let Some(Ok(answer)) = answer else {
        return Err(FetchError::Unreachable);
    };
    match answer.header.flags & (Flag::BAD | Flag::LATER) {
        0 if answer.header.lsn.0 == first => Ok(answer.body),
        Flag::LATER => Err(FetchError::Unreachable),
        _ => Err(FetchError::Damaged),
    }
}

fn early_session(world: &mut World, process: usize) -> Result<u64, FetchError> {
    let view = world.hosts[world.processes[process].host].view.clone();
    let session = world.data.open_session();
    let follow = world
        .data
        .follow_request(&world.kernel)
        .message(view.epoch, view.writer);
    let answer = ask_data(world, process, session, &follow, FrameKind::Following);
    let following = match answer {
        Some(Ok(answer)) => FollowReply::decode(&answer.frame()),
        _ => None,
    };
    match following.is_some_and(|following| following.has_blocks_of(&view)) {
        true => Ok(session),
        false => Err(FetchError::Unreachable),
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
            part.copy_from_slice(&fetch(world, self.process, first, count, at_least)?);
        }
        Ok(())
    }

    fn exists(&self) -> bool {
        self.exists
    }
}
