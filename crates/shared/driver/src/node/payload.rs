//! A record's bytes, shared by the machine, the link and the threads that apply it. Memory of the node's own
//! records is reused once no thread holds it, so that a commit allocates nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Maximum bytes of a reused payload. Longer records are rare, and cost more than an allocation anyway.
const BYTES_MAX: usize = 4096;
/// Maximum bytes of all reused payloads: for short records, those of many syncs of the server's disk.
const SPARE_BYTES_MAX: usize = 1 << 20;

/// The bytes of one record.
#[derive(Clone, Debug)]
pub(super) struct NodePayload(Arc<Vec<u8>>);

impl From<&[u8]> for NodePayload {
    fn from(bytes: &[u8]) -> NodePayload {
        NodePayload(Arc::new(bytes.to_vec()))
    }
}

impl AsRef<[u8]> for NodePayload {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The node's newest payloads, oldest first, whose memory is reused once no thread holds them.
#[derive(Default)]
pub(super) struct PayloadPool(Mutex<PoolState>);

#[derive(Default)]
struct PoolState {
    payloads: VecDeque<Arc<Vec<u8>>>,
    bytes: usize,
}

impl PayloadPool {
    /// Creates a payload of `length` bytes, written by `fill`.
    pub(super) fn make(&self, length: usize, fill: impl FnOnce(&mut [u8])) -> NodePayload {
        let mut payload = self.take();
        match Arc::get_mut(&mut payload) {
            Some(bytes) => {
                // Only the bytes by which it grows are zeroed.
                bytes.resize(length, 0);
                fill(bytes);
            }
            None => unreachable!("a payload taken from the pool has one owner"),
        }
        self.remember(&payload);
        NodePayload(payload)
    }

    /// Takes the oldest payload if no thread holds it, or else a new one. Payloads are released in the
    /// journal's order.
    fn take(&self) -> Arc<Vec<u8>> {
        let mut made = self.0.lock().expect("nothing panics under this lock");
        let free = made
            .payloads
            .front_mut()
            .is_some_and(|oldest| Arc::get_mut(oldest).is_some());
        let Some(oldest) = made.payloads.pop_front_if(|_| free) else {
            return Arc::default();
        };
        made.bytes -= oldest.capacity();
        oldest
    }

    fn remember(&self, payload: &Arc<Vec<u8>>) {
        let mut made = self.0.lock().expect("nothing panics under this lock");
        let bytes = payload.capacity();
        if bytes <= BYTES_MAX && made.bytes + bytes <= SPARE_BYTES_MAX {
            made.bytes += bytes;
            made.payloads.push_back(Arc::clone(payload));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_memory_is_reused_only_once_it_is_released() {
        let spares = PayloadPool::default();
        let make = |byte: u8, length| spares.make(length, |bytes| bytes.fill(byte));
        let (one, two) = (make(1, 40), make(2, 30));
        let at = |payload: &NodePayload| payload.0.as_ptr();
        let (first, clone) = (at(&one), one.clone());
        drop(one);
        // The oldest payload is still held.
        let three = make(3, 40);
        assert_ne!(at(&three), first);
        assert_eq!(clone.as_ref(), [1; 40]);
        drop((clone, two));
        let four = make(4, 50);
        let five = make(5, 10);
        assert_eq!((four.as_ref(), five.as_ref()), (&[4; 50][..], &[5; 10][..]));
        assert_eq!(three.as_ref(), [3; 40]);
        assert_eq!(spares.0.lock().unwrap().payloads.len(), 3);
    }

    #[test]
    fn long_records_are_not_remembered() {
        let spares = PayloadPool::default();
        for _ in 0..3 {
            spares.make(BYTES_MAX + 1, |_| ());
        }
        assert!(spares.0.lock().unwrap().payloads.is_empty());
        let had: Vec<NodePayload> = (0..10_000).map(|_| spares.make(1000, |_| ())).collect();
        drop(had);
        assert!(spares.0.lock().unwrap().bytes <= SPARE_BYTES_MAX);
    }
}
