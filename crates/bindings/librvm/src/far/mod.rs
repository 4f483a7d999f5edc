//! Far memory: arenas by handle, and their allocations by address.

mod record;
mod words;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use netram_far::{Arena, ArenaConfig, ArenaError, FarAccessError, FarVec, FarVecError, RemotePagesOpenError};

pub(crate) use self::record::{FarOptions, FarStatus};
pub(crate) use self::words::FarElements;
use crate::abi::{ForkPageMark, blocked};
use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::lock;
use crate::slots::{ObjectHandle, ObjectTable};

/// The arenas of this process.
pub(crate) static FARS: FarTable = FarTable::new();

/// All arenas of a process.
pub(crate) struct FarTable {
    fork: ForkPageMark,
    open: ObjectTable<Arc<FarArena>>,
}

/// An arena and its allocations. The arena ends when both have ended.
struct FarArena {
    arena: Arena,
    allocations: Mutex<BTreeMap<usize, Arc<FarAllocation>>>,
}

/// An allocation, until it is freed. Locked shared to gather, exclusively to scatter and to free; the
/// program's own loads and stores need no lock.
type FarAllocation = RwLock<Option<FarVec<u8>>>;

impl FarTable {
    const fn new() -> FarTable {
        FarTable {
            fork: ForkPageMark::new(),
            open: ObjectTable::new(),
        }
    }

    /// Refuses calls in a child of `fork`, which has neither the threads nor the pages.
    pub(crate) fn ready(&self) -> Result<(), CallFailure> {
        match self.fork.is_child() {
            false => Ok(()),
            true => Err(CallFailure::new(
                ReturnCode::NotInitialised,
                "this process is a forked child and does not have its parent's far memory; open new far memory after fork, or call exec",
            )),
        }
    }

    pub(crate) fn open(&self, config: ArenaConfig) -> Result<ObjectHandle, CallFailure> {
        self.fork.set()?;
        let far = FarArena {
            arena: blocked(|| Arena::open(config))?,
            allocations: Mutex::default(),
        };
        Ok(self.open.insert(Arc::new(far)))
    }

    /// Allocates `bytes` zeros; returns their address.
    pub(crate) fn alloc(&self, handle: ObjectHandle, bytes: usize) -> Result<usize, CallFailure> {
        let far = self.find(handle)?;
        let memory: FarVec<u8> = FarVec::zeros(&far.arena, bytes)?;
        let address = memory.as_ptr().addr();
        lock(&far.allocations).insert(address, Arc::new(RwLock::new(Some(memory))));
        Ok(address)
    }

    pub(crate) fn free(&self, handle: ObjectHandle, address: usize) -> Result<(), CallFailure> {
        let far = self.find(handle)?;
        // Removed under the lock, and returned to lenders without it, when no gathering uses it any more.
        let given = lock(&far.allocations).remove(&address);
        let given = given.ok_or_else(|| nothing_at(address))?;
        let memory = given.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(memory);
        Ok(())
    }

    pub(crate) fn status(&self, handle: ObjectHandle) -> Result<FarStatus, CallFailure> {
        Ok(FarStatus::of(&self.find(handle)?.arena))
    }

    pub(crate) fn close(&self, handle: ObjectHandle) -> Result<(), CallFailure> {
        self.open.take(handle).map(drop).ok_or_else(ended)
    }

    fn find(&self, handle: ObjectHandle) -> Result<Arc<FarArena>, CallFailure> {
        self.open.with(handle, |far| Arc::clone(far)).ok_or_else(ended)
    }
}

fn nothing_at(address: usize) -> CallFailure {
    CallFailure::new(
        ReturnCode::Range,
        format!("{address:#x} is not an allocation of this far memory, or was already freed"),
    )
}

fn ended() -> CallFailure {
    CallFailure::new(
        ReturnCode::Handle,
        "the far memory does not exist: it was closed, or the handle is not from rvm_far_open",
    )
}

impl From<ArenaError> for CallFailure {
    fn from(error: ArenaError) -> CallFailure {
        match &error {
            ArenaError::BadConfig { .. } => CallFailure::of(ReturnCode::Options, error),
            ArenaError::Kernel { .. } => CallFailure::io(libc::ENOSYS, error),
            ArenaError::Refused { source } => CallFailure::system(source, &error),
            ArenaError::System { source, .. } => CallFailure::system(source, format!("{error}: {source}")),
            ArenaError::RemotePages(
                RemotePagesOpenError::Spill { source, .. } | RemotePagesOpenError::System { source, .. },
            ) => CallFailure::system(source, format!("{error}: {source}")),
            ArenaError::RemotePages(_) => CallFailure::of(ReturnCode::Options, error),
        }
    }
}

impl From<FarVecError> for CallFailure {
    fn from(error: FarVecError) -> CallFailure {
        match error {
            FarVecError::Addresses { .. } => CallFailure::new(
                ReturnCode::NoMemory,
                format!("{error}; open it with more `bytes`, or free some"),
            ),
            FarVecError::Full { .. } | FarVecError::Access(_) => CallFailure::of(ReturnCode::Internal, error),
        }
    }
}

impl From<FarAccessError> for CallFailure {
    fn from(error: FarAccessError) -> CallFailure {
        match error {
            FarAccessError::Lost(_) => CallFailure::io(libc::EIO, error),
            FarAccessError::NoRoom { .. } => CallFailure::of(ReturnCode::NoMemory, error),
        }
    }
}
