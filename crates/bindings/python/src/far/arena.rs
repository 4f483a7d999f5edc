//! Arenas: opening one, allocating memory of it, and its status.

use std::path::PathBuf;

use netram_far::{ArenaConfig, ArenaError, FarVec, FarVecError, RemotePagesConfig, Replacement, WordAccess};
use netram_far_machine::limit::PAGE_BYTES;
use netram_journal::JournalSettings;
use netram_transport::{NetAddress, WaitPolicy};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::block::{FarBlock, FarMemory};
use crate::error;
use crate::fork::Generation;
use crate::nodes::seconds;
use crate::open::{parse, security};
use crate::size::SizeArgument;

/// A range of addresses, part of which has local memory, while the rest is at lenders.
///
/// The arena ends, and its lenders are notified, when it and all memory of it are gone.
#[pyclass(frozen, module = "netram._netram")]
pub(crate) struct Arena {
    arena: netram_far::Arena,
    size: u64,
    generation: Generation,
}

/// Status of an arena: numbers of pages of 4 KiB, and counters since the opening.
#[pyclass(frozen, get_all, module = "netram._netram")]
#[derive(Clone, Debug)]
pub(crate) struct ArenaStatus {
    /// Pages with local memory.
    used: u32,
    /// Part of the cap that compressed pages take, in pages.
    packed: u32,
    /// Part of the cap that elements take which were written to remote pages, in pages.
    patched: u32,
    /// Cap of local memory, in pages.
    cap: u32,
    /// Pages that wait here until lenders have them.
    aside: u64,
    /// Pages with fewer copies than configured.
    short: u64,
    /// Pages that every lender has lost.
    lost: u64,
    /// Lenders with a connected session.
    linked: usize,
    /// Accesses that found a page not in local memory.
    faults: u64,
    /// Pages that came from a lender.
    fetched: u64,
    /// Pages that were requested in advance.
    ahead: u64,
    /// Pages that were sent away, or dropped because lenders have them.
    sent: u64,
    /// Blocks of 16 bytes that were read without their pages.
    words: u64,
    /// Blocks of 16 bytes that were written without their pages.
    written: u64,
}

/// Setting for the access to elements without their pages.
#[derive(FromPyObject)]
pub(crate) enum WordAccessArgument {
    Count(u32),
    Name(String),
}

impl WordAccessArgument {
    fn access(words: Option<WordAccessArgument>) -> PyResult<WordAccess> {
        match words {
            None => Ok(WordAccess::Never),
            Some(WordAccessArgument::Count(count)) => Ok(WordAccess::Counted(count)),
            Some(WordAccessArgument::Name(name)) if name == "measured" => Ok(WordAccess::Measured),
            Some(WordAccessArgument::Name(name)) => Err(PyValueError::new_err(format!(
                "words {name:?} does not exist; pass a number from 1 to 256, or \"measured\""
            ))),
        }
    }
}

#[pymethods]
impl ArenaStatus {
    fn __repr__(&self) -> String {
        let ArenaStatus {
            used,
            cap,
            faults,
            fetched,
            lost,
            linked,
            ..
        } = self;
        format!(
            "<netram.far.ArenaStatus: {used} of {cap} pages here, {faults} faults, {fetched} fetched, {lost} lost, {linked} lenders>"
        )
    }
}

/// Open an arena of size bytes of addresses, of which at most local bytes have memory here; the rest is at
/// lenders.
///
/// lenders: their addresses, "tcp://HOST:PORT"; by default those of NETRAM_LENDERS. key_file: the cluster
/// key's file, by default that of NETRAM_KEY_FILE, or /etc/netram/key; insecure=True works without one, on
/// this machine only. copies: number of lenders that hold each page, 1 or 2; with 2 the death of one
/// loses no page. per_lender: most bytes at each lender. spill: a directory on a local disk for a file that
/// holds the second copy with one lender, and the only copy without lenders; spill_size: its most bytes.
///
/// words: netram.far.gather() and scatter() leave a page remote until this many blocks of 16 bytes of it were
/// used, or "measured"; by default pages are transferred whole. patched: local bytes for elements scattered
/// so. hidden: local bytes for pages on their way out, at most half; by default an eighth. packed: local
/// bytes for pages kept compressed; by default a quarter. replacement: which page leaves, "dueling", "fifo",
/// "clock", "lru" or "random". threads: number of faults served at once. user_faults_only=True needs no right
/// to userfaultfd, but system calls on remote pages, such as reading a file into an array, fail with EFAULT.
/// patience: seconds that an allocation waits while no lender has room.
///
/// Returns at once; lenders are connected in the background. Raises OpenError.
#[pyfunction]
#[pyo3(signature = (size, local, *, lenders = None, key_file = None, insecure = false, copies = 2, per_lender = None,
    spill = None, spill_size = None, hidden = None, packed = None, words = None, patched = None, replacement = "dueling", threads = 4, user_faults_only = false, wait = None, patience = 30.0))]
