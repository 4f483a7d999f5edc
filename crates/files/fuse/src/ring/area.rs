//! The memory of one place in a queue (`struct fuse_uring_req_header` of linux/fuse.h, and the payload).
//!
//! ```text
//! 0    header of the request, or of the reply      128
//! 128  the operation's own header                  128
//! 256  flags u64 | commit id u64 | payload bytes u32 | 0 u32 | 0 u64
//! ...  room to put both headers in front of the payload
//! 4096 payload: the other arguments, or the reply's body
//! ```
#![allow(
    unsafe_code,
    reason = "the kernel reads and writes this memory, by its address"
)]

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::ptr::NonNull;

use crate::wire::HEADER_BYTES;
use crate::wire::reply::REPLY_HEADER_BYTES;

const OPERATION_AT: usize = 128;
const ENTRY_AT: usize = 256;
pub(super) const HEADERS_BYTES: usize = 288;
const PAYLOAD_AT: usize = 4096;

/// Memory that the kernel uses while a command is under way, and this process otherwise.
///
/// The memory is never freed: only the end of the process is sure to end the kernel's use.
pub(super) struct RingArea {
    start: NonNull<u8>,
    payload_bytes: usize,
}

// SAFETY: the memory belongs to this value alone, apart from the kernel.
unsafe impl Send for RingArea {}

impl RingArea {
    pub(super) fn new(payload_bytes: usize) -> RingArea {
        let layout =
            Layout::from_size_align(PAYLOAD_AT + payload_bytes, PAYLOAD_AT).expect("a few megabytes");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        RingArea { start, payload_bytes }
    }

    /// Addresses and lengths of headers and payload, as in `struct iovec`.
    pub(super) fn parts(&self) -> [(u64, u64); 2] {
        let start = self.start.as_ptr() as u64;
        [
            (start, HEADERS_BYTES as u64),
            (start + PAYLOAD_AT as u64, self.payload_bytes as u64),
        ]
    }

    /// The memory. The caller says that no command is under way.
    pub(super) unsafe fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: so large is the allocation, which is initialized, and the kernel does not use it now.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), PAYLOAD_AT + self.payload_bytes) }
    }
}

/// A request as /dev/fuse would have it, in one piece, and the id with which its reply is committed. `None`:
/// lengths contradict each other.
pub(super) fn request(area: &mut [u8]) -> Option<(u64, &[u8])> {
    let number = |at: usize| Some(u32::from_ne_bytes(area.get(at..at + 4)?.try_into().ok()?) as usize);
    let (length, payload) = (number(0)?, number(ENTRY_AT + 16)?);
    let commit = u64::from_ne_bytes(area.get(ENTRY_AT + 8..ENTRY_AT + 16)?.try_into().ok()?);
    let operation = length.checked_sub(HEADER_BYTES)?.checked_sub(payload)?;
    if operation > ENTRY_AT - OPERATION_AT {
        return None;
    }
    let start = PAYLOAD_AT - operation - HEADER_BYTES;
    area.copy_within(..HEADER_BYTES, start);
    area.copy_within(OPERATION_AT..OPERATION_AT + operation, start + HEADER_BYTES);
    Some((commit, area.get(start..start + length)?))
}

/// Puts a reply where the kernel takes it. Returns `false`, and changes nothing, if there is no room.
pub(super) fn reply(area: &mut [u8], header: &[u8; REPLY_HEADER_BYTES], body: &[u8]) -> bool {
    let Some(payload) = area.get_mut(PAYLOAD_AT..PAYLOAD_AT + body.len()) else {
        return false;
    };
    payload.copy_from_slice(body);
    area[..REPLY_HEADER_BYTES].copy_from_slice(header);
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    area[ENTRY_AT + 16..ENTRY_AT + 20].copy_from_slice(&length.to_ne_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::request::{FuseOperation, FuseRequest, FuseWrite};

    fn put(area: &mut [u8], at: usize, bytes: &[u8]) {
        area[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// An area with a request of `operation`, whose own header and payload are given.
    fn area_with(operation: u32, own: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut area = vec![0; PAYLOAD_AT + 4096];
        let length = (HEADER_BYTES + own.len() + payload.len()) as u32;
        put(&mut area, 0, &length.to_ne_bytes());
        put(&mut area, 4, &operation.to_ne_bytes());
        put(&mut area, 8, &77_u64.to_ne_bytes());
        put(&mut area, OPERATION_AT, own);
        put(&mut area, PAYLOAD_AT, payload);
        put(&mut area, ENTRY_AT + 8, &78_u64.to_ne_bytes());
        put(&mut area, ENTRY_AT + 16, &(payload.len() as u32).to_ne_bytes());
        area
    }

    #[test]
    fn the_parts_of_a_request_are_put_together() {
        let mut area = area_with(1, &[], b"name\0");
        let (commit, bytes) = request(&mut area).unwrap();
        let found = FuseRequest::parse(bytes).unwrap();
        assert_eq!((commit, found.unique), (78, 77));
        assert_eq!(found.operation, FuseOperation::Lookup(b"name"));

        // Handle, offset, length, flags of the write, owner of locks, flags of the descriptor.
        let own: Vec<u8> = [
            &5_u64.to_ne_bytes()[..],
            &512_u64.to_ne_bytes(),
            &3_u32.to_ne_bytes(),
            &[0; 20],
        ]
        .concat();
        let mut area = area_with(16, &own, b"abc");
        let (_, bytes) = request(&mut area).unwrap();
        let found = FuseRequest::parse(bytes).unwrap();
        let FuseOperation::Write(FuseWrite {
            handle, offset, data, ..
        }) = found.operation
        else {
            panic!("{found:?}")
        };
        assert_eq!((handle, offset, data), (5, 512, &b"abc"[..]));
    }

    #[test]
    fn contradicting_lengths_are_refused() {
        for (length, payload) in [
            (0, 0),
            (39, 0),
            (40, 1),
            (40 + 129, 0),
            (u32::MAX, 0),
            (u32::MAX, u32::MAX - 40),
        ] {
            let mut area = area_with(1, &[], &[]);
            put(&mut area, 0, &length.to_ne_bytes());
            put(&mut area, ENTRY_AT + 16, &payload.to_ne_bytes());
            assert_eq!(request(&mut area), None, "{length}, {payload}");
        }
    }

    #[test]
    fn a_reply_fits_or_changes_nothing() {
        let mut area = area_with(1, &[], &[]);
        assert!(reply(&mut area, &[9; REPLY_HEADER_BYTES], &[8; 4096]));
        assert_eq!(area[..REPLY_HEADER_BYTES], [9; REPLY_HEADER_BYTES]);
        assert_eq!(area[ENTRY_AT + 16..ENTRY_AT + 20], 4096_u32.to_ne_bytes());
        assert!(area[PAYLOAD_AT..] == [8; 4096]);
        let before = area.clone();
        assert!(!reply(&mut area, &[7; REPLY_HEADER_BYTES], &[7; 4097]));
        assert!(area == before);
    }
}
