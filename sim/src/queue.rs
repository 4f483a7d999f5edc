//! An event queue ordered by time; events of the same time keep their order of insertion.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use netram_proto::time::Time;

struct Entry<T> {
    at: Time,
    number: u64,
    event: T,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Entry<T>) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Entry<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    // The heap yields its greatest entry, so the earliest is made the greatest.
    fn cmp(&self, other: &Entry<T>) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// The world's event queue.
pub(crate) struct EventQueue<T> {
    heap: BinaryHeap<Entry<T>>,
    number: u64,
}

impl<T> Default for EventQueue<T> {
    fn default() -> EventQueue<T> {
        EventQueue {
            heap: BinaryHeap::new(),
            number: 0,
        }
    }
}

impl<T> EventQueue<T> {
    /// Plans `event` for `at`.
    pub(crate) fn push(&mut self, at: Time, event: T) {
        self.number += 1;
        self.heap.push(Entry {
            at,
            number: self.number,
            event,
        });
    }

    /// The next event and its time.
    pub(crate) fn pop(&mut self) -> Option<(Time, T)> {
        self.heap.pop().map(|entry| (entry.at, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_pop_by_time_then_insertion_order() {
        let mut queue = EventQueue::default();
        for (at, event) in [(5, 'c'), (1, 'a'), (5, 'd'), (2, 'b')] {
            queue.push(Time(at), event);
        }
        let order: String = std::iter::from_fn(|| queue.pop())
            .map(|(_, event)| event)
            .collect();
        assert_eq!(order, "abcd");
    }
}
