//! The two buffers of a connection: allocated once, of fixed size, touched by the system only as far as they
//! are used.

use std::io;

use crate::limit::{INPUT_BYTES, OUTPUT_BYTES};
use crate::stream::{NbdStream, ReceiveResult, ReceiveWait};

/// What was received and not yet taken.
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
        assert!(count <= self.end - self.start, "only what is here is taken");
        self.start += count;
        if self.start == self.end {
            // From the front again: a stream of small requests stays in the processor's cache.
            (self.start, self.end) = (0, 0);
        }
    }

    /// Receives behind what is here. There must be room: something was taken, or too little is here to be
    /// whole.
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

/// What is to be sent.
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

    /// Sees to it that `count` bytes fit, by sending what is here if it must.
    pub(crate) fn reserve(&mut self, count: usize, stream: &mut NbdStream) -> io::Result<()> {
        assert!(
            count <= OUTPUT_BYTES,
            "no reply's piece is larger than the buffer"
        );
        match OUTPUT_BYTES - self.filled >= count {
            true => Ok(()),
            false => self.send(stream),
        }
    }

    pub(crate) fn send(&mut self, stream: &mut NbdStream) -> io::Result<()> {
        let filled = std::mem::take(&mut self.filled);
        stream.send(&self.buffer[..filled])
    }

    /// Appends. Room was reserved.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.space(bytes.len()).copy_from_slice(bytes);
    }

    /// The next `count` bytes, to be filled. They hold what was sent before.
    pub(crate) fn space(&mut self, count: usize) -> &mut [u8] {
        let start = self.filled;
        self.filled += count;
        &mut self.buffer[start..self.filled]
    }

    /// Takes back the last `count` bytes.
    pub(crate) fn retract(&mut self, count: usize) {
        self.filled -= count;
    }
}
