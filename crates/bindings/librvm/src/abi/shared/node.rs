//! Nodes: joining, leaving, and queries.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use netram_shared_machine::LockId;
use netram_shared_machine::message::RecordOutcome;

use super::super::{guarded, heap, is_usable, name, put, record};
use super::join::chosen;
use super::{Opaque, handle, milliseconds, must_be_usable, opaque, wrong};
use crate::code::ReturnCode;
use crate::failure::{CallFailure, failed_lock, failed_stray};
use crate::nodes::{
    JoinRecord, NODES, NewRecord, NodeInfoRecord, ProgressRecord, SpanRecord, StraightRecord, StrayRecord,
    check_alive, left_behind, nth_span, outcome, span_at, span_of, wait_version,
};
use crate::record::Length;

#[unsafe(no_mangle)]
extern "C" fn rvm_error_lock() -> c_uint {
    failed_lock().unwrap_or(0)
}

/// Returning an `rvm_return_t` failure would replace the failure that is asked for.
#[unsafe(no_mangle)]
extern "C" fn rvm_error_stray(stray: *mut StrayRecord) -> c_int {
    match failed_stray() {
        Some(found) if is_usable(stray) => {
            put(stray, StrayRecord::of(&found));
            1
        }
        _ => 0,
    }
}

#[unsafe(no_mangle)]
extern "C" fn rvm_init_join(options: *mut JoinRecord) {
    heap::init(options);
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_join(options: *const JoinRecord, node: *mut Opaque) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(node)?;
        let options =
            record(options).ok_or_else(|| wrong("`options` is not a record initialised by rvm_init_join"))?;
        let handle = NODES.join(chosen(&options)?)?;
        put(node, opaque(handle));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_info(node: Opaque, info: *mut NodeInfoRecord) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(info)?;
        let node = NODES.node(handle(node)?)?;
        put(info, NodeInfoRecord::of(&node));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_span(node: Opaque, lock: c_uint, span: *mut SpanRecord) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(span)?;
        let node = NODES.node(handle(node)?)?;
        put(span, SpanRecord::of(&node, span_of(&node, lock)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_nth_span(node: Opaque, place: Length, span: *mut SpanRecord) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(span)?;
        let node = NODES.node(handle(node)?)?;
        put(span, SpanRecord::of(&node, nth_span(&node, place)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_span_at(node: Opaque, address: *const c_void, span: *mut SpanRecord) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(span)?;
        let node = NODES.node(handle(node)?)?;
        put(span, SpanRecord::of(&node, span_at(&node, address.addr())?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_alive(node: Opaque) -> c_int {
    guarded(|| {
        NODES.ready()?;
        check_alive(&*NODES.node(handle(node)?)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_version(node: Opaque, lock: c_uint, version: *mut u64) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(version)?;
        let node = NODES.node(handle(node)?)?;
        span_of(&node, lock)?;
        put(version, node.version(LockId(lock)).0);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_wait_version(node: Opaque, lock: c_uint, version: u64, timeout_ms: c_long) -> c_int {
    guarded(|| {
        NODES.ready()?;
        let node = NODES.node(handle(node)?)?;
        wait_version(&node, lock, version, milliseconds(timeout_ms))
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_pull(node: Opaque) -> c_int {
    guarded(|| {
        NODES.ready()?;
        let node = NODES.node(handle(node)?)?;
        check_alive(&node)?;
        node.pull();
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_progress(node: Opaque, progress: *mut ProgressRecord) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(progress)?;
        let node = NODES.node(handle(node)?)?;
        put(progress, ProgressRecord::of(node.progress()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_straight(node: Opaque, straight: *mut StraightRecord) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(straight)?;
        let node = NODES.node(handle(node)?)?;
        put(straight, StraightRecord::of(node.direct_counts()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_left_behind(node: Opaque, place: Length, target: *mut c_char, size: Length) -> c_int {
    guarded(|| {
        NODES.ready()?;
        if size > 0 {
            must_be_usable(target)?;
        }
        let node = NODES.node(handle(node)?)?;
        let text = left_behind(&node, place)?;
        tell(&text, target, size);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_uncounted(node: Opaque, target: *mut c_char, size: Length) -> c_int {
    guarded(|| {
        NODES.ready()?;
        if size > 0 {
            must_be_usable(target)?;
        }
        let why = NODES.node(handle(node)?)?.uncounted();
        tell(&why.map_or_else(String::new, |why| why.to_string()), target, size);
        Ok(())
    })
}

/// Copies a text to the caller's buffer of `size` bytes, cut to fit, with a terminating zero.
fn tell(text: &str, target: *mut c_char, size: Length) {
    let Some(room) = (size as usize).checked_sub(1) else {
        return;
    };
    let length = text.len().min(room);
    // SAFETY: `length` bytes and the zero are at most `size`, which the header requires there.
    unsafe {
        target
            .cast::<u8>()
            .copy_from_nonoverlapping(text.as_ptr(), length)
    };
    // SAFETY: as above.
    let end = unsafe { target.add(length) };
    put(end, 0);
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_undeclared(
    node: Opaque,
    found: *mut StrayRecord,
    room: Length,
    count: *mut Length,
) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(count)?;
        if room > 0 {
            must_be_usable(found)?;
        }
        let node = NODES.node(handle(node)?)?;
        let undeclared = node.region().take_undeclared();
        for (at, run) in undeclared.iter().enumerate().take(room as usize) {
            // SAFETY: the header requires an array of `room` records.
            let place = unsafe { found.add(at) };
            put(place, StrayRecord::undeclared(&node, run, undeclared.len()));
        }
        put(count, undeclared.len() as Length);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_save_copy(node: Opaque, directory: *const c_char) -> c_int {
    guarded(|| {
        NODES.ready()?;
        let directory =
            name(directory).ok_or_else(|| CallFailure::new(ReturnCode::Range, "`directory` is NULL"))?;
        let node = NODES.node(handle(node)?)?;
        Ok(node.save_copy(&directory)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_outcome(
    node: Opaque,
    asked: *const NewRecord,
    timeout_ms: c_long,
    fate: *mut c_int,
) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(fate)?;
        must_be_usable(asked)?;
        // SAFETY: it is neither NULL nor misaligned, and the header requires a record there.
        let asked = unsafe { asked.read() };
        let node = NODES.node(handle(node)?)?;
        let target = match outcome(&node, asked, milliseconds(timeout_ms))? {
            RecordOutcome::Open => 0,
            RecordOutcome::Committed => 1,
            RecordOutcome::Aborted => 2,
            RecordOutcome::Forgotten => 3,
        };
        put(fate, target);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_leave(node: Opaque) -> c_int {
    guarded(|| {
        NODES.ready()?;
        NODES.end_node(handle(node)?, true)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_abandon(node: Opaque) -> c_int {
    guarded(|| {
        NODES.ready()?;
        NODES.end_node(handle(node)?, false)
    })
}
