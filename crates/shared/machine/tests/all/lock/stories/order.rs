//! Who waits for whom, and who dies.

use netram_proto::time::Time;
use netram_shared_machine::LockId;
use netram_shared_machine::LockMode::{Exclusive, Shared};
use netram_shared_machine::lock::{Acquired, CacheEvent, TokenError};

use super::{LATE, LockNet, SOON};

#[test]
fn of_two_that_cross_the_one_out_of_order_dies() {
    // Whoever began first: with wait-die, which the design had, an old one that has 1 would wait for 0, and a
    // young one that has 0 would wait, in order, for 1.
    for first in [0, 1] {
        let mut net = LockNet::new(2);
        let txns = [net.begin(0), net.begin(1)];
        for node in [first, 1 - first] {
            assert!(net.acquire(node, txns[node], node as u32, Exclusive));
        }
        assert_eq!(net.ask(0, txns[0], 1, Exclusive), Ok(Acquired::Waits));
        net.run();
        assert_eq!(net.ask(1, txns[1], 0, Exclusive), Ok(Acquired::Waits));
        net.run();
        assert!(net.has_event(1, CacheEvent::Died(txns[1], LockId(0))));
        net.end(1, txns[1]);
        assert!(net.has_event(0, CacheEvent::Acquired(txns[0])));
    }
}

#[test]
fn of_two_that_cross_in_one_node_the_one_out_of_order_dies_at_once() {
    let mut net = LockNet::new(1);
    let (up, out) = (net.holder(0, 0, Exclusive), net.holder(0, 1, Exclusive));
    assert_eq!(net.ask(0, up, 1, Exclusive), Ok(Acquired::Waits));
    assert_eq!(net.ask(0, out, 0, Exclusive), Err(TokenError::Died(LockId(0))));
    net.end(0, out);
    assert!(net.has_event(0, CacheEvent::Acquired(up)));
}

#[test]
fn out_of_order_a_token_that_nobody_uses_comes_from_another_node() {
    let mut net = LockNet::new(2);
    let before = net.holder(0, 0, Exclusive);
    net.end(0, before);
    let out = net.holder(1, 1, Exclusive);
    assert!(net.acquire(1, out, 0, Exclusive));
}

#[test]
fn of_two_readers_that_want_to_write_one_dies_and_the_other_writes() {
    let mut net = LockNet::new(2);
    let (one, two) = (net.holder(0, 0, Shared), net.holder(1, 0, Shared));
    assert_eq!(net.ask(0, one, 0, Exclusive), Ok(Acquired::Waits));
    assert_eq!(net.ask(1, two, 0, Exclusive), Ok(Acquired::Waits));
    net.run();
    assert!(net.has_event(1, CacheEvent::Died(two, LockId(0))));
    net.end(1, two);
    assert!(net.has_event(0, CacheEvent::Acquired(one)));
}

#[test]
fn a_reader_that_wants_to_write_goes_before_a_writer_that_waits_for_it() {
    let mut net = LockNet::new(2);
    let reader = net.holder(0, 0, Shared);
    let writer = net.begin(1);
    assert!(!net.acquire(1, writer, 0, Exclusive));
    assert!(net.acquire(0, reader, 0, Exclusive));
    let made = net.commit(0, reader);
    net.send(0, &made);
    assert!(net.has_event(1, CacheEvent::Acquired(writer)));
}

#[test]
fn what_cannot_be_undone_is_refused_out_of_order_and_never_dies() {
    let mut net = LockNet::new(2);
    let other = net.holder(0, 0, Exclusive);
    let txn = net.nodes[1].cache.begin(false);
    assert!(net.acquire(1, txn, 1, Shared));
    let out = Err(TokenError::OutOfOrder(LockId(0)));
    assert_eq!(net.ask(1, txn, 0, Exclusive), out);
    let now = net.now;
    let all = net.nodes[1]
        .cache
        .acquire_all(now, txn, &mut [(LockId(2), Shared), (LockId(0), Shared)], LATE);
    assert_eq!(all, out);
    assert_eq!(
        net.ask(1, txn, 1, Exclusive),
        Err(TokenError::OutOfOrder(LockId(1)))
    );
    // It has what it had, and goes on with that, or begins again with all.
    assert!(net.acquire(1, txn, 2, Exclusive));
    net.end(1, txn);
    let again = net.nodes[1].cache.begin(false);
    let mut all = [(LockId(2), Shared), (LockId(0), Shared)];
    assert_eq!(
        net.nodes[1].cache.acquire_all(now, again, &mut all, LATE),
        Ok(Acquired::Waits)
    );
    net.run();
    net.end(0, other);
    assert!(net.has_event(1, CacheEvent::Acquired(again)));
}

