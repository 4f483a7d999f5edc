//! Dying nodes and servers, and broken links.

use netram_shared_machine::LockMode::{Exclusive, Shared};
use netram_shared_machine::lock::{
    CacheEvent, LockMisuse, LockOrder, LockRequestId, LockService, ToCache, ToService, TokenClaim,
};
use netram_shared_machine::{GrantNumber, LockId, LockVersion};

use super::{LockNet, id, service};

#[test]
fn a_dead_writers_lock_is_free_once_its_journal_is_read() {
    let mut net = LockNet::new(2);
    let _writer = net.holder(0, 0, Exclusive);
    net.kill(0);
    let waits = net.begin(1);
    assert!(!net.acquire(1, waits, 0, Exclusive));
    net.service.reclaim(id(0));
    net.run();
    assert!(net.has_event(1, CacheEvent::Acquired(waits)));
}

#[test]
fn a_dead_nodes_token_is_granted_at_its_journals_last_version() {
    let mut net = LockNet::new(2);
    let writer = net.holder(0, 0, Exclusive);
    let made = net.commit(0, writer);
    // The record is at the node's members; the server does not have it.
    net.kill(0);
    let waits = net.begin(1);
    assert!(!net.acquire(1, waits, 0, Shared));
    for (lock, version) in made {
        net.service.on_written(lock, version).expect("it follows on");
    }
    net.service.reclaim(id(0));
    net.run();
    assert!(net.has_event(1, CacheEvent::Acquired(waits)));
    assert_eq!(
        net.nodes[1]
            .cache
            .held_locks(waits)
            .map(|held| held.version)
            .collect::<Vec<_>>(),
        [LockVersion(1)]
    );
}

#[test]
fn a_node_that_dies_in_the_queue_blocks_no_later_request() {
    let mut net = LockNet::new(3);
    let holder = net.holder(0, 0, Exclusive);
    let (dies, behind) = (net.begin(1), net.begin(2));
    assert!(!net.acquire(1, dies, 0, Exclusive) && !net.acquire(2, behind, 0, Exclusive));
    net.kill(1);
    net.end(0, holder);
    assert!(net.has_event(2, CacheEvent::Acquired(behind)));
}

#[test]
fn a_restarted_server_learns_all_holders_before_it_grants() {
    let mut net = LockNet::new(3);
    let writer = net.holder(0, 0, Exclusive);
    let made = net.commit(0, writer);
    net.send(0, &made);
    let reader = net.holder(0, 1, Shared);
    // The server's disk did not have its merged records.
    net.service = service(GrantNumber(1 << 21), [0; 3]);
    for node in 0..3 {
        net.cut(node);
        net.service.expect(id(node));
    }
    net.link(1);
    let waits = [net.begin(1), net.begin(1), net.begin(1)];
    for (lock, txn) in waits.into_iter().enumerate() {
        assert!(
            !net.acquire(1, txn, lock as u32, Exclusive),
            "node 0 may hold it, or node 2"
        );
    }
    net.service.reclaim(id(2));
    net.run();
    assert!(!net.has_event(1, CacheEvent::Acquired(waits[2])));
    // Node 0 claims its tokens. But its writes under lock 0 must be merged again before the lock is granted.
    net.service.resume(id(0));
    let claims: Vec<TokenClaim> = net.nodes[0].cache.claims().collect();
    assert_eq!(claims.len(), 2);
    for claim in claims {
        net.service.claim(id(0), claim).expect("it is so");
    }
    net.service.on_claims_done(id(0));
    net.nodes[0]
        .cache
        .on_linked(net.now, netram_shared_machine::RecordNumber(1));
    net.run();
    assert!(
        net.has_event(1, CacheEvent::Acquired(waits[2])),
        "nobody claimed it"
    );
    assert!(
        !net.has_event(1, CacheEvent::Acquired(waits[1])),
        "a transaction reads"
    );
    assert!(
        !net.has_event(1, CacheEvent::Acquired(waits[0])),
        "version 1 has not come"
    );
    net.service
        .on_written(LockId(0), LockVersion(1))
        .expect("it follows on");
    net.run();
    assert!(net.has_event(1, CacheEvent::Acquired(waits[0])));
    net.end(0, reader);
    assert!(net.has_event(1, CacheEvent::Acquired(waits[1])));
}

#[test]
fn an_exclusively_claimed_lock_does_not_wait_for_absent_nodes() {
    let mut net = LockNet::new(3);
    let writer = net.holder(0, 0, Exclusive);
    net.service = service(GrantNumber(1 << 21), [0; 3]);
    for node in 0..3 {
        net.cut(node);
        net.service.expect(id(node));
    }
    net.link(0);
    net.link(1);
    let (same, other) = (net.begin(1), net.begin(1));
    assert!(!net.acquire(1, same, 0, Exclusive) && !net.acquire(1, other, 1, Exclusive));
    net.end(0, writer);
    assert!(net.has_event(1, CacheEvent::Acquired(same)));
    assert!(
        !net.has_event(1, CacheEvent::Acquired(other)),
        "node 2 may hold it"
    );
    net.link(2);
    assert!(net.has_event(1, CacheEvent::Acquired(other)));
}

