//! Far memory, each by its handle, and what was given of it, by its address.

mod record;
mod words;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use netram_far::{AccessError, Arena, ArenaConfig, ArenaError, FarVec, GrowError, OpenError};

pub(crate) use self::record::{FarOptions, FarStatus};
pub(crate) use self::words::Elements;
use crate::abi::{ForkMark, blocked};
use crate::code::Code;
use crate::failure::Failure;
use crate::lock;
use crate::slots::{Handle, Slots};

/// This process's far memory.
pub(crate) static FARS: Fars = Fars::new();

/// All far memory of a process.
pub(crate) struct Fars {
    fork: ForkMark,
    open: Slots<Arc<Far>>,
}

/// An arena, and what was given of it. The arena ends with the last of both.
struct Far {
    arena: Arena,
    given: Mutex<BTreeMap<usize, Arc<Given>>>,
}

/// What was given, until it is given back. Held to gather, and alone to scatter and to give it back: the program's own loads and stores have its address, and need no lock.
type Given = RwLock<Option<FarVec<u8>>>;

impl Fars {
    const fn new() -> Fars {
        Fars {
            fork: ForkMark::new(),
            open: Slots::new(),
        }
    }

    /// Refuses calls in a child of `fork`, which has neither the threads nor the pages.
    pub(crate) fn ready(&self) -> Result<(), Failure> {
        match self.fork.is_child() {
            false => Ok(()),
            true => Err(Failure::new(
                Code::NotInitialised,
                "this process is a child of one that has far memory, and has none of it; open its own after fork, or call exec",
            )),
        }
    }

    pub(crate) fn open(&self, config: ArenaConfig) -> Result<Handle, Failure> {
        self.fork.set()?;
        let far = Far {
            arena: blocked(|| Arena::open(config))?,
            given: Mutex::default(),
        };
        Ok(self.open.insert(Arc::new(far)))
    }

    /// So many zeros; where they begin.
    pub(crate) fn alloc(&self, handle: Handle, bytes: usize) -> Result<usize, Failure> {
        let far = self.find(handle)?;
        let memory: FarVec<u8> = FarVec::zeros(&far.arena, bytes)?;
        let address = memory.as_ptr().addr();
        lock(&far.given).insert(address, Arc::new(RwLock::new(Some(memory))));
        Ok(address)
    }

    pub(crate) fn free(&self, handle: Handle, address: usize) -> Result<(), Failure> {
        let far = self.find(handle)?;
        // Taken out under the lock, and given back to lenders without it, when nobody gathers of it any more.
        let given = lock(&far.given).remove(&address);
        let given = given.ok_or_else(|| nothing_at(address))?;
        let memory = given.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(memory);
        Ok(())
    }

    pub(crate) fn status(&self, handle: Handle) -> Result<FarStatus, Failure> {
        Ok(FarStatus::of(&self.find(handle)?.arena))
    }

    pub(crate) fn close(&self, handle: Handle) -> Result<(), Failure> {
        self.open.take(handle).map(drop).ok_or_else(ended)
    }

    fn find(&self, handle: Handle) -> Result<Arc<Far>, Failure> {
        self.open.with(handle, |far| Arc::clone(far)).ok_or_else(ended)
    }
}

fn nothing_at(address: usize) -> Failure {
    Failure::new(
        Code::Range,
        format!("nothing was given at {address:#x} of this far memory, or it has been given back"),
    )
}

fn ended() -> Failure {
    Failure::new(
        Code::Handle,
        "there is no such far memory: it has been closed, or rvm_far_open did not give it",
    )
}

impl From<ArenaError> for Failure {
    fn from(error: ArenaError) -> Failure {
        match &error {
            ArenaError::BadConfig { .. } => Failure::of(Code::Options, error),
            ArenaError::Kernel { .. } => Failure::io(libc::ENOSYS, error),
            ArenaError::Refused { source } => Failure::system(source, &error),
            ArenaError::System { source, .. } => Failure::system(source, format!("{error}: {source}")),
            ArenaError::Depot(OpenError::Spill { source, .. } | OpenError::System { source, .. }) => {
                Failure::system(source, format!("{error}: {source}"))
            }
            ArenaError::Depot(_) => Failure::of(Code::Options, error),
        }
    }
}

impl From<GrowError> for Failure {
    fn from(error: GrowError) -> Failure {
        match error {
            GrowError::Addresses { .. } => Failure::new(
                Code::NoMemory,
                format!("{error}; open it with more `bytes`, or free some"),
            ),
            GrowError::Full { .. } | GrowError::Access(_) => Failure::of(Code::Internal, error),
        }
    }
}

impl From<AccessError> for Failure {
    fn from(error: AccessError) -> Failure {
        match error {
            AccessError::Lost(_) => Failure::io(libc::EIO, error),
            AccessError::NoRoom { .. } => Failure::of(Code::NoMemory, error),
        }
    }
}
