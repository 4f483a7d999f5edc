//! Conversation of a restore with the data lender that has the copy.
//!
//! Every session names an epoch, and the copy obeys the newest. Before the copy is changed, it must belong to
//! the history to be restored, because another restore may have happened in between.

use std::ops::Range;
use std::time::{Duration, Instant};

use netram_block::VolumeId;
use netram_block_machine::limit::REPLICA_FLIGHT_BYTES_MAX;
use netram_block_machine::message::{FollowRequest, MAP_BLOCKS_PER_FRAME};
use netram_block_machine::{FollowReply, ReplicaCondition, ReplicaDescription, ReplicaMessage};
use netram_journal::Journal;
use netram_journal::owner::JournalOwner;
use netram_proto::id::{Lsn, WriterId};
use netram_proto::journal::View;
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::port::RecordLog;
use netram_proto::wire::{Flag, FrameHeader, FrameKind, RefusalReason};
use netram_transport::connect;
use ring::rand::{SecureRandom, SystemRandom};

use super::link::ReplicaLink;
use super::restore::{DataLenderEndpoint, RestoreError};

/// Timeout of an answer; the data lender may have to open the copy first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Delay before a request answered with "later" is repeated.
const LATER_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Sends a request and returns its answer; a refusal is the inner error.
pub(super) fn ask(
    wire: &mut ReplicaLink,
    question: &ReplicaMessage,
    expected: FrameKind,
) -> Result<Result<ReplicaMessage, u8>, RestoreError> {
    ask_for(wire, question, expected, ANSWER_TIMEOUT)
}

fn ask_for(
    wire: &mut ReplicaLink,
    question: &ReplicaMessage,
    expected: FrameKind,
    longest: Duration,
) -> Result<Result<ReplicaMessage, u8>, RestoreError> {
    wire.send(question)?;
    let deadline = Instant::now() + longest;
    while let Some(message) = wire.await_next(deadline)? {
        match message.header.kind {
            kind if kind == expected => return Ok(Ok(message)),
            FrameKind::Refuse => return Ok(Err(message.header.flags)),
            _ => (),
        }
    }
    Err(silent(longest))
}

fn silent(longest: Duration) -> RestoreError {
    RestoreError::Silent(format!("no answer within {longest:?}"))
}

pub(super) fn refused(refusal: u8) -> RestoreError {
    RestoreError::Refused(match RefusalReason::from_byte(refusal) {
        Some(RefusalReason::NoReplica) => "it keeps no volumes; start the lender with --data".to_owned(),
        Some(RefusalReason::DataElsewhere) => {
            "it accepts data sessions only at another address and with a separate key: use that address (its \
            --data-listen) and that key"
                .to_owned()
        }
        Some(RefusalReason::OverClientLimit) => {
            "the name of this client's key has no right to `data` there: its operator gives it in the file of clients"
                .to_owned()
        }
        Some(RefusalReason::DiskFailed) => "it cannot open the copy; its log says why".to_owned(),
        Some(RefusalReason::Fenced) => {
            "a newer client has claimed the copy, or it was taken over on the data lender".to_owned()
        }
        Some(RefusalReason::NotOwner) => {
            "it does not take this machine for the volume's owner: run the same release on both machines"
                .to_owned()
        }
        Some(refusal) => format!("{refusal:?}"),
        None => format!("unknown reason {refusal}; the data lender may run a newer release"),
    })
}

/// Describes the copy, whole or not, to the owner of its journal. Anybody else learns the wrapped key, sizes
/// and ages. Changes nothing there.
pub(super) fn look(
    lender: &DataLenderEndpoint,
    volume: VolumeId,
    owner: Option<&JournalOwner>,
    longest: Duration,
) -> Result<ReplicaDescription, RestoreError> {
    let link = connect(&lender.address, &lender.security, longest)?;
    let mut wire = match owner {
        Some(owner) => ReplicaLink::of_owner(link, owner)?,
        None => ReplicaLink::new(link)?,
    };
    describe_any(&mut wire, lender, volume, longest)
}

