//! Files and processes of a measurement or demonstration, all removed at the end.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

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

/// Set by the signal that ends this process and removes the files that the measurement uses. The handler sets
/// it: a thread that does so later might be overtaken by a failure which the same signal caused.
static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// If a signal came, waits for it to end the process: failures caused by its cleanup are not to be reported.
pub(crate) fn leave_to_signal() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Removes the measurement's files and its lenders' memory when the user interrupts it.
fn clean_up_on_signal() -> Result<()> {
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&INTERRUPTED))?;
    }
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            netram_bench::cleanup::abandon(128 + signal);
        }
    });
    Ok(())
}
