//! Waiting and dying by the order of locks.

use netram_proto::time::Time;
use netram_shared_machine::LockId;
use netram_shared_machine::LockMode::{Exclusive, Shared};
use netram_shared_machine::lock::{Acquired, CacheEvent, TokenError};

use super::{LATE, LockNet, SOON};

#[test]
fn the_out_of_order_one_of_two_crossing_transactions_dies() {
    // Independent of which one began first. With wait-die, an old transaction with lock 1 would wait for 0,
    // and a young one with lock 0 would wait, in order, for 1.
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
fn the_out_of_order_one_of_two_crossing_transactions_in_one_node_dies_at_once() {
    let mut net = LockNet::new(1);
    let (up, out) = (net.holder(0, 0, Exclusive), net.holder(0, 1, Exclusive));
    assert_eq!(net.ask(0, up, 1, Exclusive), Ok(Acquired::Waits));
    assert_eq!(net.ask(0, out, 0, Exclusive), Err(TokenError::Died(LockId(0))));
    net.end(0, out);
    assert!(net.has_event(0, CacheEvent::Acquired(up)));
}

#[test]
fn an_unused_token_comes_from_another_node_out_of_order() {
    let mut net = LockNet::new(2);
    let before = net.holder(0, 0, Exclusive);
    net.end(0, before);
    let out = net.holder(1, 1, Exclusive);
    assert!(net.acquire(1, out, 0, Exclusive));
}

#[test]
fn one_of_two_upgrading_readers_dies_and_the_other_writes() {
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
fn an_upgrading_reader_goes_before_a_writer_that_waits_for_it() {
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
fn a_transaction_without_undo_is_refused_out_of_order_and_never_dies() {
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
    // It keeps its lock, and goes on with that, or starts again with all locks.
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
fn readers_share_and_a_writer_does_not_wait_for_later_readers() {
    let mut net = LockNet::new(4);
    let (one, two) = (net.holder(0, 0, Shared), net.holder(1, 0, Shared));
    let writer = net.begin(2);
    assert!(!net.acquire(2, writer, 0, Exclusive));
    // At a node with the token, and at one without.
    let (near, far) = (net.begin(0), net.begin(3));
    assert!(!net.acquire(0, near, 0, Shared) && !net.acquire(3, far, 0, Shared));
    net.end(0, one);
    net.end(1, two);
    assert!(net.has_event(2, CacheEvent::Acquired(writer)));
    net.end(2, writer);
    // The two waiting readers get the lock together, and the writer's node keeps a shared token.
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
fn a_writer_does_not_wait_for_later_readers_of_its_own_node() {
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
fn an_answer_to_an_older_request_ends_no_transaction() {
    let mut net = LockNet::new(2);
    let other = net.holder(1, 0, Shared);
    let before = net.holder(0, 0, Shared);
    net.end(0, before);
    let out = net.holder(0, 1, Shared);
    assert_eq!(net.ask(0, out, 0, Exclusive), Ok(Acquired::Waits));
    net.up(0);
    net.down(1);
    net.up(1);
    // `Died` is on its way when that transaction gives up, and another one requests the same lock.
    net.nodes[0].cache.end(Time(0), out, None);
    let reader = net.begin(0);
    assert_eq!(net.ask(0, reader, 0, Shared), Ok(Acquired::Granted));
    assert_eq!(net.ask(0, reader, 0, Exclusive), Ok(Acquired::Waits));
    net.run();
    net.end(1, other);
    assert!(net.has_event(0, CacheEvent::Acquired(reader)));
}

/// The request waited for a transaction, and so for ever: the token had been recalled for a request that was
/// gone, and was not recalled again.
#[test]
fn an_out_of_order_request_dies_even_if_the_token_was_recalled_before() {
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

/// The same for a recall of the whole token, for a request that was gone: the reader's node waited for the
/// reader.
#[test]
fn an_out_of_order_reader_shares_a_token_that_was_recalled_before() {
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

/// The same for a token that was free except for the lease, and was recalled before the lease came.
#[test]
fn an_out_of_order_request_waiting_for_the_lease_dies_for_a_recall() {
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

/// The same for a reader that upgrades instead of a recall.
#[test]
fn an_out_of_order_request_waiting_for_the_lease_dies_for_an_upgrade() {
    let mut net = LockNet::new(1);
    let reader = net.holder(0, 0, Shared);
    let out = net.holder(0, 1, Shared);
    net.now = LATE;
    assert_eq!(net.ask(0, out, 0, Shared), Ok(Acquired::Waits));
    assert_eq!(net.ask(0, reader, 0, Exclusive), Ok(Acquired::Waits));
    assert!(net.has_event(0, CacheEvent::Died(out, LockId(0))));
}

/// The same for a token that only waited for records to be sent when its reader upgraded.
#[test]
fn a_reader_cannot_upgrade_while_its_token_is_about_to_be_shared() {
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

/// The node requested and gave back the token without end, because another node's transactions had it
/// recalled.
#[test]
fn a_node_without_a_lease_requests_no_token() {
    let mut net = LockNet::new(1);
    net.now = LATE;
    let txn = net.begin(0);
    assert_eq!(net.ask(0, txn, 0, Shared), Ok(Acquired::Waits));
    assert!(net.nodes[0].up.is_empty());
    net.nodes[0].cache.on_renewed(LATE, Time(LATE.0 + 1));
    net.run();
    assert!(net.has_event(0, CacheEvent::Acquired(txn)));
}
