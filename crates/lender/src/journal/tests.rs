use super::*;
use crate::config::LenderConfig;
use crate::store::{StoreOrigin, WindowStore};
use netram_clients::ClientRegistry;
use netram_proto::limit::{RECORD_HEADER_BYTES, WINDOW_BYTES_MIN};
use netram_proto::port::RecordKind;
use netram_proto::wire::{ChainPoint, Flag, RecordHeader, RefusalReason, finish_record};
use netram_transport::Waker;
use tempfile::TempDir;

const ID: JournalId = JournalId(7);
const RECORD: u64 = 1024;

fn one_client() -> Arc<ClientAccount> {
    ClientRegistry::of_one().account(None)
}

fn frame(kind: FrameKind, at: ChainPoint, stable: Lsn, body: &[u8]) -> Frame<'_> {
    let header = FrameHeader {
        epoch: Epoch(1),
        sender: 5,
        lsn: at.lsn,
        mark: at.chain,
        stable,
        ..FrameHeader::new(kind)
    };
    Frame { header, body }
}

fn record(at: &mut ChainPoint) -> Vec<u8> {
    let payload = RECORD as usize - RECORD_HEADER_BYTES;
    let header = RecordHeader::new(*at, Epoch(1), Lsn(0), RecordKind(16), false, payload);
    let mut bytes = vec![0; header.length];
    header.write(&mut bytes);
    let chain = finish_record(&mut bytes, ID.into());
    *at = ChainPoint {
        lsn: header.next(),
        chain,
    };
    bytes
}

/// A lender that remembers up to `journals_max` journals, and the directory of its store.
fn remembering(journals_max: u32) -> (TempDir, LenderConfig) {
    let dir = tempfile::Builder::new().tempdir_in("/dev/shm").unwrap();
    let config = LenderConfig {
        memory: 64 * 1024,
        chunk_bytes: 4096,
        journals_max,
        store: Some(dir.path().join("store")),
        ..LenderConfig::default()
    };
    (dir, config)
}

fn open(config: &LenderConfig) -> (Arc<DaemonState>, Vec<RestoredMember>) {
    let (store, kept) = WindowStore::open(&config.store_config()).unwrap();
    let wakers = (0..3).map(|_| Waker::new().unwrap()).collect();
    (
        Arc::new(DaemonState::new(
            config.clone(),
            store,
            None,
            (Vec::new(), Vec::new()),
            wakers,
        )),
        kept,
    )
}

/// The append declares one record stable and overwrites it in a full ring. If the process is killed
/// before its answer, an outdated state would count the overwritten record as held. The whole window with
/// fifteen acknowledged records would then be lost.
#[test]
fn a_kill_between_overwriting_and_saving_costs_only_what_was_declared_stable() {
    let (_dir, config) = remembering(2);
    let (shared, kept) = open(&config);
    let mut journals = ShardJournals::new(Arc::clone(&shared), kept);
    let place = journals.bind(ID, &one_client()).unwrap();
    let journal = journals.at(place);
    let mut at = ChainPoint::default();
    journal.handle(&frame(FrameKind::Fence, at, Lsn(0), &[]));
    journal.handle(&frame(
        FrameKind::Join,
        at,
        Lsn(1),
        &WINDOW_BYTES_MIN.to_le_bytes(),
    ));
    for _ in 0..WINDOW_BYTES_MIN / RECORD {
        let from = at;
        journal.handle(&frame(FrameKind::Append, from, Lsn(0), &record(&mut at)));
    }
    journal.settle();
    let from = at;
    let reply = journal.handle(&frame(FrameKind::Append, from, Lsn(RECORD), &record(&mut at)));
    assert_eq!(
        (reply.header().kind, reply.header().lsn),
        (FrameKind::Ack, at.lsn)
    );
    // Killed here: nothing is settled, and no drop saves anything.
    drop((journals, shared));

    let (shared, mut kept) = open(&config);
    assert_eq!(shared.store.origin(), StoreOrigin::Restored);
    let kept = kept.pop().unwrap();
    assert!(!kept.window_lost);
    assert_eq!(
        (kept.member.state().trim, kept.member.state().held),
        (Lsn(RECORD), from.lsn)
    );
}

/// A writer fences a journal, joins a window and releases it; `flags` may be those of a server that has
/// buried its node.
fn visit(journals: &mut ShardJournals, id: JournalId, flags: u8) -> Result<(), BindRefusal> {
    let place = journals.bind(id, &one_client())?;
    let journal = journals.at(place);
    journal.handle(&frame(FrameKind::Fence, ChainPoint::default(), Lsn(0), &[]));
    let window = WINDOW_BYTES_MIN.to_le_bytes();
    journal.handle(&frame(FrameKind::Join, ChainPoint::default(), Lsn(1), &window));
    let mut leave = frame(
        FrameKind::Leave,
        ChainPoint {
            lsn: Lsn(1),
            chain: 1,
        },
        Lsn(0),
        &[],
    );
    leave.header.flags = flags;
    assert_eq!(journal.handle(&leave).header().kind, FrameKind::LeaveAck);
    journal.settle();
    journals.unbind(place);
    Ok(())
}

