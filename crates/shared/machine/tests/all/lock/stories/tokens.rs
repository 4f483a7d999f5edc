//! Tokens: kept, given back, shared and numbered.

use netram_proto::time::Time;
use netram_shared_machine::LockMode::{Exclusive, Shared};
use netram_shared_machine::lock::{
    Acquired, CacheEvent, LockMisuse, LockOrder, LockRequestId, LockRequester, LockService, ToCache,
    ToService, TokenClaim, UnaskedReply,
};
use netram_shared_machine::{GrantNumber, LockId, LockVersion, RecordNumber};

use super::{LATE, LockNet, id, service};

#[test]
fn a_kept_token_costs_no_message() {
    let mut net = LockNet::new(2);
    let first = net.holder(0, 0, Exclusive);
    let made = net.commit(0, first);
    net.send(0, &made);
    for hold in [Shared, Exclusive] {
        let txn = net.begin(0);
        assert_eq!(net.ask(0, txn, 0, hold), Ok(Acquired::Granted));
        net.commit(0, txn);
        assert!(net.nodes[0].up.is_empty());
    }
}

#[test]
fn holders_that_write_nothing_leave_no_gap() {
    let mut net = LockNet::new(3);
    let writer = net.holder(0, 0, Exclusive);
    let made = net.commit(0, writer);
    net.send(0, &made);
    assert_eq!(made, [(LockId(0), LockVersion(1))]);
    let reader = net.holder(1, 0, Shared);
    net.end(1, reader);
    let undone = net.holder(1, 0, Exclusive);
    net.end(1, undone);
    let writer = net.holder(2, 0, Exclusive);
    assert_eq!(net.commit(2, writer), [(LockId(0), LockVersion(2))]);
}

#[test]
fn a_token_is_given_back_after_all_records_made_under_it() {
    let mut net = LockNet::new(2);
    // It writes under one lock and reads under the other: neither token goes back before the record.
    let txn = net.holder(0, 0, Shared);
    assert!(net.acquire(0, txn, 1, Exclusive));
    let made = net.commit(0, txn);
    let (reads, writes) = (net.begin(1), net.begin(1));
    assert!(!net.acquire(1, writes, 0, Exclusive));
    assert!(!net.acquire(1, reads, 1, Shared));
    net.send(0, &made);
    assert!(net.has_event(1, CacheEvent::Acquired(reads)) && net.has_event(1, CacheEvent::Acquired(writes)));
    let seen: Vec<_> = net.nodes[1]
        .cache
        .held_locks(reads)
        .map(|held| held.version)
        .collect();
    assert_eq!(seen, [LockVersion(1)]);
}

#[test]
fn records_sent_over_a_broken_link_are_sent_again() {
    let mut net = LockNet::new(1);
    let txn = net.holder(0, 0, Exclusive);
    net.commit(0, txn);
    let cache = &mut net.nodes[0].cache;
    cache.on_sent(Time(0), RecordNumber(1));
    cache.on_unlinked();
    let claim = cache.claims().next().expect("it has the token");
    cache.on_linked(Time(0), RecordNumber(0));
    let asker = LockRequester {
        node: id(1),
        ask: LockRequestId(1),
    };
    let (lock, grant) = (claim.lock, claim.grant);
    let recall = ToCache::Recall {
        lock,
        grant,
        keep: None,
        asker,
        waits: true,
    };
    cache.handle(Time(0), recall).expect("it has the token");
    assert_eq!(cache.poll(), None);
    cache.on_sent(Time(0), RecordNumber(1));
    assert!(matches!(
        cache.poll(),
        Some(CacheEvent::Send(ToService::Release { .. }))
    ));
}

#[test]
fn without_a_lease_no_kept_token_is_used() {
    let mut net = LockNet::new(1);
    let before = net.holder(0, 0, Exclusive);
    net.end(0, before);
    net.now = LATE;
    assert!(!net.nodes[0].cache.leased(LATE));
    let txn = net.begin(0);
    assert!(!net.acquire(0, txn, 0, Shared));
    net.nodes[0].cache.on_renewed(LATE, Time(LATE.0 + 1));
    net.run();
    assert!(net.has_event(0, CacheEvent::Acquired(txn)));
}

