//! A node's process: its machine, its journal, its copy of the region, and its program's transactions.

use netram_proto::id::{JournalId, WriterId};
use netram_proto::owner::owned_id;
use netram_proto::time::Time;
use netram_shared_machine::lock::TxnId;
use netram_shared_machine::message::{JoinRequest, PeerEndpoint};
use netram_shared_machine::node::{NodeConfig, NodePhase, PinnedOverflow, RegionNode};
use netram_shared_machine::server::SessionId;
use netram_shared_machine::{LockId, LockMode, RecordNumber, Stamp};

use super::bytes::{self, LOCKS, PayloadBytes, WORDS};
use super::journal::RegionJournal;
use super::kernel::RegionKernel;
use crate::disk::SimDiskHandle;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TxnPhase {
    Waiting,
    Ready,
    Committing(RecordNumber),
    Failed,
}

#[derive(Clone, Debug)]
pub(super) struct ProgramTxn {
    pub(super) id: TxnId,
    /// Locks that the transaction still wants, the next one last.
    pub(super) wants: Vec<(LockId, LockMode)>,
    pub(super) phase: TxnPhase,
    /// Time until which it waits, by its machine's clock.
    pub(super) deadline: Time,
    /// Whether its wait must succeed.
    pub(super) must_succeed: bool,
}

/// Draws the id of something that has an owner.
pub(super) fn draw_owned(kernel: &mut RegionKernel) -> u128 {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&kernel.rng.draw().to_be_bytes());
    owned_id(&digest)
}

pub(super) struct RegionProcess {
    pub(super) life: u64,
    pub(super) node: RegionNode<PayloadBytes>,
    pub(super) journal: RegionJournal,
    pub(super) session: Option<SessionId>,
    pub(super) conns: Vec<Option<usize>>,
    pub(super) region: Vec<u64>,
    /// Stamp of the last record under each lock.
    pub(super) last: Vec<Option<Stamp>>,
    pub(super) txns: Vec<ProgramTxn>,
    /// Memory that a pinned reader saw when it began, or accepted since.
    pub(super) pinned: Option<Vec<u64>>,
    /// Whether the process has stood still.
    pub(super) was_paused: bool,
    /// The acknowledged record, as its machine was told.
    acked: RecordNumber,
}

impl RegionProcess {
    /// A process that joins with a new journal on its machine's disk.
    pub(super) fn new(
        kernel: &mut RegionKernel,
        disk: &SimDiskHandle,
        slot: usize,
        life: u64,
    ) -> RegionProcess {
        let id = JournalId(draw_owned(kernel));
        let who = WriterId(kernel.rng.draw());
        let journal = RegionJournal::create(disk, id, who, &kernel.profile, slot, kernel.planted());
        let config = NodeConfig {
            join: JoinRequest {
                region: None,
                name: format!("slot {slot}"),
                view: journal.view.clone(),
                key: Vec::new(),
                begins: journal.start,
                lazy: kernel.rng.chance(300),
                link: 0,
            },
            pinned_bytes_max: kernel.profile.pinned_bytes_max,
            full: if kernel.rng.chance(500) {
                PinnedOverflow::Expire
            } else {
                PinnedOverflow::FallBehind
            },
        };
        let mut node = RegionNode::new(config);
        node.plant(kernel.planted());
        if kernel.profile.hints_permille > 0 {
            node.set_reach(PeerEndpoint::default());
        }
        RegionProcess {
            life,
            node,
            journal,
            session: None,
            conns: vec![None; kernel.profile.lenders],
            region: vec![0; WORDS],
            last: vec![None; LOCKS as usize],
            txns: Vec::new(),
            pinned: None,
            was_paused: false,
            acked: RecordNumber(0),
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.node.state() == NodePhase::Whole
    }

    /// Begins with an empty region, after a join.
    pub(super) fn clear_region(&mut self) {
        self.region = vec![0; WORDS];
        self.last = vec![None; LOCKS as usize];
    }

    pub(super) fn txn_mut(&mut self, id: TxnId) -> Option<&mut ProgramTxn> {
        self.txns.iter_mut().find(|txn| txn.id == id)
    }

    /// Id of a transaction that has its locks and does not commit yet.
    pub(super) fn open_txn(&self) -> Option<TxnId> {
        let open = self.txns.iter().find(|txn| txn.phase == TxnPhase::Ready);
        open.map(|txn| txn.id)
    }

    /// Transactions on their way to the members, and their records.
    pub(super) fn committing(&self) -> impl Iterator<Item = (TxnId, RecordNumber)> {
        self.txns.iter().filter_map(|txn| match txn.phase {
            TxnPhase::Committing(number) => Some((txn.id, number)),
            _ => None,
        })
    }

    /// A lock that a transaction holds exclusively.
    pub(super) fn exclusive_lock(&self) -> Option<LockId> {
        let open = |phase| matches!(phase, TxnPhase::Ready | TxnPhase::Committing(_));
        let txns = self.txns.iter().filter(|txn| open(txn.phase));
        let mut held = txns.flat_map(|txn| self.node.tokens().held_locks(txn.id));
        let held = held.find(|held| held.hold == LockMode::Exclusive);
        held.map(|held| held.lock)
    }

    /// Ends a transaction without a commit.
    pub(super) fn abort(&mut self, now: Time, id: TxnId) {
        self.node.end(now, id, None);
        self.txns.retain(|txn| txn.id != id);
    }

    pub(super) fn end_failed(&mut self, now: Time) {
        for txn in self.txns.iter().filter(|txn| txn.phase == TxnPhase::Failed) {
            self.node.end(now, txn.id, None);
        }
        self.txns.retain(|txn| txn.phase != TxnPhase::Failed);
    }

    /// Fails the transactions that are not on their way to the members.
    pub(super) fn fail_open(&mut self, now: Time) {
        for txn in &mut self.txns {
            if !matches!(txn.phase, TxnPhase::Committing(_)) {
                txn.phase = TxnPhase::Failed;
            }
        }
        self.end_failed(now);
    }

    /// Applies a record to the memory, its own or another node's.
    pub(super) fn change(&mut self, stamp: &Stamp, payload: &PayloadBytes) {
        bytes::apply(payload, &mut self.region);
        for (lock, _) in &stamp.written {
            self.last[lock.0 as usize] = Some(stamp.clone());
        }
    }

    /// Passes the journal's messages for the server to the node's machine.
    pub(super) fn tell_members(&mut self, now: Time) {
        let (node, journal) = (&mut self.node, &mut self.journal);
        let view_waits = journal.writer.view_for_server().is_some();
        let few = !journal.writer.counting() || view_waits;
        if few != journal.few_members {
            journal.few_members = few;
            node.on_members(now, few);
        }
        if view_waits && journal.view.version > journal.told_view {
            journal.told_view = journal.view.version;
            node.on_view(journal.view.clone());
        }
    }

    /// The last acknowledged record, if the node's machine does not know of it.
    pub(super) fn unreported_ack(&self) -> Option<RecordNumber> {
        let acked = self.journal.acked();
        (acked > self.acked).then_some(acked)
    }

    /// Reports the members' acknowledgements to the node's machine and to waiting transactions.
    pub(super) fn report_ack(&mut self, now: Time, acked: RecordNumber) {
        self.acked = acked;
        self.node.on_acked(now, acked);
        let done: Vec<(TxnId, RecordNumber)> =
            self.committing().filter(|(_, number)| *number <= acked).collect();
        for (id, number) in done {
            self.node.end(now, id, Some(number));
            self.txns.retain(|txn| txn.id != id);
        }
    }
}
