//! Single stories of locks, with a service and some nodes whose messages travel when the test lets them.
//!
//! | hazard of the paper's protocol | story |
//! |---|---|
//! | 1: holders that write nothing leave gaps | `holders_that_write_nothing_leave_no_gap` |
//! | 2: a dead writer blocks all | `a_dead_writers_lock_is_free_once_its_journal_is_read` |
//! | 3: the token dies with its holder | `a_dead_nodes_token_is_granted_at_its_journals_last_version` |
//! | 4: a dead waiter takes those behind it along | `a_node_that_dies_in_the_queue_blocks_no_later_request` |
//! | 5: the manager forgets | `a_restarted_server_learns_all_holders_before_it_grants` |
//! | 9: deadlock | `the_out_of_order_one_of_two_crossing_transactions_dies`, and `order` beside it |
//! | 17: readers one by one | `readers_share_and_a_writer_does_not_wait_for_later_readers` |
//! | 18: who cannot be undone cannot die | `a_transaction_without_undo_is_refused_out_of_order_and_never_dies` |

mod failure;
mod order;
mod tokens;

use std::collections::VecDeque;

use netram_proto::time::Time;
use netram_shared_machine::lock::{
    Acquired, CacheEvent, LockService, ToCache, ToService, TokenCache, TokenError, TxnId,
};
use netram_shared_machine::{GrantNumber, LockId, LockMode, LockVersion, NodeId, RecordNumber};

const LOCKS: u32 = 3;
const SOON: Time = Time(10);
const LATE: Time = Time(1000);

struct LinkedNode {
    cache: TokenCache,
    up: VecDeque<ToService>,
    down: VecDeque<ToCache>,
    records: u64,
    /// Events of its transactions.
    heard: Vec<CacheEvent>,
}

struct LockNet {
    service: LockService,
    nodes: Vec<LinkedNode>,
    now: Time,
}

fn id(node: usize) -> NodeId {
    NodeId(node as u64 + 1)
}

/// The service after a server's start, with nothing reserved by earlier starts beyond `ceiling`.
fn service(ceiling: GrantNumber, versions: [u64; LOCKS as usize]) -> LockService {
    let versions = (0..LOCKS).map(LockId).zip(versions.map(LockVersion));
    let mut service = LockService::new(ceiling, versions);
    let ceiling = service
        .ceiling_wanted()
        .expect("nothing is left of what was reserved");
    service.ceiling_stored(ceiling);
    service
}

impl LockNet {
    fn new(nodes: usize) -> LockNet {
        let node = |_| {
            let mut cache = TokenCache::new();
            cache.on_linked(Time(0), RecordNumber(0));
            cache.on_renewed(Time(0), LATE);
            LinkedNode {
                cache,
                up: VecDeque::new(),
                down: VecDeque::new(),
                records: 0,
                heard: Vec::new(),
            }
        };
        LockNet {
            service: service(GrantNumber(0), [0; LOCKS as usize]),
            nodes: (0..nodes).map(node).collect(),
            now: Time(0),
        }
    }

    fn begin(&mut self, node: usize) -> TxnId {
        self.nodes[node].cache.begin(true)
    }

    /// Requests a lock, and lets no message travel.
    fn ask(&mut self, node: usize, txn: TxnId, lock: u32, hold: LockMode) -> Result<Acquired, TokenError> {
        let asked = self.nodes[node]
            .cache
            .acquire(self.now, txn, LockId(lock), hold, LATE);
        self.collect();
        asked
    }

    /// Requests a lock, and lets all messages travel. Returns whether the transaction has the lock then.
    fn acquire(&mut self, node: usize, txn: TxnId, lock: u32, hold: LockMode) -> bool {
        let asked = self.ask(node, txn, lock, hold);
        self.run();
        asked == Ok(Acquired::Granted) || self.has_event(node, CacheEvent::Acquired(txn))
    }