#[test]
fn a_writer_shares_with_a_reader_and_keeps_a_shared_token() {
    let mut net = LockNet::new(2);
    let writer = net.holder(0, 0, Exclusive);
    let reader = net.begin(1);
    assert!(!net.acquire(1, reader, 0, Shared));
    net.end(0, writer);
    assert!(net.has_event(1, CacheEvent::Acquired(reader)));
    assert_eq!(net.holders(0), [(id(0), Shared), (id(1), Shared)]);
    let again = net.begin(0);
    assert_eq!(net.ask(0, again, 0, Shared), Ok(Acquired::Granted));
}

#[test]
fn acquire_all_requests_all_tokens_at_once_and_takes_them_in_order() {
    let mut net = LockNet::new(2);
    let other = net.holder(1, 1, Exclusive);
    let txn = net.begin(0);
    let mut all = [
        (LockId(2), Shared),
        (LockId(0), Shared),
        (LockId(0), Exclusive),
        (LockId(1), Shared),
    ];
    assert_eq!(
        net.nodes[0].cache.acquire_all(Time(0), txn, &mut all, LATE),
        Ok(Acquired::Waits)
    );
    net.collect();
    let asked = net.nodes[0].up.iter().map(|message| match message {
        ToService::Acquire {
            lock,
            hold,
            order: LockOrder::Up,
            ..
        } => (lock.0, *hold),
        other => panic!("{other:?}"),
    });
    assert!(asked.eq([(0, Exclusive), (1, Shared), (2, Shared)]));
    net.run();
    // The last token is here and unused: any transaction may take it.
    let thief = net.holder(1, 2, Exclusive);
    net.end(1, other);
    net.end(1, thief);
    assert!(net.has_event(0, CacheEvent::Acquired(txn)));
    assert_eq!(net.nodes[0].cache.held_locks(txn).count(), 3);
}

#[test]
fn a_grant_and_an_old_release_may_cross() {
    let mut net = LockNet::new(2);
    let reader = net.holder(0, 0, Shared);
    let other = net.begin(1);
    assert_eq!(net.ask(1, other, 0, Exclusive), Ok(Acquired::Waits));
    net.up(1);
    net.down(0);
    // The other transaction waits for the reader. The reader upgrades, is granted that, and gives up before
    // the grant arrives.
    assert_eq!(net.ask(0, reader, 0, Exclusive), Ok(Acquired::Waits));
    net.up(0);
    net.nodes[0].cache.end(Time(0), reader, None);
    net.run();
    assert!(net.has_event(1, CacheEvent::Acquired(other)));
    assert_eq!(net.holders(0), [(id(1), Exclusive)]);
}

#[test]
fn a_recall_of_an_older_grant_is_void() {
    let mut net = LockNet::new(2);
    let old = net.holder(0, 0, Shared);
    let old_grant = net.nodes[0]
        .cache
        .claims()
        .next()
        .expect("it has the token")
        .grant;
    assert!(net.acquire(0, old, 0, Exclusive));
    net.end(0, old);
    let (lock, grant) = (LockId(0), old_grant);
    let asker = LockRequester {
        node: id(1),
        ask: LockRequestId(1),
    };
    let recall = ToCache::Recall {
        lock,
        grant,
        keep: None,
        asker,
        waits: true,
    };
    net.nodes[0]
        .cache
        .handle(Time(0), recall)
        .expect("it may come late");
    net.collect();
    assert!(net.nodes[0].up.is_empty());
    assert_eq!(net.holders(0), [(id(0), Exclusive)]);
}

#[test]
fn losing_the_tokens_ends_all_transactions_at_once() {
    let mut net = LockNet::new(2);
    let other = net.holder(1, 1, Exclusive);
    let (open, waits) = (net.holder(0, 0, Exclusive), net.begin(0));
    assert!(!net.acquire(0, waits, 1, Exclusive));
    net.kill(0);
    net.nodes[0].cache.lose();
    net.collect();
    assert!(net.has_event(0, CacheEvent::Lost(waits)));
    assert_eq!(net.nodes[0].cache.held_locks(open).count(), 0);
    assert!(net.ask(0, open, 2, Shared).is_err() && net.ask(0, waits, 2, Shared).is_err());
    for txn in [open, waits] {
        net.nodes[0].cache.end(Time(0), txn, None);
    }
    assert!(net.nodes[0].cache.idle() && net.nodes[0].cache.claims().next().is_none());
    net.service.reclaim(id(0));
    net.end(1, other);
    assert!(net.holders(0).is_empty());
}