#[test]
fn readers_share_and_a_writer_does_not_wait_for_those_that_came_later() {
    let mut net = LockNet::new(4);
    let (one, two) = (net.holder(0, 0, Shared), net.holder(1, 0, Shared));
    let writer = net.begin(2);
    assert!(!net.acquire(2, writer, 0, Exclusive));
    // At a node that has the token, and at one that has not.
    let (near, far) = (net.begin(0), net.begin(3));
    assert!(!net.acquire(0, near, 0, Shared) && !net.acquire(3, far, 0, Shared));
    net.end(0, one);
    net.end(1, two);
    assert!(net.has_event(2, CacheEvent::Acquired(writer)));
    net.end(2, writer);
    // The two that waited behind it go together, and its node keeps the right to read.
    assert!(net.has_event(0, CacheEvent::Acquired(near)) && net.has_event(3, CacheEvent::Acquired(far)));
    assert_eq!(net.holders(0).len(), 3);
}

#[test]
fn a_wait_ends_at_its_deadline_and_those_behind_it_go_on() {
    let mut net = LockNet::new(2);
    let writer = net.holder(0, 0, Shared);
    let (waits, behind) = (net.begin(1), net.begin(1));
    let cache = &mut net.nodes[1].cache;
    assert_eq!(
        cache.acquire(Time(0), waits, LockId(0), Exclusive, SOON),
        Ok(Acquired::Waits)
    );
    assert_eq!(
        cache.acquire(Time(0), behind, LockId(0), Shared, LATE),
        Ok(Acquired::Waits)
    );
    net.run();
    assert_eq!(net.nodes[1].cache.deadline(), Some(SOON));
    net.nodes[1].cache.on_tick(Time(SOON.0 - 1));
    assert!(!net.has_event(1, CacheEvent::TimedOut(waits, LockId(0))));
    net.nodes[1].cache.on_tick(SOON);
    net.run();
    assert!(net.has_event(1, CacheEvent::TimedOut(waits, LockId(0))));
    net.end(0, writer);
    net.end(1, waits);
    assert!(net.has_event(1, CacheEvent::Acquired(behind)));
}

#[test]
fn in_its_node_too_a_writer_does_not_wait_for_readers_that_came_later() {
    let mut net = LockNet::new(1);
    let reader = net.holder(0, 0, Shared);
    let (writer, later) = (net.begin(0), net.begin(0));
    assert!(!net.acquire(0, writer, 0, Exclusive));
    assert!(!net.acquire(0, later, 0, Shared));
    net.end(0, reader);
    assert!(net.has_event(0, CacheEvent::Acquired(writer)) && !net.has_event(0, CacheEvent::Acquired(later)));
    net.end(0, writer);
    assert!(net.has_event(0, CacheEvent::Acquired(later)));
}

#[test]
fn an_answer_to_an_older_request_kills_nobody() {
    let mut net = LockNet::new(2);
    let other = net.holder(1, 0, Shared);
    let before = net.holder(0, 0, Shared);
    net.end(0, before);
    let out = net.holder(0, 1, Shared);
    assert_eq!(net.ask(0, out, 0, Exclusive), Ok(Acquired::Waits));
    net.up(0);
    net.down(1);
    net.up(1);
    // `Died` is on its way when that one gives up, and another one asks for the same.
    net.nodes[0].cache.end(Time(0), out, None);
    let reader = net.begin(0);
    assert_eq!(net.ask(0, reader, 0, Shared), Ok(Acquired::Granted));
    assert_eq!(net.ask(0, reader, 0, Exclusive), Ok(Acquired::Waits));
    net.run();
    net.end(1, other);
    assert!(net.has_event(0, CacheEvent::Acquired(reader)));
}

