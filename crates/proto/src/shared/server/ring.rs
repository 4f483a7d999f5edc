//! The newest records, for nodes that are behind: bounded, so that a slow node costs memory only up to there.

use alloc::collections::{BTreeMap, VecDeque};

use crate::shared::{NodeId, Number, Position};

/// One record in the server's order.
#[derive(Clone, Debug)]
pub(super) struct Recent<P> {
    pub(super) node: NodeId,
    pub(super) number: Number,
    pub(super) payload: P,
}

/// The newest records, all that came after `before`.
#[derive(Clone, Debug)]
pub(super) struct Ring<P> {
    before: Position,
    /// The last record of each node up to `before`.
    numbers: BTreeMap<NodeId, Number>,
    records: VecDeque<Recent<P>>,
    bytes: usize,
    bytes_max: usize,
}

impl<P: AsRef<[u8]>> Ring<P> {
    pub(super) fn new(before: Position, numbers: BTreeMap<NodeId, Number>, bytes_max: usize) -> Ring<P> {
        Ring {
            before,
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
    pub(super) fn push(&mut self, record: Recent<P>) -> Position {
        self.bytes += record.payload.as_ref().len();
        self.records.push_back(record);
        while self.bytes > self.bytes_max && self.records.len() > 1 {
            let Some(oldest) = self.records.pop_front() else {
                break;
            };
            self.bytes -= oldest.payload.as_ref().len();
            self.before = self.before.next();
            self.numbers.insert(oldest.node, oldest.number);
        }
        self.newest()
    }

    /// The record at a place; `None`: it is not here any more, or not yet.
    pub(super) fn get(&self, position: Position) -> Option<&Recent<P>> {
        let index = position.0.checked_sub(self.before.0 + 1)?;
        self.records.get(usize::try_from(index).ok()?)
    }

    /// The oldest place that is here.
    pub(super) fn first(&self) -> Position {
        self.before.next()
    }

    /// The first place that somebody lacks who has these records of each node; `None`: that is not here any more.
    ///
    /// Positions would not do: a restarted server may have given others to what was not durable.
    pub(super) fn first_lacking(&self, applied: &BTreeMap<NodeId, Number>) -> Option<Position> {
        let has = |node: &NodeId, number: &Number| applied.get(node).is_some_and(|last| last >= number);
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
