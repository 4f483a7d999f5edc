//! Files and processes of a measurement or demonstration, all removed at the end.

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

/// Set while a signal ends this process and removes the files that the measurement uses.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// If a signal came, waits for it to end the process: failures caused by its cleanup are not to be reported.
pub(crate) fn leave_to_signal() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Removes the measurement's files and its lenders' memory when the user interrupts it.
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
