//! The functions of `shared.h`.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::path::PathBuf;
use std::ptr::without_provenance_mut;
use std::time::Duration;

use netram_proto::limit::STAMP_LOCKS_MAX;
use netram_proto::shared::message::Fate;
use netram_proto::shared::{Hold, LockId, RegionId};
use netram_shared::Options;
use netram_shared::node::AcquireError;
use netram_transport::{ClusterKey, Security};

use super::calls::restoring;
use super::{guarded, guarded_in_memory, heap, is_usable, name, put, record};
use crate::code::Code;
use crate::failure::{Failure, failed_lock};
use crate::nodes::{
    Age, Info, Join, Lock, NODES, NewRecord, SpanRecord, check_alive, outcome, span_at, span_of, wait_version,
};
use crate::record::Length;
use crate::slots::Handle;

/// A handle of C's: a number, never followed.
type Opaque = *mut c_void;

const SHARED: c_int = 1;
const EXCLUSIVE: c_int = 2;

#[unsafe(no_mangle)]
extern "C" fn rvm_error_lock() -> c_uint {
    failed_lock().unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn rvm_init_join(options: *mut Join) {
    heap::init(options);
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_join(options: *const Join, node: *mut Opaque) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(node)?;
        let options =
            record(options).ok_or_else(|| wrong("no record that rvm_init_join has seen is given"))?;
        let handle = NODES.join(chosen(&options)?)?;
        put(node, opaque(handle));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_node_info(node: Opaque, info: *mut Info) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(info)?;
        let node = NODES.node(handle(node)?)?;
        put(info, Info::of(&node));
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
        // SAFETY: it is neither NULL nor misaligned, and the header asks for a record there.
        let asked = unsafe { asked.read() };
        let node = NODES.node(handle(node)?)?;
        let told = match outcome(&node, asked, milliseconds(timeout_ms))? {
            Fate::Open => 0,
            Fate::Committed => 1,
            Fate::Aborted => 2,
            Fate::Forgotten => 3,
        };
        put(fate, told);
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

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_begin(node: Opaque, mode: c_int, txn: *mut Opaque) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(txn)?;
        let begun = NODES.begin(handle(node)?, restoring(mode)?)?;
        put(txn, opaque(begun));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_set_timeout(txn: Opaque, timeout_ms: c_long) -> c_int {
    guarded(|| {
        NODES.ready()?;
        NODES.set_timeout(handle(txn)?, milliseconds(timeout_ms))
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_acquire(txn: Opaque, lock: c_uint, hold: c_int) -> c_int {
    guarded(|| {
        NODES.ready()?;
        NODES.acquire(handle(txn)?, lock, holding(hold)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_acquire_all(txn: Opaque, locks: *const Lock, count: Length) -> c_int {
    guarded(|| {
        NODES.ready()?;
        let txn = handle(txn)?;
        let count = usize::try_from(count)
            .ok()
            .filter(|count| *count <= STAMP_LOCKS_MAX);
        let count = count.ok_or(AcquireError::TooMany(STAMP_LOCKS_MAX))?;
        if count > 0 {
            must_be_usable(locks)?;
        }
        let wanted = (0..count).map(|at| {
            // SAFETY: the array is neither NULL nor misaligned, and the header asks for `count` locks in it.
            let place = unsafe { locks.add(at) };
            // SAFETY: as above.
            let Lock { lock, hold } = unsafe { place.read() };
            Ok((LockId(lock), holding(hold)?))
        });
        NODES.acquire_all(txn, &wanted.collect::<Result<Vec<_>, Failure>>()?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_set_range(txn: Opaque, base: *const c_void, length: Length) -> c_int {
    guarded_in_memory(|| {
        NODES.ready()?;
        NODES.declare(handle(txn)?, base.addr(), length as usize, || ())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_modify_bytes(
    txn: Opaque,
    base: *mut c_void,
    source: *const c_void,
    length: Length,
) -> c_int {
    guarded_in_memory(|| {
        NODES.ready()?;
        let (txn, length) = (handle(txn)?, length as usize);
        if source.is_null() && length > 0 {
            return Err(Failure::new(Code::Range, "there is no source to copy from"));
        }
        let (target, source): (*mut u8, *const u8) = (base.cast(), source.cast());
        NODES.declare(txn, base.addr(), length, || {
            if length > 0 {
                // SAFETY: `length` bytes at `base` were admitted: they are in the region, which the transaction keeps
                // mapped, under a lock that it holds, so nobody else stores there. The header asks for as many at the
                // source, which do not overlap them.
                unsafe { target.copy_from(source, length) };
            }
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_commit(txn: Opaque, record: *mut NewRecord) -> c_int {
    guarded(|| {
        NODES.ready()?;
        let txn = handle(txn)?;
        if !record.is_null() {
            must_be_usable(record)?;
        }
        let (named, committed) = NODES.commit(txn);
        if let Some(named) = named.filter(|_| !record.is_null()) {
            put(record, named);
        }
        committed
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_abort(txn: Opaque) -> c_int {
    guarded(|| {
        NODES.ready()?;
        NODES.abort(handle(txn)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_reader_begin(node: Opaque, reader: *mut Opaque) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(reader)?;
        let begun = NODES.begin_reading(handle(node)?)?;
        put(reader, opaque(begun));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_reader_check(reader: Opaque) -> c_int {
    guarded_in_memory(|| {
        NODES.ready()?;
        NODES.check_reader(handle(reader)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_reader_read(
    reader: Opaque,
    base: *const c_void,
    target: *mut c_void,
    length: Length,
) -> c_int {
    guarded(|| {
        NODES.ready()?;
        let (reader, length) = (handle(reader)?, length as usize);
        if target.is_null() && length > 0 {
            return Err(Failure::new(Code::Range, "there is no place to copy to"));
        }
        let (source, target): (*const u8, *mut u8) = (base.cast(), target.cast());
        NODES.read(reader, base.addr(), length, || {
            if length > 0 {
                // SAFETY: `length` bytes at `base` are in the region, which the reader keeps mapped, and the library
                // stores to none of them meanwhile. The header asks for room for as many at the target.
                unsafe { source.copy_to(target, length) };
            }
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_reader_accept(reader: Opaque) -> c_int {
    guarded(|| {
        NODES.ready()?;
        NODES.accept(handle(reader)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_reader_age(reader: Opaque, age: *mut Age) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(age)?;
        put(age, NODES.age(handle(reader)?)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_reader_end(reader: Opaque) -> c_int {
    guarded(|| {
        NODES.ready()?;
        NODES.end_reading(handle(reader)?)
    })
}

/// What a record chooses.
fn chosen(join: &Join) -> Result<Options, Failure> {
    let server = text(join.server, "server")?.ok_or_else(|| wrong("`server` is not set"))?;
    let server = server
        .parse()
        .map_err(|reason| wrong(format!("server {server:?}: {reason}")))?;
    let directory = name(join.directory).ok_or_else(|| wrong("`directory` is not set"))?;
    let mut options = Options::new(
        server,
        security(name(join.key_file), join.insecure != 0)?,
        directory,
    );
    if let Some(name) = text(join.name, "name")? {
        options.name = name;
    }
    if let Some(wait) = text(join.wait, "wait")? {
        options.wait = wait
            .parse()
            .map_err(|reason| wrong(format!("wait {wait:?}: {reason}")))?;
    }
    if let Some(id) = text(join.region, "region")? {
        let id =
            u128::from_str_radix(&id, 16).map_err(|_| wrong(format!("region {id:?} is no region's id")))?;
        options.region = Some(RegionId(id));
    }
    if join.log_bytes != 0 {
        options.log_bytes = join.log_bytes;
    }
    if join.pinned_bytes_max != 0 {
        options.pinned_bytes_max = join.pinned_bytes_max as usize;
    }
    options.lazy = join.lazy != 0;
    options.lock_timeout = milliseconds(join.lock_timeout_ms);
    options.patience = milliseconds(join.patience_ms);
    Ok(options)
}

fn security(key_file: Option<PathBuf>, insecure: bool) -> Result<Security, Failure> {
    match (key_file, insecure) {
        (Some(file), false) => {
            let key = ClusterKey::load(&file).map_err(|error| wrong(error.to_string()))?;
            Ok(Security::Key(key))
        }
        (None, true) => Ok(Security::Insecure),
        (None, false) => Err(wrong(
            "name the cluster's key in `key_file`, or set `insecure` on this machine alone",
        )),
        (Some(_), true) => Err(wrong("`insecure` contradicts `key_file`; drop one of them")),
    }
}

fn text(pointer: *const c_char, field: &str) -> Result<Option<String>, Failure> {
    let text = name(pointer).map(|text| text.into_os_string().into_string());
    text.transpose()
        .map_err(|_| wrong(format!("`{field}` is not UTF-8")))
}

fn holding(hold: c_int) -> Result<Hold, Failure> {
    match hold {
        SHARED => Ok(Hold::Shared),
        EXCLUSIVE => Ok(Hold::Exclusive),
        other => Err(Failure::new(
            Code::Mode,
            format!("a lock is held rvm_shared or rvm_exclusive, not {other}"),
        )),
    }
}

fn handle(opaque: Opaque) -> Result<Handle, Failure> {
    Handle::from_address(opaque.addr())
        .ok_or_else(|| Failure::new(Code::Handle, "no node, transaction or reader is given, but NULL"))
}

fn opaque(handle: Handle) -> Opaque {
    without_provenance_mut(handle.to_address())
}

fn milliseconds(count: c_long) -> Duration {
    Duration::from_millis(u64::try_from(count).unwrap_or(0))
}

fn must_be_usable<T>(pointer: *const T) -> Result<(), Failure> {
    match is_usable(pointer) {
        true => Ok(()),
        false => Err(Failure::new(
            Code::Range,
            "NULL or a misaligned address is given where a record belongs",
        )),
    }
}

fn wrong(text: impl Into<String>) -> Failure {
    Failure::new(Code::Options, text)
}