/// A writer with an epoch below the last fence asks to fence.
fn old_writer_fences(journals: &mut ShardJournals, id: JournalId) -> MemberReply {
    let place = journals.bind(id, &one_client()).unwrap();
    let mut fence = frame(FrameKind::Fence, ChainPoint::default(), Lsn(0), &[]);
    fence.header.sender += 1;
    let reply = journals.at(place).handle(&fence);
    journals.unbind(place);
    reply
}

#[test]
fn journals_that_are_over_make_room_for_others_and_live_fences_do_not() {
    let (_dir, config) = remembering(4);
    let (shared, kept) = open(&config);
    let mut journals = ShardJournals::new(Arc::clone(&shared), kept);
    visit(&mut journals, ID, 0).unwrap();
    assert_eq!((shared.store.journals(), shared.store.journals_max()), (1, 4));
    for id in 100..200 {
        visit(&mut journals, JournalId(id), Flag::ENDED).unwrap();
    }
    assert_eq!(shared.store.free(), shared.store.memory());
    // Three slots are left for journals that are over, and the newest three are remembered.
    let refused = |reply: MemberReply| {
        let header = *reply.header();
        (header.kind, header.flags) == (FrameKind::Refuse, RefusalReason::Fenced as u8)
    };
    for id in [ID, JournalId(197), JournalId(198), JournalId(199)] {
        assert!(refused(old_writer_fences(&mut journals, id)), "{id}");
    }
    drop((journals, shared));
    // The next process remembers them, too.
    let (shared, kept) = open(&config);
    assert_eq!((shared.store.origin(), kept.len()), (StoreOrigin::Restored, 1));
    let mut journals = ShardJournals::new(Arc::clone(&shared), kept);
    for id in [ID, JournalId(197), JournalId(198), JournalId(199)] {
        assert!(refused(old_writer_fences(&mut journals, id)), "{id}");
    }
    assert!(!refused(old_writer_fences(&mut journals, JournalId(150))));
    // Journal 1 is not over: its fence must hold, and so must that of each new one. Journal 150, which
    // was only fenced, makes room for the last of them.
    for id in [1, 2, 3] {
        visit(&mut journals, JournalId(id), 0).unwrap();
    }
    assert!(visit(&mut journals, JournalId(4), 0).is_err());
    assert!(refused(old_writer_fences(&mut journals, ID)));
}

/// Regression: closed journals were remembered for ever, so a lender served 1,024 logs in its life (case
/// 4).
#[test]
fn journals_that_were_closed_make_room_behind_those_that_are_over() {
    let (_dir, config) = remembering(3);
    let (shared, kept) = open(&config);
    let mut journals = ShardJournals::new(Arc::clone(&shared), kept);
    let refused = |reply: MemberReply| reply.header().kind == FrameKind::Refuse;
    visit(&mut journals, ID, 0).unwrap();
    visit(&mut journals, JournalId(8), Flag::CLOSED_CLEAN).unwrap();
    for id in 100..200 {
        visit(&mut journals, JournalId(id), Flag::ENDED).unwrap();
    }
    assert!(refused(old_writer_fences(&mut journals, JournalId(8))), "known");
    for id in 200..300 {
        visit(&mut journals, JournalId(id), Flag::CLOSED_CLEAN).unwrap();
    }
    assert!(!refused(old_writer_fences(&mut journals, JournalId(297))), "gone");
    assert!(
        refused(old_writer_fences(&mut journals, ID)),
        "its fence must hold"
    );
    assert!(refused(old_writer_fences(&mut journals, JournalId(299))));
}

/// A copy of a journal's directory is deleted while the original is served; the original must lose
/// nothing.
#[test]
fn a_journal_is_not_over_while_another_session_is_bound_to_it() {
    let (_dir, config) = remembering(2);
    let (shared, kept) = open(&config);
    let mut journals = ShardJournals::new(shared, kept);
    let writer = journals.bind(ID, &one_client()).unwrap();
    let journal = journals.at(writer);
    journal.handle(&frame(FrameKind::Fence, ChainPoint::default(), Lsn(0), &[]));
    let window = WINDOW_BYTES_MIN.to_le_bytes();
    journal.handle(&frame(FrameKind::Join, ChainPoint::default(), Lsn(1), &window));
    let (lsn, chain) = (Lsn(1), 1);
    let mut over = frame(FrameKind::Leave, ChainPoint { lsn, chain }, Lsn(0), &[]);
    over.header.flags = Flag::ENDED | Flag::UNLESS_IN_USE;
    let copy = journals.bind(ID, &one_client()).unwrap();
    let answer = |reply: MemberReply| (reply.header().kind, reply.header().flags);
    let reply = journals.at(copy).handle(&over);
    assert_eq!(answer(reply), (FrameKind::Refuse, RefusalReason::InUse as u8));
    assert!(journals.at(copy).member.state().joined);
    journals.unbind(writer);
    assert_eq!(answer(journals.at(copy).handle(&over)).0, FrameKind::LeaveAck);
    assert!(!journals.at(copy).member.state().joined);
}

#[test]
fn a_bound_session_keeps_a_journal_that_is_over() {
    let (_dir, config) = remembering(1);
    let (shared, kept) = open(&config);
    let mut journals = ShardJournals::new(shared, kept);
    let sleeper = journals.bind(ID, &one_client()).unwrap();
    visit(&mut journals, ID, Flag::ENDED).unwrap();
    assert!(visit(&mut journals, JournalId(8), 0).is_err());
    journals.unbind(sleeper);
    visit(&mut journals, JournalId(8), 0).unwrap();
}
