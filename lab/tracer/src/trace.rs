//! The study of this process.

use std::fmt::Arguments;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use netram_far_machine::paging::PageAccess;
use netram_pagesim::process::{OUTCOME, SETTINGS};
use netram_pagesim::{Study, StudyOutcome, StudySettings};

/// Number of address bits; the size and the kind of access are above them.
const ADDRESS_BITS: u32 = 48;
const WRITE: u64 = 1 << 63;
/// Longest reference that is packed; longer ones are split.
pub(crate) const BYTES_MAX: u32 = 1 << 14;

/// Longest wait for a reader of the study's message at the end.
const EXIT_MESSAGE_TIMEOUT: Duration = Duration::from_millis(200);

/// A reference in eight bytes.
///
/// ```text
///  63   62 .. 48        47 .. 0
/// write  bytes       address
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedReference(u64);

impl PackedReference {
    pub(crate) const NONE: PackedReference = PackedReference(0);

    /// `bytes` is at most [`BYTES_MAX`]. Only the lower 48 bits of the address are kept; programs use no
    /// others.
    #[inline]
    pub(crate) fn new(address: u64, bytes: u32, write: bool) -> PackedReference {
        let address = address & ((1 << ADDRESS_BITS) - 1);
        PackedReference(address | (u64::from(bytes) << ADDRESS_BITS) | if write { WRITE } else { 0 })
    }

    fn unpack(self) -> (u64, u32, PageAccess) {
        let access = match self.0 & WRITE {
            0 => PageAccess::Read,
            _ => PageAccess::Write,
        };
        let bytes = (self.0 & !WRITE) >> ADDRESS_BITS;
        (self.0 & ((1 << ADDRESS_BITS) - 1), bytes as u32, access)
    }
}

/// The study of this process, and the path of its outcome.
struct Trace {
    study: Mutex<Option<(Study, File)>>,
    outcome: PathBuf,
}

static TRACE: OnceLock<Option<Trace>> = OnceLock::new();
/// Set in a forked child. It has a copy of the study, whose lock may be held by a thread that it lacks, so it
/// leaves the study alone.
static CHILD: AtomicBool = AtomicBool::new(false);
/// Number of forked children.
static CHILDREN: AtomicU64 = AtomicU64::new(0);

/// Begins the study if the environment asks for one. `false` if not.
pub(crate) fn begin() -> bool {
    TRACE.get_or_init(from_environment).is_some()
}

fn from_environment() -> Option<Trace> {
    let settings = std::env::var(SETTINGS).ok()?;
    let outcome = PathBuf::from(std::env::var_os(OUTCOME)?);
    let settings = match settings.parse::<StudySettings>() {
        Ok(settings) => settings,
        Err(error) => {
            remark(format_args!("{SETTINGS}: {error}; nothing is studied"));
            return None;
        }
    };
    // The process that creates the file is studied. A program that it starts has the same environment, but
    // finds the file there.
    match File::create_new(&outcome) {
        Ok(file) => Some(Trace {
            study: Mutex::new(Some((settings.study(), file))),
            outcome,
        }),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => None,
        Err(error) => {
            remark(format_args!("{}: {error}; nothing is studied", outcome.display()));
            None
        }
    }
}

/// Writes a sentence to standard error, which may be a pipe without a reader.
pub(crate) fn remark(sentence: Arguments<'_>) {
    netram_log::try_write_line(
        std::io::stderr(),
        format_args!("netram: {sentence}"),
        EXIT_MESSAGE_TIMEOUT,
    );
}

/// Counts a forked child.
pub(crate) fn forked() {
    CHILDREN.fetch_add(1, Ordering::Relaxed);
}

/// Marks this process as the child.
pub(crate) fn mark_child() {
    CHILD.store(true, Ordering::Relaxed);
}

/// The study, unless this process is a forked child.
fn ours() -> Option<&'static Trace> {
    let child = CHILD.load(Ordering::Relaxed);
    TRACE.get()?.as_ref().filter(|_| !child)
}

/// Processes a thread's buffer in order. Threads take turns.
pub(crate) fn take(references: &[PackedReference]) {
    let Some(trace) = ours() else {
        return;
    };
    let Ok(mut study) = trace.study.lock() else {
        return;
    };
    let Some((study, _)) = &mut *study else {
        return;
    };
    for reference in references {
        let (address, bytes, access) = reference.unpack();
        study.reference(address, bytes, access);
    }
}

/// Writes the outcome at the end of the process. Later references are not counted.
pub(crate) fn end() {
    let Some(trace) = ours() else {
        return;
    };
    let Some((mut study, mut file)) = trace.study.lock().ok().and_then(|mut study| study.take()) else {
        return;
    };
    let outcome = StudyOutcome {
        children: CHILDREN.load(Ordering::Relaxed),
        ..StudyOutcome::of(&mut study)
    };
    if let Err(error) = file.write_all(outcome.to_string().as_bytes()) {
        let outcome = trace.outcome.display();
        remark(format_args!("{outcome}: {error}; the study's outcome is lost"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_fits_eight_bytes() {
        for (address, bytes, write) in [
            (0, 1, true),
            ((1 << 48) - 1, BYTES_MAX, false),
            (0x7fff_1234_5678, 8, true),
        ] {
            let access = if write {
                PageAccess::Write
            } else {
                PageAccess::Read
            };
            assert_eq!(
                PackedReference::new(address, bytes, write).unpack(),
                (address, bytes, access)
            );
        }
    }
}
