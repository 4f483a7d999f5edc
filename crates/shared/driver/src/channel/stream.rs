//! Messages in a stream of bytes: each its length (4 bytes, little endian), then its bytes. No I/O.

use crate::limit::BUFFER_KEPT_BYTES;

/// Bytes of a message's length field.
pub(super) const LENGTH_BYTES: usize = 4;

/// A message of an invalid length. Nothing after it can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadLength(pub(super) usize);

/// Queue of bytes, taken from the front and added at the end.
#[derive(Debug, Default)]
pub(super) struct StreamBuffer {
    all: Vec<u8>,
    head: usize,
}

impl StreamBuffer {
    pub(super) fn waiting(&self) -> &[u8] {
        &self.all[self.head..]
    }

    pub(super) fn drop_front(&mut self, count: usize) {
        assert!(count <= self.all.len() - self.head);
        self.head += count;
    }

    /// The vector to append to. Waiting bytes are moved to its start only if they are no more than the bytes
    /// already taken.
    fn end(&mut self) -> &mut Vec<u8> {
        let waiting = self.all.len() - self.head;
        if waiting == 0 {
            self.all.clear();
            if self.all.capacity() > BUFFER_KEPT_BYTES {
                self.all = Vec::new();
            }
            self.head = 0;
        } else if waiting <= self.head {
            self.all.copy_within(self.head.., 0);
            self.all.truncate(waiting);
            self.head = 0;
        }
        &mut self.all
    }

    /// Adds a message, which is the concatenation of `parts`.
    pub(super) fn put_message(&mut self, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let length = u32::try_from(length).expect("a message's length fits (limit.rs)");
        let end = self.end();
        end.extend_from_slice(&length.to_le_bytes());
        for part in parts {
            end.extend_from_slice(part);
        }
    }
}

/// Received bytes of a stream, and the messages in them.
///
/// It takes memory for received bytes, never for those that a length announces.
#[derive(Debug)]
pub(super) struct Inbox {
    bytes: StreamBuffer,
    /// Maximum length of a message.
    message_bytes_max: usize,
}

impl Inbox {
    pub(super) fn new(message_bytes_max: usize) -> Inbox {
        Inbox {
            bytes: StreamBuffer::default(),
            message_bytes_max,
        }
    }

    pub(super) fn set_max(&mut self, message_bytes_max: usize) {
        self.message_bytes_max = message_bytes_max;
    }

    /// Adds the stream's next bytes.
    pub(super) fn push(&mut self, packet: &[u8]) {
        self.bytes.end().extend_from_slice(packet);
    }

    /// Length of the next message, if all of it is here.
    pub(super) fn whole(&self) -> Result<Option<usize>, BadLength> {
        let waiting = self.bytes.waiting();
        let Some(length) = waiting.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > self.message_bytes_max {
            return Err(BadLength(length));
        }
        Ok((waiting.len() - LENGTH_BYTES >= length).then_some(length))
    }

    /// Takes the next message, whose length [`whole`](Self::whole) has returned.
    pub(super) fn take(&mut self, length: usize) -> &[u8] {
        let start = self.bytes.head + LENGTH_BYTES;
        self.bytes.drop_front(LENGTH_BYTES + length);
        &self.bytes.all[start..start + length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drain(inbox: &mut Inbox) -> Result<Vec<Vec<u8>>, BadLength> {
        let mut messages = Vec::new();
        while let Some(length) = inbox.whole()? {
            messages.push(inbox.take(length).to_vec());
        }
        Ok(messages)
    }

    proptest! {
        #[test]
        fn messages_survive_any_split_of_the_stream(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 1..20),
            cuts in proptest::collection::vec(1_usize..200, 1..30),
        ) {
            let mut stream = StreamBuffer::default();
            for message in &messages {
                let (front, back) = message.split_at(message.len() / 2);
                stream.put_message(&[front, back]);
            }
            let (mut inbox, mut out) = (Inbox::new(300), Vec::new());
            let mut cuts = cuts.into_iter().cycle();
            while !stream.waiting().is_empty() {
                let piece = cuts.next().unwrap_or(1).min(stream.waiting().len());
                inbox.push(&stream.waiting()[..piece]);
                stream.drop_front(piece);
                out.extend(drain(&mut inbox).unwrap());
            }
            prop_assert_eq!(out, messages);
            prop_assert!(inbox.bytes.waiting().is_empty());
        }

        #[test]
        fn any_bytes_are_messages_or_an_error(packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 0..20)) {
            let mut inbox = Inbox::new(64);
            let mut taken = 0;
            let pushed: usize = packets.iter().map(Vec::len).sum();
            for packet in &packets {
                inbox.push(packet);
                match drain(&mut inbox) {
                    Ok(messages) => taken += messages.iter().map(|message| message.len() + LENGTH_BYTES).sum::<usize>(),
                    Err(BadLength(length)) => {
                        prop_assert!(length == 0 || length > 64);
                        return Ok(());
                    }
                }
            }
            prop_assert_eq!(taken + inbox.bytes.waiting().len(), pushed);
        }
    }

    #[test]
    fn a_length_takes_no_memory_before_its_bytes_have_come() {
        let mut inbox = Inbox::new(netram_shared_machine::limit::SHARED_MESSAGE_BYTES_MAX);
        inbox.push(&(60_u32 << 20).to_le_bytes());
        inbox.push(&[7; 1000]);
        assert_eq!(inbox.whole(), Ok(None));
        assert!(inbox.bytes.all.capacity() < 1 << 16);
        inbox.set_max(1 << 20);
        assert_eq!(inbox.whole(), Err(BadLength(60 << 20)));
    }

    #[test]
    fn a_large_message_leaves_no_large_buffer() {
        let mut inbox = Inbox::new(netram_shared_machine::limit::SHARED_MESSAGE_BYTES_MAX);
        let mut stream = StreamBuffer::default();
        stream.put_message(&[&vec![1; 4 * BUFFER_KEPT_BYTES]]);
        inbox.push(stream.waiting());
        assert_eq!(drain(&mut inbox).unwrap().len(), 1);
        inbox.push(&[1, 0, 0, 0, 9]);
        assert_eq!(drain(&mut inbox).unwrap(), [[9]]);
        assert!(inbox.bytes.all.capacity() <= BUFFER_KEPT_BYTES);
    }
}
