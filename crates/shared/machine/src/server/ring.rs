//! The newest records, for nodes that are behind. The ring is bounded, so that a slow node costs no more
//! memory.

use alloc::collections::{BTreeMap, VecDeque};

use crate::{NodeId, Position, RecordNumber};

/// One record in the server's order.
#[derive(Clone, Debug)]
pub(super) struct RingRecord<P> {
    pub(super) node: NodeId,
    pub(super) number: RecordNumber,
    pub(super) payload: P,
}

/// The newest records: all after `before`.
#[derive(Clone, Debug)]
pub(super) struct RecordRing<P> {
    before: Position,
    /// Node of the last records up to `before`, and the position where their run begins; `None`: no record
    /// was dropped.
    run: Option<(NodeId, Position)>,
    /// Last record of each node up to `before`.
    numbers: BTreeMap<NodeId, RecordNumber>,
    records: VecDeque<RingRecord<P>>,
    bytes: usize,
    bytes_max: usize,
}

impl<P: AsRef<[u8]>> RecordRing<P> {
    pub(super) fn new(
        before: Position,
        numbers: BTreeMap<NodeId, RecordNumber>,
        bytes_max: usize,
    ) -> RecordRing<P> {
        RecordRing {
            before,
            run: None,
            numbers,
            records: VecDeque::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// Position of the newest record.
    pub(super) fn newest(&self) -> Position {
        Position(self.before.0 + self.records.len() as u64)
    }

    /// Adds a record and drops old ones to make room. The newest is always kept.
    pub(super) fn push(&mut self, record: RingRecord<P>) -> Position {
        self.bytes += record.payload.as_ref().len();
        self.records.push_back(record);
        while self.bytes > self.bytes_max && self.records.len() > 1 {
            let Some(oldest) = self.records.pop_front() else {
                break;
            };
            self.bytes -= oldest.payload.as_ref().len();
            self.before = self.before.next();
            if self.run.is_none_or(|(node, _)| node != oldest.node) {
                self.run = Some((oldest.node, self.before));
            }
            self.numbers.insert(oldest.node, oldest.number);
        }
        self.newest()
    }

    /// The record at a position; `None`: it was dropped, or has not come yet.
    pub(super) fn get(&self, position: Position) -> Option<&RingRecord<P>> {
        let index = position.0.checked_sub(self.before.0 + 1)?;
        self.records.get(usize::try_from(index).ok()?)
    }

    /// Position where a node continues that was to be sent the record at `next`. Its own records are skipped
    /// even if they were dropped. Otherwise a node whose own records fill the ring would count as behind.
    pub(super) fn next_for(&self, node: NodeId, next: Position) -> Position {
        match self.run {
            Some((whose, begins)) if whose == node && next >= begins => next.max(self.first()),
            _ => next,
        }
    }

    /// Oldest position that is kept.
    pub(super) fn first(&self) -> Position {
        self.before.next()
    }

    /// First position that a node lacks if it has these records of each node; `None`: that record was
    /// dropped.
    ///
    /// Positions cannot be compared instead: a restarted server may have given other positions to records
    /// that were not durable.
    pub(super) fn first_lacking(&self, applied: &BTreeMap<NodeId, RecordNumber>) -> Option<Position> {
        let has = |node: &NodeId, number: &RecordNumber| applied.get(node).is_some_and(|last| last >= number);
        if !self
            .numbers
            .iter()
            .all(|(node, number)| number.0 == 0 || has(node, number))
        {
            return None;
        }
        let known = self
            .records
            .iter()
            .take_while(|record| has(&record.node, &record.number));
        Some(Position(self.before.0 + known.count() as u64 + 1))
    }

    /// Forgets a node's last record.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.numbers.remove(&node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn ring(nodes: &[u64]) -> RecordRing<Vec<u8>> {
        let mut ring = RecordRing::new(Position(10), BTreeMap::new(), 2);
        for (index, node) in nodes.iter().enumerate() {
            ring.push(RingRecord {
                node: NodeId(*node),
                number: RecordNumber(index as u64 + 1),
                payload: Vec::from([0]),
            });
        }
        ring
    }

    fn goes_on(ring: &RecordRing<Vec<u8>>, node: u64, next: u64) -> u64 {
        ring.next_for(NodeId(node), Position(next)).0
    }

    #[test]
    fn only_its_own_records_are_passed_over() {
        // Records 11 to 15 were dropped; the last three of them are node 1's.
        let ring = ring(&[1, 2, 1, 1, 1, 2, 2]);
        assert_eq!(ring.first(), Position(16));
        for next in 13..=16 {
            assert_eq!(goes_on(&ring, 1, next), 16);
        }
        assert_eq!(goes_on(&ring, 1, 17), 17);
        // The node lacks the record of node 2, or one before it.
        for next in [10, 11, 12] {
            assert_eq!(goes_on(&ring, 1, next), next);
        }
        for next in 10..=17 {
            assert_eq!(goes_on(&ring, 2, next), next);
        }
    }

    #[test]
    fn records_before_the_ring_belong_to_no_node() {
        let ring = ring(&[1, 1]);
        assert_eq!(goes_on(&ring, 1, 10), 10);
        assert_eq!(goes_on(&ring, 1, 11), 11);
    }
}