#[test]
fn a_lock_violation_is_refused_and_changes_nothing() {
    let mut net = LockNet::new(2);
    let _writer = net.holder(0, 0, Exclusive);
    let before = net.service.clone();
    let lock = LockId(0);
    let release = |lock, grant, version, keep| ToService::Release {
        lock,
        grant: GrantNumber(grant),
        version: LockVersion(version),
        keep,
    };
    let acquire = |lock, order| ToService::Acquire {
        lock,
        hold: Exclusive,
        order,
        ask: LockRequestId(1),
    };
    let refused = [
        (
            0,
            release(LockId(9), 1, 0, None),
            LockMisuse::NoSuchLock(LockId(9)),
        ),
        (1, release(lock, 1, 0, None), LockMisuse::NotHeld(lock)),
        (
            0,
            release(lock, 2, 0, None),
            LockMisuse::GrantAhead {
                lock,
                grant: GrantNumber(2),
            },
        ),
        (0, release(lock, 1, 0, Some(Exclusive)), LockMisuse::NotHeld(lock)),
        (1, acquire(lock, LockOrder::Upgrade), LockMisuse::NotHeld(lock)),
        (
            1,
            acquire(LockId(7), LockOrder::Up),
            LockMisuse::NoSuchLock(LockId(7)),
        ),
    ];
    for (node, message, misuse) in refused {
        assert_eq!(net.service.handle(id(node), message), Err(misuse), "{message:?}");
        assert_eq!(net.service, before);
    }
    let (stands, given) = (LockVersion(0), LockVersion(2));
    let gap = LockMisuse::Version { lock, stands, given };
    assert_eq!(net.service.on_written(lock, given), Err(gap));
    assert_eq!(net.service, before);
    net.service
        .on_written(lock, LockVersion(1))
        .expect("it follows on");
    let (stands, given) = (LockVersion(1), LockVersion(0));
    let back = LockMisuse::Version { lock, stands, given };
    assert_eq!(net.service.handle(id(0), release(lock, 1, 0, None)), Err(back));
}

#[test]
fn a_node_refuses_a_token_that_it_did_not_request() {
    let mut net = LockNet::new(1);
    let lock = LockId(0);
    let grant = ToCache::Grant {
        lock,
        grant: GrantNumber(7),
        hold: Shared,
        version: LockVersion(0),
    };
    assert_eq!(net.nodes[0].cache.handle(Time(0), grant), Err(UnaskedReply(lock)));
    let txn = net.holder(0, 0, Shared);
    assert_eq!(net.nodes[0].cache.handle(Time(0), grant), Err(UnaskedReply(lock)));
    net.end(0, txn);
}

#[test]
fn every_grant_number_is_reserved_before_it_is_used() {
    let mut net = LockNet::new(1);
    net.service = LockService::new(GrantNumber(40), [(LockId(0), LockVersion(0))]);
    let txn = net.begin(0);
    assert!(!net.acquire(0, txn, 0, Shared));
    let ceiling = net.service.ceiling_wanted().expect("none is left");
    assert!(ceiling > GrantNumber(40));
    net.service.ceiling_stored(ceiling);
    net.run();
    assert!(net.has_event(0, CacheEvent::Acquired(txn)));
    let claim = net.nodes[0].cache.claims().next().expect("it has the token");
    assert_eq!(claim.grant, GrantNumber(41));
    // The next start uses none of the numbers that this one may have used.
    let mut next = service(ceiling, [0; 3]);
    next.expect(id(0));
    next.resume(id(0));
    assert_eq!(next.claim(id(0), claim), Ok(vec![]));
    let ahead = TokenClaim {
        grant: ceiling.next(),
        ..claim
    };
    assert!(matches!(
        next.claim(id(0), ahead),
        Err(LockMisuse::GrantAhead { .. })
    ));
    assert_eq!(
        net.nodes[0].cache.on_written(txn, LockId(0)),
        None,
        "it only reads"
    );
    net.nodes[0].cache.end(Time(0), txn, Some(RecordNumber(1)));
}
