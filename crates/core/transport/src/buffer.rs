//! A bounded queue of bytes in one piece of memory, so that a socket takes or fills it with one call.

use std::ops::Range;

/// Bytes in `head..tail` are queued, bytes from `tail` are free. Both start over when the queue runs empty.
pub(crate) struct ByteQueue {
    bytes: Box<[u8]>,
    head: usize,
    tail: usize,
}

impl ByteQueue {
    pub(crate) fn new(capacity: usize) -> ByteQueue {
        ByteQueue {
            bytes: vec![0; capacity].into_boxed_slice(),
            head: 0,
            tail: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// What is queued, oldest first.
    pub(crate) fn queued(&self) -> &[u8] {
        &self.bytes[self.head..self.tail]
    }

    /// The free bytes behind the queue, for the caller to fill and [`push`](Self::push).
    pub(crate) fn free(&mut self) -> &mut [u8] {
        &mut self.bytes[self.tail..]
    }

    /// Bytes that [`free`](Self::free) returns.
    pub(crate) fn room(&self) -> usize {
        self.bytes.len() - self.tail
    }

    /// Queues the first `length` free bytes.
    pub(crate) fn push(&mut self, length: usize) {
        assert!(length <= self.bytes.len() - self.tail);
        self.tail += length;
    }

    /// Forgets the oldest `length` bytes.
    pub(crate) fn pop(&mut self, length: usize) {
        assert!(length <= self.tail - self.head);
        self.head += length;
        if self.head == self.tail {
            self.head = 0;
            self.tail = 0;
        }
    }

    /// Forgets the queue up to the end of `place`, and lends what stands there. The bytes stay where they are
    /// until the next call.
    pub(crate) fn take(&mut self, place: Range<usize>) -> &mut [u8] {
        let start = self.head + place.start;
        self.pop(place.end);
        &mut self.bytes[start..start + place.len()]
    }

    /// Moves the queue to the front.
    pub(crate) fn compact(&mut self) {
        self.bytes.copy_within(self.head..self.tail, 0);
        self.tail -= self.head;
        self.head = 0;
    }

    /// Moves the queue to the front if that copies no more than has been popped, so that moving never costs
    /// more than sending did, however little a slow peer takes at a time.
    pub(crate) fn compact_if_cheap(&mut self) {
        if self.tail - self.head <= self.head {
            self.compact();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_the_order_they_came() {
        let mut queue = ByteQueue::new(8);
        queue.free()[..6].copy_from_slice(b"abcdef");
        queue.push(6);
        queue.pop(2);
        queue.compact_if_cheap();
        assert_eq!(
            (queue.queued(), queue.room()),
            (&b"cdef"[..], 2),
            "four bytes to move, two popped: dear"
        );
        queue.pop(1);
        queue.compact_if_cheap();
        assert_eq!((queue.queued(), queue.room()), (&b"def"[..], 5));
        queue.free()[..5].copy_from_slice(b"ghijk");
        queue.push(5);
        assert_eq!(queue.queued(), b"defghijk");
        queue.pop(8);
        assert!(queue.is_empty());
        assert_eq!(queue.room(), 8);
    }
}
