//! Fetching blocks from the data lender's copy, for a volume that lost or lacks them.
//!
//! While the volume is being opened, the thread that needs a block asks the data lender itself. Once the
//! feeder runs, it has the only valid session, so a thread queues its request there and waits.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use netram_block::{BLOCK_BYTES, BlockFetch, FetchError};
use netram_block_machine::message::{BLOCKS_PER_FRAME, FollowRequest};
use netram_block_machine::{FollowReply, ReplicaMessage};
use netram_journal::owner::JournalOwner;
use netram_proto::id::Lsn;
use netram_proto::journal::View;
use netram_proto::wire::{Flag, Frame, FrameKind};
use netram_transport::{NetAddress, Security, Waker, connect};

use super::link::{ReplicaLink, ReplicaLinkError};

const BLOCK: usize = BLOCK_BYTES as usize;
/// Bytes of blocks in one answer.
const FRAME_BYTES: usize = BLOCKS_PER_FRAME * BLOCK;
/// Timeout of a fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(4);
/// Timeout of a fetch while the volume is being opened. No other thread waits for it, and without the block
/// the volume may not open.
const OPENING_FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of requests in flight; fewer than a copy accepts.
pub(super) const REQUESTS_MAX: usize = 8;

/// Route to the copy while the volume is being opened.
pub(crate) struct EarlyCopy {
    pub(crate) address: NetAddress,
    pub(crate) security: Security,
    pub(crate) follow: FollowRequest,
    pub(crate) owner: JournalOwner,
    /// View of the volume; the copy must belong to its history.
    pub(crate) view: View,
}

/// Source of blocks from the copy. Shared by the volume, which requests them, and the feeder, which sends the
/// requests.
#[derive(Clone)]
pub(crate) struct CopySource(Option<Arc<CopySourceInner>>);

struct CopySourceInner {
    state: Mutex<State>,
    answered: Condvar,
}

struct State {
    route: FetchRoute,
    requests: Vec<FetchRequest>,
    next_mark: u32,
}

enum FetchRoute {
    /// The volume is being opened.
    Early(Box<EarlyCopy>, Option<ReplicaLink>),
    /// The feeder sends requests, and is woken by this.
    Fed(Arc<Waker>),
    /// The feeder sends requests, but the copy is unreachable now: they wait for it.
    Cut(Arc<Waker>),
    /// The feeder has ended.
    Gone,
}

/// One request.
struct FetchRequest {
    mark: u32,
    first: u64,
    count: u32,
    at_least: Lsn,
    sent: bool,
    answer: Option<Result<Vec<u8>, FetchError>>,
}

impl CopySource {
    /// A volume without a copy.
    pub(crate) fn none() -> CopySource {
        CopySource(None)
    }

    /// A volume with a copy that has not been asked yet.
    pub(crate) fn early(early: EarlyCopy) -> CopySource {
        CopySource(Some(Arc::new(CopySourceInner {
            state: Mutex::new(State {
                route: FetchRoute::Early(Box::new(early), None),
                requests: Vec::new(),
                next_mark: 1,
            }),
            answered: Condvar::new(),
        })))
    }

    /// From now on the feeder sends requests. The early session is over.
    pub(super) fn feed(&self, waker: Arc<Waker>) {
        if let Some(shared) = &self.0 {
            shared.state().route = FetchRoute::Cut(waker);
        }
    }

    /// Sets whether the copy can be asked now. Requests in flight when it was lost are sent again.
    pub(super) fn set_reachable(&self, reachable: bool) {
        let Some(shared) = &self.0 else { return };
        let mut state = shared.state();
        let (was, waker) = match &state.route {
            FetchRoute::Fed(waker) => (true, Arc::clone(waker)),
            FetchRoute::Cut(waker) => (false, Arc::clone(waker)),
            FetchRoute::Early(..) | FetchRoute::Gone => return,
        };
        if was == reachable {
            return;
        }
        state.route = match reachable {
            true => FetchRoute::Fed(waker),
            false => FetchRoute::Cut(waker),
        };
        for ask in &mut state.requests {
            ask.sent = false;
        }
    }

    /// The feeder has ended: fails all requests.
    pub(super) fn end(&self) {
        let Some(shared) = &self.0 else { return };
        let mut state = shared.state();
        state.route = FetchRoute::Gone;
        for ask in &mut state.requests {
            ask.answer.get_or_insert(Err(FetchError::Unreachable));
        }
        shared.answered.notify_all();
    }

    /// Next request to send, if another may be in flight.
    pub(super) fn next_request(&self) -> Option<ReplicaMessage> {
        let shared = self.0.as_ref()?;
        let mut state = shared.state();
        if !matches!(state.route, FetchRoute::Fed(_)) {
            return None;
        }
        let under_way = state
            .requests
            .iter()
            .filter(|ask| ask.sent && ask.answer.is_none());
        if under_way.count() >= REQUESTS_MAX {
            return None;
        }
        let ask = state
            .requests
            .iter_mut()
            .find(|ask| !ask.sent && ask.answer.is_none())?;
        ask.sent = true;
        Some(ReplicaMessage::fetch(
            ask.mark,
            ask.first,
            ask.count,
            ask.at_least,
        ))
    }

