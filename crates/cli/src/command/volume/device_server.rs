//! `netram volume serve --for-device`: the server of a block device, as an ordinary user.
//!
//! The supervisor, root's `netram volume attach --server-user`, makes the device and gives this process the
//! kernel's end of it. Whatever lenders, clients or the volume's files make this process do, it does with the
//! rights of the volume's user.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};
use netram_attach::{become_io_flusher, become_server, say_closed, serve};
use rustix::process::geteuid;
use rustix::thread::{capabilities, clear_ambient_capability_set};

use super::registry;
use super::server::{Notices, serve_volume};
use crate::background::SELF;
use crate::log;
use crate::ups::UpsArgs;

/// Serves the volume as the device `name` until that is gone.
pub(super) fn run(
    volume: &Path,
    name: &str,
    (patience, ups): (Option<Duration>, &UpsArgs),
    marked: bool,
) -> Result<ExitCode> {
    log::serve();
    if !marked {
        give_up_rights()?;
    }
    let socket = registry().server_socket(name);
    become_server(&socket).with_context(|| format!("waiting for the supervisor at {}", socket.display()))?;
    serve_volume(volume, (patience, ups), Notices::Send, |open| serve(open))?;
    say_closed();
    Ok(ExitCode::SUCCESS)
}

/// Uses the one right that the service manager gave, and starts this program again without it: a right is a
/// thread's, and threads may run by now.
fn give_up_rights() -> Result<()> {
    if geteuid().is_root() {
        return Ok(());
    }
    become_io_flusher();
    if capabilities(None)?.permitted.is_empty() {
        return Ok(());
    }
    clear_ambient_capability_set().context("giving up capabilities")?;
    let mut again = Command::new(SELF);
    let mut arguments = std::env::args_os();
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    again.args(arguments).arg("--marked");
    Err(again.exec()).context("starting again without capabilities")
}
