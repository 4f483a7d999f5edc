//! The layouts of the records in `shared.h`, which describes their fields.

use std::ffi::{c_char, c_int, c_long, c_uint};
use std::mem::{offset_of, size_of};
use std::ptr::{null, null_mut, without_provenance_mut};

use netram_heap::HeapStats;
use netram_rvm::UndeclaredStore;
use netram_shared::Node;
use netram_shared::node::{DirectCounts, RecordProgress, StrayStores};
use netram_shared::server::Span;
use netram_shared_machine::node::ReaderLag as NodeAge;
use netram_shared_machine::{NodeId, RecordNumber};

use crate::record::{CRecord, Length, RecordHead, head_of};

/// `rvm_join_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinRecord {
    pub(crate) head: RecordHead,
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
    pub(crate) capture: c_int,
    pub(crate) find: c_int,
    pub(crate) straight: c_int,
    pub(crate) fall_behind: c_int,
    pub(crate) listen: *const c_char,
    pub(crate) group: *const c_char,
    pub(crate) reserved: [Length; 2],
}

/// `rvm_node_info_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeInfoRecord {
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
pub(crate) struct LockRecord {
    pub(crate) lock: c_uint,
    pub(crate) hold: c_int,
}

/// `rvm_age_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AgeRecord {
    pub(crate) positions: u64,
    pub(crate) nanoseconds: u64,
}

/// `rvm_progress_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgressRecord {
    pub(crate) appended: u64,
    pub(crate) acked: u64,
    pub(crate) kept: u64,
}

/// `rvm_straight_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct StraightRecord {
    pub(crate) taken: u64,
    pub(crate) forgotten: u64,
    pub(crate) cast: u64,
    pub(crate) linked: u64,
    pub(crate) dropped: u64,
    pub(crate) peers: u64,
}

/// `rvm_stray_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct StrayRecord {
    pub(crate) address: *mut c_char,
    pub(crate) length: Length,
    pub(crate) count: u64,
    pub(crate) lock: c_uint,
    pub(crate) has_lock: c_int,
    pub(crate) held: c_int,
}

/// `rvm_heap_info_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeapRecord {
    pub(crate) bytes: Length,
    pub(crate) usable: Length,
    pub(crate) taken: Length,
    pub(crate) free_pages: Length,
    pub(crate) free_slots: Length,
    pub(crate) largest_free: Length,
    pub(crate) reserved: [Length; 2],
}

/// Default of a record's lock timeout, in milliseconds.
const LOCK_TIMEOUT_MS: c_long = 10_000;
const PATIENCE_MS: c_long = 30_000;

impl CRecord for JoinRecord {
    const ID: u32 = 45;

    fn fresh(from_heap: bool) -> JoinRecord {
        JoinRecord {
            head: head_of::<JoinRecord>(from_heap),
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
            capture: 0,
            find: 0,
            straight: 1,
            fall_behind: 0,
            listen: null(),
            group: null(),
            reserved: [0; 2],
        }
    }

    fn head(&mut self) -> &mut RecordHead {
        &mut self.head
    }
}

impl NodeInfoRecord {
    pub(crate) fn of(node: &Node) -> NodeInfoRecord {
        NodeInfoRecord {
            id: node.id().0,
            address: node.region().as_ptr().cast(),
            length: node.region().len() as Length,
            spans: node.spans().len() as u64,
            left_behind: node.orphans().len() as u64,
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
    pub(crate) fn of(record: Option<(NodeId, RecordNumber)>) -> NewRecord {
        let (node, number) = record.unwrap_or((NodeId(0), RecordNumber(0)));
        NewRecord {
            node: node.0,
            number: number.0,
        }
    }
}

impl AgeRecord {
    pub(crate) fn of(age: NodeAge) -> AgeRecord {
        AgeRecord {
            positions: age.positions,
            nanoseconds: age.time.0,
        }
    }
}

impl ProgressRecord {
    pub(crate) fn of(progress: RecordProgress) -> ProgressRecord {
        ProgressRecord {
            appended: progress.appended.0,
            acked: progress.acked.0,
            kept: progress.durable.0,
        }
    }
}

impl StraightRecord {
    pub(crate) fn of(counts: DirectCounts) -> StraightRecord {
        StraightRecord {
            taken: counts.applied,
            forgotten: counts.ignored,
            cast: counts.multicast,
            linked: counts.unicast,
            dropped: counts.dropped,
            peers: counts.peers as u64,
        }
    }
}

impl StrayRecord {
    pub(crate) fn of(stray: &StrayStores) -> StrayRecord {
        StrayRecord {
            address: without_provenance_mut(stray.address),
            length: stray.length as Length,
            count: stray.count as u64,
            lock: stray.lock.map_or(0, |lock| lock.0),
            has_lock: stray.lock.is_some().into(),
            held: stray.held.into(),
        }
    }

    /// Record for one of `count` runs found on a node that only reports them.
    pub(crate) fn undeclared(node: &Node, run: &UndeclaredStore, count: usize) -> StrayRecord {
        let lock = node.span_at(run.region_offset as u64).map(|span| span.lock);
        StrayRecord {
            address: without_provenance_mut(run.address),
            length: run.length as Length,
            count: count as u64,
            lock: lock.map_or(0, |lock| lock.0),
            has_lock: lock.is_some().into(),
            held: 0,
        }
    }
}

impl HeapRecord {
    pub(crate) fn of(from: &HeapStats) -> HeapRecord {
        HeapRecord {
            bytes: from.bytes,
            usable: from.bytes_usable,
            taken: from.bytes_taken,
            free_pages: from.bytes_free_pages,
            free_slots: from.bytes_free_slots,
            largest_free: from.largest_free,
            reserved: [0; 2],
        }
    }
}

// `tests/c/shared.c` checks the same numbers in the header.
const _: () = {
    assert!(size_of::<JoinRecord>() == 144);
    assert!(offset_of!(JoinRecord, insecure) == 32);
    assert!(offset_of!(JoinRecord, name) == 40);
    assert!(offset_of!(JoinRecord, log_bytes) == 64);
    assert!(offset_of!(JoinRecord, lock_timeout_ms) == 80);
    assert!(offset_of!(JoinRecord, capture) == 96);
    assert!(offset_of!(JoinRecord, listen) == 112);
    assert!(offset_of!(JoinRecord, reserved) == 128);
    assert!(size_of::<NodeInfoRecord>() == 64);
    assert!(offset_of!(NodeInfoRecord, left_behind) == 32);
    assert!(size_of::<SpanRecord>() == 24);
    assert!(size_of::<NewRecord>() == 16);
    assert!(size_of::<LockRecord>() == 8);
    assert!(size_of::<AgeRecord>() == 16);
    assert!(size_of::<ProgressRecord>() == 24);
    assert!(size_of::<StraightRecord>() == 48);
    assert!(size_of::<StrayRecord>() == 40);
    assert!(offset_of!(StrayRecord, lock) == 24);
    assert!(size_of::<HeapRecord>() == 64);
    assert!(offset_of!(HeapRecord, largest_free) == 40);
};
