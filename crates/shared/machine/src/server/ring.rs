//! The newest records, for nodes that are behind: bounded, so that a slow node costs memory only up to there.

use alloc::collections::{BTreeMap, VecDeque};

use crate::{NodeId, Position, RecordNumber};

/// One record in the server's order.
#[derive(Clone, Debug)]
pub(super) struct RingRecord<P> {
    pub(super) node: NodeId,
    pub(super) number: RecordNumber,
    pub(super) payload: P,
}

/// The newest records, all that came after `before`.
#[derive(Clone, Debug)]
pub(super) struct RecordRing<P> {
    before: Position,
    /// Whose the last records up to `before` are, and where they begin; `None`: none was here.
    run: Option<(NodeId, Position)>,
    /// The last record of each node up to `before`.
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

    /// The newest record's place.
    pub(super) fn newest(&self) -> Position {
        Position(self.before.0 + self.records.len() as u64)
    }

    /// Adds a record; old ones make room. The newest is always there.
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

    /// The record at a place; `None`: it is not here any more, or not yet.
    pub(super) fn get(&self, position: Position) -> Option<&RingRecord<P>> {
        let index = position.0.checked_sub(self.before.0 + 1)?;
        self.records.get(usize::try_from(index).ok()?)
    }

    /// Where a node goes on that was to be given the record at `next`. Its own it has: those are passed over
    /// though they are not here any more, or a node whose own records fill the ring would be behind by them.
    pub(super) fn next_for(&self, node: NodeId, next: Position) -> Position {
        match self.run {
            Some((whose, begins)) if whose == node && next >= begins => next.max(self.first()),
            _ => next,
        }
    }

    /// The oldest place that is here.
    pub(super) fn first(&self) -> Position {
        self.before.next()
    }

    /// The first place that somebody lacks who has these records of each node; `None`: that is not here any
    /// more.
    ///
    /// Positions would not do: a restarted server may have given others to what was not durable.
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

    /// A node of which nothing is known any more.
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
        // Of these 11 to 15 are not here any more; the last three of them are node 1's.
        let ring = ring(&[1, 2, 1, 1, 1, 2, 2]);
        assert_eq!(ring.first(), Position(16));
        for next in 13..=16 {
            assert_eq!(goes_on(&ring, 1, next), 16);
        }
        assert_eq!(goes_on(&ring, 1, 17), 17);
        // It lacks the one of node 2, or what was before.
        for next in [10, 11, 12] {
            assert_eq!(goes_on(&ring, 1, next), next);
        }
        for next in 10..=17 {
            assert_eq!(goes_on(&ring, 2, next), next);
        }
    }

    #[test]
    fn what_was_never_here_is_nobodys() {
        let ring = ring(&[1, 1]);
        assert_eq!(goes_on(&ring, 1, 10), 10);
        assert_eq!(goes_on(&ring, 1, 11), 11);
    }
}