#[test]
fn claims_settle_messages_lost_with_a_link() {
    let mut net = LockNet::new(2);
    // Neither a grant nor a release arrives.
    let (lost, kept) = (net.begin(0), net.holder(0, 1, Exclusive));
    let waits = net.begin(1);
    assert!(!net.acquire(1, waits, 1, Exclusive));
    net.ask(0, lost, 0, Exclusive).expect("it waits");
    net.up(0);
    assert_eq!(net.holders(0), [(id(0), Exclusive)]);
    net.nodes[0].cache.end(net.now, kept, None);
    net.cut(0);
    net.nodes[0].cache.cancel(net.now, lost);
    net.link(0);
    assert!(net.holders(0).is_empty());
    assert!(net.has_event(1, CacheEvent::Acquired(waits)));
    // A transaction that still waits has asked again.
    let again = net.begin(0);
    assert!(net.acquire(0, again, 0, Exclusive));
}

#[test]
fn a_node_that_resumes_is_granted_nothing_before_it_is_known() {
    let mut net = LockNet::new(1);
    let writer = net.holder(0, 0, Exclusive);
    let made = net.commit(0, writer);
    // The node had given the token back. Neither that nor its record has arrived, and it asks again at once.
    net.cut(0);
    net.service.resume(id(0));
    let (lock, ask) = (LockId(0), LockRequestId(9));
    let acquire = ToService::Acquire {
        lock,
        hold: Exclusive,
        order: LockOrder::Up,
        ask,
    };
    net.service.handle(id(0), acquire).expect("it may ask");
    assert_eq!(net.service.poll(), None);
    net.service.on_written(lock, made[0].1).expect("it follows on");
    net.service.on_claims_done(id(0));
    let granted = net.service.poll();
    assert!(
        matches!(
            granted,
            Some((
                _,
                ToCache::Grant {
                    version: LockVersion(1),
                    ..
                }
            ))
        ),
        "{granted:?}"
    );
}

#[test]
fn a_claimed_version_is_merged_before_its_lock_is_granted() {
    let mut service = service(GrantNumber(1 << 21), [0; 3]);
    service.expect(id(0));
    service.resume(id(0));
    let claim = TokenClaim {
        lock: LockId(0),
        grant: GrantNumber(5),
        hold: Shared,
        version: LockVersion(1),
    };
    assert_eq!(service.claim(id(0), claim), Ok(vec![]));
    service.on_claims_done(id(0));
    let (lock, ask) = (LockId(0), LockRequestId(1));
    let acquire = ToService::Acquire {
        lock,
        hold: Shared,
        order: LockOrder::Up,
        ask,
    };
    service.handle(id(1), acquire).expect("it may ask");
    assert_eq!(service.poll(), None);
    service.on_written(lock, LockVersion(1)).expect("it follows on");
    assert!(matches!(service.poll(), Some((_, ToCache::Grant { .. }))));
}

#[test]
fn the_older_of_two_conflicting_claims_is_void() {
    let claim = |grant| TokenClaim {
        lock: LockId(0),
        grant: GrantNumber(grant),
        hold: Exclusive,
        version: LockVersion(0),
    };
    for (first, second, void) in [(10, 11, 0), (11, 10, 1)] {
        let mut service = service(GrantNumber(1 << 21), [0; 3]);
        for node in 0..2 {
            service.expect(id(node));
            service.resume(id(node));
        }
        assert_eq!(service.claim(id(0), claim(first)), Ok(vec![]));
        let (lock, node) = (LockId(0), id(1));
        let expected = match void {
            0 => Ok(vec![id(0)]),
            _ => Err(LockMisuse::Claims { lock, node }),
        };
        assert_eq!(service.claim(id(1), claim(second)), expected);
        assert_eq!(
            service.holders(LockId(0)).collect::<Vec<_>>(),
            [(id(1 - void), Exclusive)]
        );
    }
}

/// The claim was compared with the first reader only. It was accepted, and a reader that was admitted later
/// lost its token unnoticed.
#[test]
fn a_claim_that_excludes_several_must_be_newer_than_each() {
    for readers in [[10, 12], [12, 10]] {
        let mut service = service(GrantNumber(1 << 21), [0; 3]);
        let mut claim = |node, grant, hold| {
            service.expect(id(node));
            service.resume(id(node));
            let (lock, version) = (LockId(0), LockVersion(0));
            service.claim(
                id(node),
                TokenClaim {
                    lock,
                    grant: GrantNumber(grant),
                    hold,
                    version,
                },
            )
        };
        for (node, grant) in readers.into_iter().enumerate() {
            assert_eq!(claim(node, grant, Shared), Ok(vec![]));
        }
        let misuse = LockMisuse::Claims {
            lock: LockId(0),
            node: id(2),
        };
        assert_eq!(claim(2, 11, Exclusive), Err(misuse));
        let read: Vec<_> = service.holders(LockId(0)).collect();
        assert_eq!(read, [(id(0), Shared), (id(1), Shared)]);
    }
}