fn describe(
    wire: &mut ReplicaLink,
    lender: &DataLenderEndpoint,
    volume: VolumeId,
) -> Result<ReplicaDescription, RestoreError> {
    let description = describe_any(wire, lender, volume, ANSWER_TIMEOUT)?;
    match description.condition {
        ReplicaCondition::Following => Ok(description),
        condition => Err(RestoreError::NotWhole { condition }),
    }
}

fn describe_any(
    wire: &mut ReplicaLink,
    lender: &DataLenderEndpoint,
    volume: VolumeId,
    longest: Duration,
) -> Result<ReplicaDescription, RestoreError> {
    let question = ReplicaMessage::inquire(Some(volume.0));
    let message = match ask_for(wire, &question, FrameKind::Replica, longest)? {
        Ok(message) => message,
        Err(refusal) if RefusalReason::from_byte(refusal) == Some(RefusalReason::NoReplica) => {
            let address = lender.address.to_string();
            return Err(RestoreError::NoReplica { address, volume });
        }
        Err(refusal) => return Err(refused(refusal)),
    };
    if message.header.flags & Flag::KNOWN == 0 {
        return Err(RestoreError::Malformed);
    }
    let description = ReplicaDescription::decode(&message.frame()).map_err(|_| RestoreError::Malformed)?;
    if description.follow.identity.volume != volume.0 {
        return Err(RestoreError::Malformed);
    }
    Ok(description)
}

/// Begins a new epoch at the data lender, with the same members. Returns the copy's description from then on.
///
/// Only the description after the claim counts: before it, the old client may have sent more, or opened a
/// closed volume. A closed volume stays closed.
pub(super) fn claim(
    lender: &DataLenderEndpoint,
    volume: VolumeId,
    owner: &JournalOwner,
) -> Result<ReplicaDescription, RestoreError> {
    let mut wire = lender.connect(owner)?;
    let before = describe(&mut wire, lender, volume)?;
    if before.follow.identity.journal != owner.journal() {
        return Err(RestoreError::Malformed);
    }
    // The data lender closes the connection after an inquiry, so the claim needs another session.
    drop(wire);
    let mut wire = lender.connect(owner)?;
    let mut writer = [0; 8];
    SystemRandom::new()
        .fill(&mut writer)
        .expect("Linux supplies random bytes once it has booted");
    let claim = before.view.restored(WriterId(u64::from_le_bytes(writer)));
    let follow = before.follow.claim(claim.epoch, claim.writer, true);
    ask(&mut wire, &follow, FrameKind::Following)?.map_err(refused)?;
    let mut now = describe(&mut wire, lender, volume)?;
    let view = View {
        note: Some(netram_journal::claim_note()),
        ..now.view.restored(claim.writer)
    };
    if (view.epoch, view.writer) != (claim.epoch, claim.writer) {
        return Err(RestoreError::Silent(
            "the copy's client has reconnected in the meantime; try again".to_owned(),
        ));
    }
    let keep = ReplicaMessage::keep_view(&view, now.follow.bytes, now.closed.is_some());
    ask(&mut wire, &keep, FrameKind::ViewStored)?.map_err(refused)?;
    now.view = view;
    Ok(now)
}

/// A restoring client in its conversation with the copy.
pub(super) struct Claimant<'a> {
    pub(super) lender: &'a DataLenderEndpoint,
    pub(super) follow: &'a FollowRequest,
    pub(super) owner: &'a JournalOwner,
}

