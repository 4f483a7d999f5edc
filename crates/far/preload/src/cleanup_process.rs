//! Who gives back what the program leaves at lenders, however it ends: a process that is no child of the
//! program's, and sleeps until the end.

use std::io::{self, Write};
use std::os::fd::IntoRawFd;
use std::process::{Command, Stdio};

use netram_far::DepositId;
use netram_far::run::{GIVE_BACK, RunSettings, SETTINGS};

use crate::abi;

/// Begins it. For a thread whose descriptors are the arena's: one of them is how it learns of the end, be
/// that an exit, a signal, or that the program becomes another one.
pub(crate) fn begin(settings: &RunSettings, deposit: DepositId) -> io::Result<()> {
    let mut command = Command::new(&settings.netram);
    command
        .arg(GIVE_BACK)
        .env_clear()
        .env(SETTINGS, settings.to_string())
        // It keeps nobody from unmounting anything, and nobody who reads what the program writes from seeing
        // its end.
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    abi::leave_process_group(&mut command);
    let mut begun = command.spawn()?;
    let mut word = begun.stdin.take().expect("it was asked for");
    // Of who has begun it, before anything can fail: the program has no child that it did not make. Where
    // SIGCHLD is ignored there is nobody to wait for.
    let _ = begun.wait();
    word.write_all(&deposit.0.to_le_bytes())?;
    // Left open: the kernel closes it with the arena's last thread.
    let _ = word.into_raw_fd();
    Ok(())
}