/// It waited for a transaction, and so for ever: the token had been recalled for one that was gone, and was
/// not recalled again.
#[test]
fn out_of_order_one_dies_though_the_token_was_recalled_before() {
    let mut net = LockNet::new(3);
    let user = net.holder(0, 0, Exclusive);
    let gone = net.begin(1);
    assert!(!net.acquire(1, gone, 0, Exclusive));
    net.kill(1);
    let out = net.holder(2, 1, Shared);
    assert!(!net.acquire(2, out, 0, Exclusive));
    assert!(net.has_event(2, CacheEvent::Died(out, LockId(0))));
    net.end(0, user);
}

/// The same: a recall of the whole token, for one that was gone, made the reader's node wait for the reader.
#[test]
fn out_of_order_a_reader_shares_though_the_whole_token_was_recalled_before() {
    let mut net = LockNet::new(3);
    let before = net.holder(0, 0, Exclusive);
    net.end(0, before);
    let _reader = net.holder(0, 0, Shared);
    let gone = net.begin(1);
    assert!(!net.acquire(1, gone, 0, Exclusive));
    net.kill(1);
    let out = net.holder(2, 1, Shared);
    assert!(net.acquire(2, out, 0, Shared));
}

/// The same: the token was free for it but for the lease, and was recalled before that came.
#[test]
fn out_of_order_one_that_waits_for_the_lease_dies_when_the_token_is_recalled_from_a_reader() {
    let mut net = LockNet::new(2);
    let _reader = net.holder(0, 0, Shared);
    let out = net.holder(0, 1, Shared);
    net.now = LATE;
    assert_eq!(net.ask(0, out, 0, Shared), Ok(Acquired::Waits));
    net.nodes[1].cache.on_renewed(LATE, Time(2 * LATE.0));
    let writer = net.begin(1);
    assert!(!net.acquire(1, writer, 0, Exclusive));
    net.nodes[0].cache.on_renewed(LATE, Time(2 * LATE.0));
    net.run();
    assert!(net.has_event(0, CacheEvent::Died(out, LockId(0))));
}

/// The same, where it is not a recall but another reader that wants to write.
#[test]
fn out_of_order_one_that_waits_for_the_lease_dies_when_a_reader_wants_to_write() {
    let mut net = LockNet::new(1);
    let reader = net.holder(0, 0, Shared);
    let out = net.holder(0, 1, Shared);
    net.now = LATE;
    assert_eq!(net.ask(0, out, 0, Shared), Ok(Acquired::Waits));
    assert_eq!(net.ask(0, reader, 0, Exclusive), Ok(Acquired::Waits));
    assert!(net.has_event(0, CacheEvent::Died(out, LockId(0))));
}

/// The same: the token was only waiting for tails to be sent when its reader became a writer.
#[test]
fn a_reader_becomes_no_writer_while_its_token_is_about_to_be_shared() {
    let mut net = LockNet::new(2);
    let before = net.holder(0, 0, Exclusive);
    let made = net.commit(0, before);
    let reader = net.holder(0, 0, Shared);
    let out = net.holder(1, 1, Shared);
    assert!(!net.acquire(1, out, 0, Shared));
    assert!(!net.acquire(0, reader, 0, Exclusive));
    net.send(0, &made);
    let shares = net.has_event(1, CacheEvent::Acquired(out));
    let dies = net.has_event(1, CacheEvent::Died(out, LockId(0)));
    assert!(shares || dies);
    net.end(1, out);
    assert!(net.has_event(0, CacheEvent::Acquired(reader)));
}

/// It asked, gave back and asked without end: another node's transactions had the lock recalled.
#[test]
fn a_node_without_a_lease_asks_for_nothing() {
    let mut net = LockNet::new(1);
    net.now = LATE;
    let txn = net.begin(0);
    assert_eq!(net.ask(0, txn, 0, Shared), Ok(Acquired::Waits));
    assert!(net.nodes[0].up.is_empty());
    net.nodes[0].cache.on_renewed(LATE, Time(LATE.0 + 1));
    net.run();
    assert!(net.has_event(0, CacheEvent::Acquired(txn)));
}