impl Claimant<'_> {
    /// Makes the copy store `view`. `closed`: its volume is closed, and the copy has all of it.
    pub(super) fn keep(&self, view: &View, closed: bool) -> Result<(), RestoreError> {
        self.begin(view, view, closed).map(drop)
    }

    /// Sends the records of `journal` from `from`, which members held, so that the copy needs no member.
    /// `before` is the view that still names the members; `released` has its epoch.
    pub(super) fn hand_over(
        &self,
        before: &View,
        released: &View,
        from: Lsn,
        journal: &Journal,
    ) -> Result<(), RestoreError> {
        let mut wire = self.begin(before, released, false)?;
        let end = journal.state().stable;
        let (mut sent, mut flushed, mut room) = (from, from, from);
        let mut deadline = Instant::now() + ANSWER_TIMEOUT;
        while flushed < end {
            let most = end.min(room).min(flushed.plus(REPLICA_FLIGHT_BYTES_MAX));
            if sent < most {
                let bytes = (most.since(sent) as usize).min(FRAME_BODY_BYTES_MAX);
                wire.send(&records(journal, released, sent, bytes)?)?;
                sent = sent.plus(bytes as u64);
                continue;
            }
            let Some(message) = wire.await_next(deadline)? else {
                return Err(silent(ANSWER_TIMEOUT));
            };
            let header = message.header;
            match header.kind {
                FrameKind::Flushed => {
                    if header.lsn > flushed || header.stable > room {
                        deadline = Instant::now() + ANSWER_TIMEOUT;
                    }
                    (flushed, room) = (flushed.max(header.lsn), room.max(header.stable));
                }
                FrameKind::Refuse => return Err(refused(header.flags)),
                _ => (),
            }
        }
        Ok(())
    }

    /// Calls `each` with every run of data among the copy's first `blocks` blocks, as of a log that has
    /// everything below `at_least`, in the epoch of `view`.
    pub(super) fn each_data(
        &self,
        view: &View,
        at_least: Lsn,
        blocks: u64,
        each: &mut dyn FnMut(Range<u64>) -> Result<(), RestoreError>,
    ) -> Result<(), RestoreError> {
        let mut wire = self.lender.connect(self.owner)?;
        let follow = self.follow.claim(view.epoch, view.writer, true);
        ask(&mut wire, &follow, FrameKind::Following)?.map_err(refused)?;
        let mut first = 0;
        while first < blocks {
            let count = (blocks - first).min(MAP_BLOCKS_PER_FRAME as u64);
            let map = ask_map(&mut wire, first, count as u32, at_least)?;
            let is_data = |index: &u64| map[(index / 8) as usize] & 1 << (index % 8) != 0;
            let mut at = 0;
            while let Some(begin) = (at..count).find(is_data) {
                let end = (begin..count).find(|index| !is_data(index)).unwrap_or(count);
                each(first + begin..first + end)?;
                at = end;
            }
            first += count;
        }
        Ok(())
    }

    /// Opens a session in which the copy stores `view`, if it belongs to the history of `ours`.
    fn begin(&self, view: &View, ours: &View, closed: bool) -> Result<ReplicaLink, RestoreError> {
        let mut wire = self.lender.connect(self.owner)?;
        let follow = self.follow.claim(view.epoch, view.writer, closed);
        let answer = ask(&mut wire, &follow, FrameKind::Following)?.map_err(refused)?;
        let following = FollowReply::decode(&answer.frame()).ok_or(RestoreError::Malformed)?;
        if let Some(at) = following.fork(ours) {
            return Err(RestoreError::Superseded(at));
        }
        let keep = ReplicaMessage::keep_view(view, self.follow.bytes, closed);
        ask(&mut wire, &keep, FrameKind::ViewStored)?.map_err(refused)?;
        Ok(wire)
    }
}

/// Repeats the request until the copy's stages can answer it.
fn ask_map(wire: &mut ReplicaLink, first: u64, count: u32, at_least: Lsn) -> Result<Vec<u8>, RestoreError> {
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    loop {
        let question = ReplicaMessage::fetch_map(first, count, at_least);
        let answer = ask(wire, &question, FrameKind::Fetched)?.map_err(refused)?;
        match answer.header.flags {
            Flag::HOLES if answer.body.len() == (count as usize).div_ceil(8) => return Ok(answer.body),
            Flag::LATER if Instant::now() < deadline => std::thread::sleep(LATER_RETRY_INTERVAL),
            Flag::LATER => return Err(silent(ANSWER_TIMEOUT)),
            _ => return Err(RestoreError::Malformed),
        }
    }
}

fn records(journal: &Journal, view: &View, from: Lsn, bytes: usize) -> Result<ReplicaMessage, RestoreError> {
    let mut body = vec![0; bytes];
    match journal.read_raw(from, &mut body) {
        Ok(read) if read == bytes => (),
        failed => {
            return Err(RestoreError::Write(format!(
                "it cannot be read at LSN {from}: {failed:?}"
            )));
        }
    }
    let header = FrameHeader {
        lsn: from,
        epoch: view.epoch,
        sender: view.writer.0,
        ..FrameHeader::new(FrameKind::Records)
    };
    Ok(ReplicaMessage { header, body })
}