    /// Handles a `Fetched` frame.
    pub(super) fn on_fetched(&self, frame: &Frame<'_>) {
        let Some(shared) = &self.0 else { return };
        let mut state = shared.state();
        let mark = frame.header.mark;
        if let Some(ask) = state.requests.iter_mut().find(|ask| ask.mark == mark && ask.sent) {
            ask.answer = Some(check_reply(frame, ask.first, ask.count));
            shared.answered.notify_all();
        }
    }
}

/// Checks a reply and returns its blocks.
fn check_reply(frame: &Frame<'_>, first: u64, count: u32) -> Result<Vec<u8>, FetchError> {
    let bytes = count as usize * BLOCK;
    match frame.header.flags & (Flag::BAD | Flag::LATER) {
        Flag::LATER => Err(FetchError::Unreachable),
        0 if frame.body.len() == bytes && frame.header.lsn.0 == first => Ok(frame.body.to_vec()),
        _ => Err(FetchError::Damaged),
    }
}

impl CopySourceInner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills `into` with blocks from `first`: one request a frame, all in flight together.
    fn ask(&self, first: u64, at_least: Lsn, into: &mut [u8]) -> Result<(), FetchError> {
        let mut state = self.state();
        let parts = into.len().div_ceil(FRAME_BYTES) as u32;
        let mark = state.next_mark;
        state.next_mark = mark.wrapping_add(parts);
        let questions = || {
            let numbers = (first..).step_by(BLOCKS_PER_FRAME);
            (0..parts).map(move |part| mark.wrapping_add(part)).zip(numbers)
        };
        let waker = match &mut state.route {
            FetchRoute::Early(early, wire) => {
                for ((mark, first), part) in questions().zip(into.chunks_mut(FRAME_BYTES)) {
                    let count = (part.len() / BLOCK) as u32;
                    part.copy_from_slice(&fetch_early(early, wire, mark, first, count, at_least)?);
                }
                return Ok(());
            }
            FetchRoute::Gone => return Err(FetchError::Unreachable),
            FetchRoute::Fed(waker) | FetchRoute::Cut(waker) => Arc::clone(waker),
        };
        for ((mark, first), part) in questions().zip(into.chunks(FRAME_BYTES)) {
            state.requests.push(FetchRequest {
                mark,
                first,
                count: (part.len() / BLOCK) as u32,
                at_least,
                sent: false,
                answer: None,
            });
        }
        if let Err(error) = waker.wake() {
            tracing::debug!(%error, "cannot wake the feeder thread; it will look by itself");
        }
        let mine = |ask: &FetchRequest| ask.mark.wrapping_sub(mark) < parts;
        let waiting = |state: &mut State| state.requests.iter().any(|ask| mine(ask) && ask.answer.is_none());
        let waited = self.answered.wait_timeout_while(state, FETCH_TIMEOUT, waiting);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        let mut filled = Ok(());
        for ask in state.requests.extract_if(.., |ask| mine(ask)) {
            let part = ask.mark.wrapping_sub(mark) as usize * FRAME_BYTES;
            match ask.answer {
                Some(Ok(bytes)) => into[part..part + bytes.len()].copy_from_slice(&bytes),
                Some(Err(error)) => filled = Err(error),
                None => filled = Err(FetchError::Unreachable),
            }
        }
        filled
    }
}

impl BlockFetch for CopySource {
    fn fetch(&self, first: u64, at_least: Lsn, into: &mut [u8]) -> Result<(), FetchError> {
        let shared = self.0.as_ref().ok_or(FetchError::Unreachable)?;
        shared.ask(first, at_least, into)
    }

    fn exists(&self) -> bool {
        self.0.is_some()
    }
}

/// Asks over a session of its own.
fn fetch_early(
    early: &EarlyCopy,
    wire: &mut Option<ReplicaLink>,
    mark: u32,
    first: u64,
    count: u32,
    at_least: Lsn,
) -> Result<Vec<u8>, FetchError> {
    let deadline = Instant::now() + OPENING_FETCH_TIMEOUT;
    let asked = || -> Result<Option<Result<Vec<u8>, FetchError>>, ReplicaLinkError> {
        if wire.is_none() {
            *wire = greet(early, deadline)?;
        }
        let Some(wire) = wire else { return Ok(None) };
        wire.send(&ReplicaMessage::fetch(mark, first, count, at_least))?;
        while let Some(message) = wire.await_next(deadline)? {
            let frame = message.frame();
            match frame.header.kind {
                FrameKind::Fetched if frame.header.mark == mark => {
                    return Ok(Some(check_reply(&frame, first, count)));
                }
                FrameKind::Refuse => return Ok(None),
                _ => (),
            }
        }
        Ok(None)
    };
    match { asked }() {
        Ok(Some(answer)) => answer,
        failed => {
            if let Err(error) = failed {
                tracing::warn!(lender = %early.address, %error, "cannot fetch a block from the data lender");
            }
            *wire = None;
            Err(FetchError::Unreachable)
        }
    }
}

