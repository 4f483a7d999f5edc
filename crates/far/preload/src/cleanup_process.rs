//! The cleanup process: frees what the program leaves at lenders, however it ends. It is not a child of the
//! program, and sleeps until the end.

use std::io::{self, Write};
use std::os::fd::IntoRawFd;
use std::process::{Command, Stdio};

use netram_far::OwnerKey;
use netram_far::run::{GIVE_BACK, RunSettings, SETTINGS};

use crate::abi;

/// Starts it. To be called by a thread with the arena's descriptors: one of them tells the process of the
/// end, whether by exit, signal or `exec`.
pub(crate) fn begin(settings: &RunSettings, owner: &OwnerKey) -> io::Result<()> {
    let mut command = Command::new(&settings.netram);
    command
        .arg(GIVE_BACK)
        .env_clear()
        .env(SETTINGS, settings.to_string())
        // It keeps no directory in use, and holds no pipe open that a reader of the program's output waits
        // for.
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    abi::leave_process_group(&mut command);
    let mut begun = command.spawn()?;
    let mut word = begun.stdin.take().expect("the pipe was requested");
    // Wait for the intermediate process before anything can fail, so that the program has no unexpected
    // child. If SIGCHLD is ignored, there is nothing to wait for.
    let _ = begun.wait();
    word.write_all(owner.seed())?;
    // Left open: the kernel closes it with the arena's last thread.
    let _ = word.into_raw_fd();
    Ok(())
}
