//! The two buffers of a connection. Each has a fixed size and is allocated once; its pages take memory only
//! as far as they are used.

use std::io;

use crate::limit::{INPUT_BYTES, OUTPUT_BYTES};
use crate::stream::{NbdStream, ReceiveResult, ReceiveWait};

/// Bytes that were received and not yet consumed.
pub(crate) struct InputBuffer {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl InputBuffer {
    pub(crate) fn new() -> InputBuffer {
        InputBuffer {
            buffer: vec![0; INPUT_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    pub(crate) fn take(&mut self, count: usize) {
        assert!(
            count <= self.end - self.start,
            "cannot take more bytes than were received"
        );
        self.start += count;
        if self.start == self.end {
            // Start at the front again, so that a stream of small requests stays in the processor's cache.
            (self.start, self.end) = (0, 0);
        }
    }

    /// Receives more bytes behind the present ones. There must be room: either bytes were consumed, or too
    /// few are here for a whole request.
    pub(crate) fn fill(&mut self, stream: &mut NbdStream, wait: ReceiveWait) -> io::Result<ReceiveResult> {
        if self.start > 0 && INPUT_BYTES - self.end < INPUT_BYTES / 4 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let received = stream.receive(&mut self.buffer[self.end..], wait)?;
        if let ReceiveResult::Bytes(count) = received {
            self.end += count;
        }
        Ok(received)
    }
}

/// Bytes to be sent.
pub(crate) struct OutputBuffer {
    buffer: Box<[u8]>,
    filled: usize,
}

impl OutputBuffer {
    pub(crate) fn new() -> OutputBuffer {
        OutputBuffer {
            buffer: vec![0; OUTPUT_BYTES].into_boxed_slice(),
            filled: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Ensures that `count` bytes fit, by sending the present ones if necessary.
    pub(crate) fn reserve(&mut self, count: usize, stream: &mut NbdStream) -> io::Result<()> {
        assert!(count <= OUTPUT_BYTES, "a piece of a reply must fit in the buffer");
        match OUTPUT_BYTES - self.filled >= count {
            true => Ok(()),
            false => self.send(stream),
        }
    }

    pub(crate) fn send(&mut self, stream: &mut NbdStream) -> io::Result<()> {
        let filled = std::mem::take(&mut self.filled);
        stream.send(&self.buffer[..filled])
    }

    /// Appends bytes, for which room was reserved.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
    }

    /// Next `count` bytes, to be filled. They still have old contents.
    pub(crate) fn space(&mut self, count: usize) -> &mut [u8] {
        let start = self.filled;
        self.filled += count;
        &mut self.buffer[start..self.filled]
    }

    /// Removes the last `count` bytes.
    pub(crate) fn retract(&mut self, count: usize) {
        self.filled -= count;
    }
}
