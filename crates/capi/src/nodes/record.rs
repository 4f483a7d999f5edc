//! The records of `shared.h`, byte for byte. What they mean is told there.

use std::ffi::{c_char, c_int, c_long, c_uint};
use std::mem::{offset_of, size_of};
use std::ptr::{null, null_mut, without_provenance_mut};

use netram_proto::shared::node::Age as NodeAge;
use netram_proto::shared::{NodeId, Number};
use netram_shared::Node;
use netram_shared::server::Span;

use crate::record::{Head, Length, Record, head_of};

/// `rvm_join_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Join {
    pub(crate) head: Head,
    pub(crate) server: *const c_char,
    pub(crate) directory: *const c_char,
    pub(crate) key_file: *const c_char,
    pub(crate) insecure: c_int,
    pub(crate) lazy: c_int,
    pub(crate) name: *const c_char,
    pub(crate) wait: *const c_char,
    pub(crate) region: *const c_char,
    pub(crate) log_bytes: Length,
    pub(crate) pinned_bytes_max: Length,
    pub(crate) lock_timeout_ms: c_long,
    pub(crate) patience_ms: c_long,
    pub(crate) reserved: [Length; 6],
}

/// `rvm_node_info_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Info {
    pub(crate) id: u64,
    pub(crate) address: *mut c_char,
    pub(crate) length: Length,
    pub(crate) spans: u64,
    pub(crate) left_behind: u64,
    pub(crate) reserved: [Length; 3],
}

/// `rvm_span_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpanRecord {
    pub(crate) lock: c_uint,
    pub(crate) address: *mut c_char,
    pub(crate) length: Length,
}

/// `rvm_record_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NewRecord {
    pub(crate) node: u64,
    pub(crate) number: u64,
}

/// `rvm_lock_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lock {
    pub(crate) lock: c_uint,
    pub(crate) hold: c_int,
}

/// `rvm_age_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Age {
    pub(crate) positions: u64,
    pub(crate) nanoseconds: u64,
}

/// What a record has before the program chooses.
const LOCK_TIMEOUT_MS: c_long = 10_000;
const PATIENCE_MS: c_long = 30_000;

impl Record for Join {
    const ID: u32 = 45;

    fn fresh(from_heap: bool) -> Join {
        Join {
            head: head_of::<Join>(from_heap),
            server: null(),
            directory: null(),
            key_file: null(),
            insecure: 0,
            lazy: 0,
            name: null(),
            wait: null(),
            region: null(),
            log_bytes: 0,
            pinned_bytes_max: 0,
            lock_timeout_ms: LOCK_TIMEOUT_MS,
            patience_ms: PATIENCE_MS,
            reserved: [0; 6],
        }
    }

    fn head(&mut self) -> &mut Head {
        &mut self.head
    }
}

impl Info {
    pub(crate) fn of(node: &Node) -> Info {
        Info {
            id: node.id().0,
            address: node.region().as_ptr().cast(),
            length: node.region().len() as Length,
            spans: node.spans().len() as u64,
            left_behind: node.left_behind().len() as u64,
            reserved: [0; 3],
        }
    }
}

impl SpanRecord {
    pub(crate) fn of(node: &Node, span: &Span) -> SpanRecord {
        let start = node.region().as_ptr().addr();
        SpanRecord {
            lock: span.lock.0,
            address: match usize::try_from(span.offset) {
                Ok(offset) => without_provenance_mut(start + offset),
                Err(_) => null_mut(),
            },
            length: span.length,
        }
    }
}

impl NewRecord {
    pub(crate) fn of(record: Option<(NodeId, Number)>) -> NewRecord {
        let (node, number) = record.unwrap_or((NodeId(0), Number(0)));
        NewRecord {
            node: node.0,
            number: number.0,
        }
    }
}

impl Age {
    pub(crate) fn of(age: NodeAge) -> Age {
        Age {
            positions: age.positions,
            nanoseconds: age.time.0,
        }
    }
}

// tests/c/shared.c says the same of the header.
const _: () = {
    assert!(size_of::<Join>() == 144);
    assert!(offset_of!(Join, insecure) == 32);
    assert!(offset_of!(Join, name) == 40);
    assert!(offset_of!(Join, log_bytes) == 64);
    assert!(offset_of!(Join, lock_timeout_ms) == 80);
    assert!(offset_of!(Join, reserved) == 96);
    assert!(size_of::<Info>() == 64);
    assert!(offset_of!(Info, left_behind) == 32);
    assert!(size_of::<SpanRecord>() == 24);
    assert!(size_of::<NewRecord>() == 16);
    assert!(size_of::<Lock>() == 8);
    assert!(size_of::<Age>() == 16);
};
