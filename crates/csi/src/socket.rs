//! The socket that a driver listens at.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A socket of this process; its file goes with it.
#[derive(Debug)]
pub(crate) struct DriverSocket {
    path: PathBuf,
}

impl DriverSocket {
    /// Listens at `path`, which may begin with `unix://`. Replaces the socket of a driver that was killed.
    pub(crate) fn listen(path: &str) -> Result<(DriverSocket, UnixListener)> {
        let path = PathBuf::from(path.strip_prefix("unix://").unwrap_or(path));
        if !path.is_absolute() {
            bail!(
                "`{}` is no path of a socket: give one like unix:///csi/csi.sock",
                path.display()
            );
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        }
        clear(&path)?;
        let listener = UnixListener::bind(&path)
            .and_then(|listener| {
                // Whoever may connect may mount and delete volumes.
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
                listener.set_nonblocking(true)?;
                Ok(listener)
            })
            .with_context(|| format!("listening at {}", path.display()))?;
        Ok((DriverSocket { path }, listener))
    }
}

/// Removes the socket of a driver that is gone.
fn clear(path: &Path) -> Result<()> {
    let there = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        there => there.with_context(|| path.display().to_string())?,
    };
    if !there.file_type().is_socket() {
        bail!("{} is no socket: remove it, or give another path", path.display());
    }
    if UnixStream::connect(path).is_ok() {
        bail!("another program listens at {}: end that first", path.display());
    }
    fs::remove_file(path).with_context(|| format!("removing the socket {}", path.display()))
}

impl Drop for DriverSocket {
    fn drop(&mut self) {
        // A path that another driver has by now would be removed too; its --directory keeps that one out.
        let _ = fs::remove_file(&self.path);
    }
}