fn greet(early: &EarlyCopy, deadline: Instant) -> Result<Option<ReplicaLink>, ReplicaLinkError> {
    let link = match connect(&early.address, &early.security, CONNECT_TIMEOUT) {
        Ok(link) => link,
        Err(error) => {
            tracing::warn!(lender = %early.address, %error, "the data lender cannot be reached");
            return Ok(None);
        }
    };
    let mut wire = ReplicaLink::of_owner(link, &early.owner)?;
    wire.send(&early.follow.message(early.view.epoch, early.view.writer))?;
    let answered = wire.await_next(deadline)?;
    let following = answered
        .filter(|answer| answer.header.kind == FrameKind::Following)
        .and_then(|answer| FollowReply::decode(&answer.frame()));
    // As in the feeder: a block of an abandoned history has a valid checksum too.
    let ours = following.is_some_and(|following| following.has_blocks_of(&early.view));
    if !ours {
        tracing::warn!(lender = %early.address, ?following, "the data lender's copy has another history or is not whole, so no blocks are taken from it");
    }
    Ok(ours.then_some(wire))
}

#[cfg(test)]
mod tests {
    use netram_block_machine::ReplicaIdentity;
    use netram_journal::seal::DataKey;
    use netram_lender::{Lender, LenderConfig};
    use netram_proto::journal::EpochHistory;

    use super::*;
    use crate::paths::VolumePaths;
    use crate::replica::ReplicaHost;
    use crate::{BlockDevice, Volume, VolumeSettings};

    /// While a volume was being opened, blocks were fetched from a copy of an abandoned history, whose
    /// checksums are valid too.
    #[test]
    fn a_volume_being_opened_takes_no_block_from_a_copy_of_another_history() {
        let directory = tempfile::tempdir().unwrap();
        let keeper = Arc::new(ReplicaHost::start(&directory.path().join("kept")).unwrap());
        let config = LenderConfig {
            listen: vec![NetAddress::Unix(directory.path().join("data.sock"))],
            memory: 1 << 20,
            store: Some(directory.path().join("store")),
            allow_disk: true,
            ..LenderConfig::default()
        };
        let address = config.listen[0].clone();
        let lender = Lender::start_with(config, Some(Arc::clone(&keeper) as _)).unwrap();
        let root = directory.path().join("volume");
        let id = Volume::create(&root, 1 << 20, 1 << 20).unwrap();
        let mut settings = VolumeSettings {
            data_lender: Some(address.clone()),
            ..VolumeSettings::default()
        };
        settings.journal.insecure = true;
        let (volume, _) = Volume::open_with(&root, &settings).unwrap();
        volume.wait(volume.write(0, &[7; BLOCK]).unwrap()).unwrap();
        let began = Instant::now();
        while volume.data_lender().is_none_or(|kept| kept.flushed == 0) {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "the copy never follows"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        let key = DataKey::load(&VolumePaths::at(&root).data_key()).unwrap();
        let follow = FollowRequest {
            identity: ReplicaIdentity {
                volume: id.0,
                journal: volume.journal().id(),
            },
            bytes: 1 << 20,
            capacity: volume.status().journal.log.capacity,
            key: vec![0; 32],
            wrapped_key: Vec::new(),
        };
        let kept = volume.journal().newest_view();
        volume.close().unwrap();
        let fetch = |view: View| {
            let mut block = vec![0; BLOCK];
            let early = EarlyCopy {
                address: address.clone(),
                security: Security::Insecure,
                follow: follow.clone(),
                owner: JournalOwner::of(follow.identity.journal, &key).unwrap(),
                view,
            };
            let fetched = CopySource::early(early).fetch(0, Lsn(0), &mut block);
            fetched.map(|()| block)
        };
        let next = kept.claimed(netram_proto::id::WriterId(1));
        let ours = next.released(Lsn(1 << 19));
        assert_eq!(fetch(ours), Ok(vec![7; BLOCK]));
        // Loss was accepted: the log was cut, and continued from there.
        assert_eq!(fetch(next.released(Lsn(0))), Err(FetchError::Unreachable));
        let unknown = View {
            epochs: EpochHistory::default(),
            ..next
        };
        assert_eq!(fetch(unknown), Err(FetchError::Unreachable));
        lender.stop(Duration::ZERO);
        keeper.stop();
    }
}