#[allow(
    clippy::too_many_arguments,
    reason = "they are Python's keywords, each optional"
)]
pub(crate) fn open_arena(
    py: Python<'_>,
    size: SizeArgument,
    local: SizeArgument,
    lenders: Option<Vec<String>>,
    key_file: Option<PathBuf>,
    insecure: bool,
    copies: usize,
    per_lender: Option<SizeArgument>,
    spill: Option<PathBuf>,
    spill_size: Option<SizeArgument>,
    hidden: Option<SizeArgument>,
    packed: Option<SizeArgument>,
    words: Option<WordAccessArgument>,
    patched: Option<SizeArgument>,
    replacement: &str,
    threads: usize,
    user_faults_only: bool,
    wait: Option<&str>,
    patience: f64,
) -> PyResult<Arena> {
    let lenders = match lenders {
        Some(named) => named
            .iter()
            .map(|one| parse("lenders", one))
            .collect::<PyResult<_>>()?,
        None => lenders_in_environment()?,
    };
    // Without lenders there is no one to hide anything from.
    let insecure = insecure || lenders.is_empty() && key_file.is_none();
    let mut depot = RemotePagesConfig {
        lenders,
        security: security(key_file, insecure, |cause| error::open_error(py, cause))?,
        copies,
        spill,
        ..RemotePagesConfig::default()
    };
    if let Some(SizeArgument(bytes)) = spill_size {
        depot.spill_bytes = bytes;
    }
    if let Some(SizeArgument(bytes)) = per_lender {
        depot.pages_max = u32::try_from(bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX);
    }
    let mut config = ArenaConfig {
        bytes: size.0,
        local_bytes: local.0,
        inactive_bytes: hidden.map(|size| size.0),
        packed_bytes: packed.map(|size| size.0),
        patched_bytes: patched.map(|size| size.0),
        words: WordAccessArgument::access(words)?,
        replacement: self::replacement(replacement)?,
        handlers: threads,
        user_faults_only,
        patience: seconds(patience)?,
        ..ArenaConfig::default()
    };
    if let Some(wait) = wait {
        let wait: WaitPolicy = parse("wait", wait)?;
        (config.wait, depot.wait) = (wait, wait);
    }
    config.remote_pages = depot;
    let arena = py.detach(|| netram_far::Arena::open(config));
    Ok(Arena {
        arena: arena.map_err(|error| refused(py, &error))?,
        size: size.0,
        generation: Generation::now(),
    })
}

fn replacement(name: &str) -> PyResult<Replacement> {
    match name {
        "dueling" => Ok(Replacement::Dueling),
        "fifo" => Ok(Replacement::Fifo),
        "clock" => Ok(Replacement::Clock),
        "lru" => Ok(Replacement::Lru),
        "random" => Ok(Replacement::Random),
        other => Err(PyValueError::new_err(format!(
            "replacement {other:?} does not exist; choose \"dueling\", \"fifo\", \"clock\", \"lru\" or \"random\""
        ))),
    }
}

fn refused(py: Python<'_>, error: &ArenaError) -> PyErr {
    match std::error::Error::source(error) {
        // The message of the cause says what was attempted.
        Some(cause) if !matches!(error, ArenaError::Refused { .. } | ArenaError::RemotePages(_)) => {
            error::open_error(py, format_args!("{error}: {cause}"))
        }
        _ => error::open_error(py, error),
    }
}

impl Arena {
    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        match self.generation.is_past() {
            false => Ok(()),
            true => Err(error::closed(
                py,
                "a forked child does not have its parent's far memory; open a new arena",
            )),
        }
    }
}

#[pymethods]
impl Arena {
    /// Allocate size bytes of zeros. Raises NoRoom if not enough adjacent addresses are free.
    fn memory(&self, py: Python<'_>, size: SizeArgument) -> PyResult<Py<FarMemory>> {
        self.check_process(py)?;
        let bytes = usize::try_from(size.0)
            .map_err(|_| PyValueError::new_err("the size exceeds the address space"))?;
        let vec = py.detach(|| FarVec::zeros(&self.arena, bytes));
        match vec {
            Ok(vec) => FarMemory::new(py, FarBlock::new(vec)),
            Err(error @ FarVecError::Addresses { .. }) => Err(error::no_room(
                py,
                format_args!("{error}; open the arena with a larger size, or delete arrays"),
            )),
            Err(error) => Err(error::no_room(py, error)),
        }
    }

    /// Status of the arena.
    fn status(&self, py: Python<'_>) -> PyResult<ArenaStatus> {
        self.check_process(py)?;
        let (arena, depot) = py.detach(|| (self.arena.status(), self.arena.remote_pages().status()));
        Ok(ArenaStatus {
            used: arena.used,
            packed: arena.packed,
            patched: arena.patched,
            cap: arena.frames,
            aside: depot.pending,
            short: depot.short,
            lost: depot.lost,
            linked: depot.lenders.iter().filter(|lender| lender.linked).count(),
            faults: arena.tally.faults,
            fetched: arena.tally.fetched,
            ahead: arena.tally.ahead,
            sent: arena.tally.sent,
            words: arena.tally.words,
            written: arena.tally.written,
        })
    }

    /// Length of its address range in bytes.
    #[getter]
    fn size(&self) -> u64 {
        self.size
    }

    fn __repr__(&self) -> String {
        format!("<netram.far.Arena, {} bytes>", self.size)
    }
}

fn lenders_in_environment() -> PyResult<Vec<NetAddress>> {
    let settings = JournalSettings::from_environment();
    let found = settings.and_then(|settings| settings.find_lenders());
    found.map_err(|error| PyValueError::new_err(error.to_string()))
}