    /// A transaction that holds `lock`.
    fn holder(&mut self, node: usize, lock: u32, hold: LockMode) -> TxnId {
        let txn = self.begin(node);
        assert!(self.acquire(node, txn, lock, hold), "lock {lock} is free");
        txn
    }

    /// Commits with writes under all exclusive locks; the record is not sent yet. Returns the versions that
    /// it made.
    fn commit(&mut self, node: usize, txn: TxnId) -> Vec<(LockId, LockVersion)> {
        let state = &mut self.nodes[node];
        let held: Vec<_> = state.cache.held_locks(txn).collect();
        let wrote = |lock| Some((lock, state.cache.on_written(txn, lock)?));
        let made = held.iter().map(|held| held.lock).filter_map(wrote).collect();
        state.records += 1;
        state.cache.end(self.now, txn, Some(RecordNumber(state.records)));
        self.collect();
        made
    }

    /// Merges the records of these versions.
    fn send(&mut self, node: usize, made: &[(LockId, LockVersion)]) {
        for (lock, version) in made {
            self.service.on_written(*lock, *version).expect("they follow on");
        }
        let state = &mut self.nodes[node];
        state.cache.on_sent(self.now, RecordNumber(state.records));
        self.run();
    }

    /// Ends a transaction without a record.
    fn end(&mut self, node: usize, txn: TxnId) {
        self.nodes[node].cache.end(self.now, txn, None);
        self.run();
    }

    /// Whether a node's transaction got this event; removes it.
    fn has_event(&mut self, node: usize, event: CacheEvent) -> bool {
        let heard = &mut self.nodes[node].heard;
        let found = heard.iter().position(|other| *other == event);
        found.map(|index| heard.remove(index)).is_some()
    }

    fn collect(&mut self) {
        for node in &mut self.nodes {
            while let Some(event) = node.cache.poll() {
                match event {
                    CacheEvent::Send(message) => node.up.push_back(message),
                    other => node.heard.push(other),
                }
            }
        }
        while let Some((node, message)) = self.service.poll() {
            self.nodes[node.0 as usize - 1].down.push_back(message);
        }
    }

    /// Delivers all messages of a node.
    fn up(&mut self, node: usize) {
        self.collect();
        while let Some(message) = self.nodes[node].up.pop_front() {
            self.service
                .handle(id(node), message)
                .expect("no node misuses the service");
        }
        self.collect();
    }

    /// Delivers all messages to a node.
    fn down(&mut self, node: usize) {
        self.collect();
        while let Some(message) = self.nodes[node].down.pop_front() {
            let handled = self.nodes[node].cache.handle(self.now, message);
            handled.expect("the service grants what was asked for");
        }
        self.collect();
    }

    /// Delivers messages until there are none.
    fn run(&mut self) {
        self.collect();
        while self
            .nodes
            .iter()
            .any(|node| !node.up.is_empty() || !node.down.is_empty())
        {
            for node in 0..self.nodes.len() {
                self.up(node);
                self.down(node);
            }
        }
    }

    /// Breaks a node's link, with all messages on it.
    fn cut(&mut self, node: usize) {
        self.nodes[node].cache.on_unlinked();
        self.nodes[node].up.clear();
        self.nodes[node].down.clear();
    }

    /// Kills a node, and lets the server notice.
    fn kill(&mut self, node: usize) {
        self.cut(node);
        self.service.fence(id(node));
    }

    /// Reconnects a node, with all its records merged.
    fn link(&mut self, node: usize) {
        self.service.resume(id(node));
        let state = &mut self.nodes[node];
        for claim in state.cache.claims() {
            self.service.claim(id(node), claim).expect("it is so");
        }
        self.service.on_claims_done(id(node));
        state.cache.on_linked(self.now, RecordNumber(state.records));
        self.run();
    }

    fn holders(&self, lock: u32) -> Vec<(NodeId, LockMode)> {
        let mut holders: Vec<_> = self.service.holders(LockId(lock)).collect();
        holders.sort();
        holders
    }
}
