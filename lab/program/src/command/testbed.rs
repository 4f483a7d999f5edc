//! Where a measurement or a demonstration has its files and processes, and that nothing of it stays.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use netram_bench::testbed::Testbed;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// A site on a disk: /tmp may be memory, whose syncs cost nothing.
pub(crate) fn testbed(dir: Option<&Path>) -> Result<Testbed> {
    let fallback = if Path::new("/var/tmp").is_dir() {
        "/var/tmp".into()
    } else {
        std::env::temp_dir()
    };
    let parent = dir.map_or(fallback, Path::to_path_buf);
    clean_up_on_signal()?;
    Ok(Testbed::new(netram_process::this_program()?, &parent)?)
}

/// A signal is ending this process, and is taking the files away that the measurement works on.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Leaves the end to the signal, if one came: the failure that its cleaning up has caused is not to be
/// reported.
pub(crate) fn leave_to_signal() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Whoever interrupts a measurement finds neither its files nor its lenders' memory afterwards.
fn clean_up_on_signal() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            INTERRUPTED.store(true, Ordering::SeqCst);
            netram_bench::cleanup::abandon(128 + signal);
        }
    });
    Ok(())
}
