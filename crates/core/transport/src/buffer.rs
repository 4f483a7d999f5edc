//! A bounded byte queue in one contiguous buffer, so that one system call can send from it or fill it.

use std::ops::Range;

/// Bytes in `head..tail` are queued, and bytes from `tail` on are free. Both indices return to zero when the
/// queue runs empty.
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

    /// The queued bytes, oldest first.
    pub(crate) fn queued(&self) -> &[u8] {
        &self.bytes[self.head..self.tail]
    }

    /// The free bytes behind the queue. The caller fills them and then calls [`push`](Self::push).
    pub(crate) fn free(&mut self) -> &mut [u8] {
        &mut self.bytes[self.tail..]
    }

    /// Number of bytes that [`free`](Self::free) returns.
    pub(crate) fn room(&self) -> usize {
        self.bytes.len() - self.tail
    }

    /// Queues the first `length` free bytes.
    pub(crate) fn push(&mut self, length: usize) {
        assert!(length <= self.bytes.len() - self.tail);
        self.tail += length;
    }

    /// Removes the oldest `length` bytes.
    pub(crate) fn pop(&mut self, length: usize) {
        assert!(length <= self.tail - self.head);
        self.head += length;
        if self.head == self.tail {
            self.head = 0;
            self.tail = 0;
        }
    }

    /// Removes the queue up to the end of `place` and returns the bytes at `place`. They stay unchanged until
    /// the next call.
    pub(crate) fn take(&mut self, place: Range<usize>) -> &mut [u8] {
        let start = self.head + place.start;
        self.pop(place.end);
        &mut self.bytes[start..start + place.len()]
    }

    /// Moves the queued bytes to the front of the buffer.
    pub(crate) fn compact(&mut self) {
        self.bytes.copy_within(self.head..self.tail, 0);
        self.tail -= self.head;
        self.head = 0;
    }

    /// Moves the queue to the front if that copies no more bytes than have been popped. Moving therefore
    /// never costs more than sending did, even for a slow peer.
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
            "moving four bytes costs more than the two popped"
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