#[test]
fn a_node_that_is_not_expected_can_claim_nothing() {
    let mut service = service(GrantNumber(0), [0; 3]);
    service.resume(id(0));
    let claim = TokenClaim {
        lock: LockId(0),
        grant: GrantNumber(0),
        hold: Shared,
        version: LockVersion(0),
    };
    assert_eq!(service.claim(id(0), claim), Err(LockMisuse::NotHeld(LockId(0))));
}

/// A node that gives a token back at a version that was never made blocks the lock for as long as it is a
/// node. It blocked it for good.
#[test]
fn a_version_that_was_never_made_is_dropped_with_its_claimant() {
    let mut service = service(GrantNumber(0), [0; 3]);
    let ask = |node: usize| ToService::Acquire {
        lock: LockId(0),
        hold: Exclusive,
        order: LockOrder::Up,
        ask: LockRequestId(node as u64 + 1),
    };
    service.handle(id(0), ask(0)).expect("it may ask");
    let Some((_, ToCache::Grant { grant, .. })) = service.poll() else {
        panic!("the lock is free");
    };
    let release = ToService::Release {
        lock: LockId(0),
        grant,
        version: LockVersion(u64::MAX),
        keep: None,
    };
    service.handle(id(0), release).expect("it has the token");
    service.handle(id(1), ask(1)).expect("it may ask");
    assert_eq!(service.poll(), None);
    service.fence(id(0));
    assert_eq!(service.poll(), None, "its journal may have the records");
    service.reclaim(id(0));
    assert!(matches!(service.poll(), Some((node, ToCache::Grant { .. })) if node == id(1)));
}

/// An exclusive claim at a version that is not here shows that another node has made that version. When the
/// claimant is gone, that node is still awaited.
#[test]
fn a_claimed_version_is_awaited_even_when_its_claimant_is_gone() {
    let mut service = LockService::new(GrantNumber(9), [(LockId(0), LockVersion(4))]);
    service.ceiling_stored(GrantNumber(1000));
    service.expect(id(0));
    service.expect(id(1));
    service.resume(id(1));
    let claim = TokenClaim {
        lock: LockId(0),
        grant: GrantNumber(7),
        hold: Exclusive,
        version: LockVersion(5),
    };
    service.claim(id(1), claim).expect("nobody else has it");
    service.on_claims_done(id(1));
    let asked = ToService::Acquire {
        lock: LockId(0),
        hold: Exclusive,
        order: LockOrder::Up,
        ask: LockRequestId(1),
    };
    service.handle(id(2), asked).expect("it may ask");
    service.fence(id(1));
    service.reclaim(id(1));
    assert_eq!(service.poll(), None, "the one that made version 5 is absent");
    service.resume(id(0));
    service.on_written(LockId(0), LockVersion(5)).expect("it is next");
    service.on_claims_done(id(0));
    assert!(matches!(
        service.poll(),
        Some((node, ToCache::Grant { version: LockVersion(5), .. })) if node == id(2)
    ));
}

/// Only one of them was reported, and the others kept reading under tokens that were no longer theirs.
#[test]
fn every_claim_that_a_newer_one_excludes_is_reported() {
    let mut service = service(GrantNumber(1 << 21), [0; 3]);
    let mut claim = |node, grant, hold| {
        service.expect(id(node));
        service.resume(id(node));
        let (lock, version) = (LockId(0), LockVersion(0));
        let claim = TokenClaim {
            lock,
            grant: GrantNumber(grant),
            hold,
            version,
        };
        service.claim(id(node), claim)
    };
    assert_eq!(claim(0, 10, Shared), Ok(vec![]));
    assert_eq!(claim(1, 11, Shared), Ok(vec![]));
    assert_eq!(claim(2, 12, Exclusive), Ok(vec![id(0), id(1)]));
    let held: Vec<_> = service.holders(LockId(0)).collect();
    assert_eq!(held, [(id(2), Exclusive)]);
}

/// Its link broke. Later requests waited until it was back, or its lease had ended.
#[test]
fn a_resuming_nodes_old_request_blocks_no_other() {
    let mut service = service(GrantNumber(1), [0; 3]);
    let acquire = |hold, ask| ToService::Acquire {
        lock: LockId(0),
        hold,
        order: LockOrder::Up,
        ask: LockRequestId(ask),
    };
    service.handle(id(1), acquire(Shared, 1)).expect("it may ask");
    service.handle(id(0), acquire(Exclusive, 2)).expect("it may ask");
    service.handle(id(2), acquire(Shared, 3)).expect("it may ask");
    let granted = |service: &mut LockService| {
        let said = core::iter::from_fn(|| service.poll());
        let granted = said.filter(|(_, said)| matches!(said, ToCache::Grant { .. }));
        granted.map(|(node, _)| node).collect::<Vec<_>>()
    };
    assert_eq!(granted(&mut service), [id(1)]);
    service.resume(id(0));
    assert_eq!(granted(&mut service), [id(2)]);
}
