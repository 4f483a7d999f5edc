//! Finding the lenders of this machine by the sockets beside their stores, and giving them orders there.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use netram_lender::OPERATOR_SUFFIX;
use netram_process::rights::user_named;
use netram_transport::{Link, NetAddress, Security, connect_to_user};

use super::status;

/// Directory of the stores of lenders. Every user can write in it.
const STORES: &str = "/dev/shm";
/// Highest number of a system's account (Debian's `SYS_UID_MAX`); higher ones are people.
const SYSTEM_USER_MAX: u32 = 999;

/// A socket at which a lender takes its operator's orders.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OperatorSocket {
    pub(super) path: PathBuf,
    /// The user who made it, and who must answer at it.
    pub(super) user: u32,
}

/// A lender that is given an order.
pub(super) struct ToldLender {
    pub(super) address: NetAddress,
    pub(super) security: Security,
    /// The user who must run it; `None` for an address that was given.
    pub(super) run_by: Option<u32>,
}

impl ToldLender {
    pub(super) fn connect(&self, timeout: Duration) -> Result<Link> {
        match self.run_by {
            Some(user) => Ok(connect_to_user(&self.address, user, timeout)?),
            None => Ok(status::connect_lender(&self.address, &self.security, timeout)?),
        }
    }
}

impl From<OperatorSocket> for ToldLender {
    fn from(OperatorSocket { path, user }: OperatorSocket) -> ToldLender {
        ToldLender {
            address: NetAddress::Unix(path),
            security: Security::Insecure,
            run_by: Some(user),
        }
    }
}

/// The sockets of the lenders that `user` runs on this machine. Without a name: of this process's user, and
/// for root also of the system's accounts. Root sends an ordinary user's process nothing unless asked to.
///
/// # Errors
/// There is no such user, this process may not act for that user, or the directory of stores cannot be read.
pub(super) fn operator_sockets(user: Option<&str>) -> Result<Vec<OperatorSocket>> {
    let this = rustix::process::geteuid();
    let named = user.map(number_of).transpose()?;
    if named.is_some_and(|named| named != this.as_raw()) && !this.is_root() {
        bail!("only root tells the lenders of another user: leave out --user, or run this as root");
    }
    let is_operated = |owner: u32| match named {
        Some(named) => owner == named,
        None => owner == this.as_raw() || this.is_root() && owner <= SYSTEM_USER_MAX,
    };
    let sockets = sockets_in(Path::new(STORES)).context("looking for lenders of this machine")?;
    Ok(sockets
        .into_iter()
        .filter(|socket| is_operated(socket.user))
        .collect())
}

/// The number of the user of this name or number.
fn number_of(user: &str) -> Result<u32> {
    let known = user_named(user).with_context(|| format!("looking for the user {user}"))?;
    let number = known.map(|(number, _)| number).or_else(|| user.parse().ok());
    number.with_context(|| format!("the system knows no user {user}"))
}

fn sockets_in(directory: &Path) -> std::io::Result<Vec<OperatorSocket>> {
    let mut sockets = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let named = name
            .to_str()
            .is_some_and(|name| name.starts_with("netram-") && name.ends_with(OPERATOR_SUFFIX));
        // A file that is gone meanwhile is no lender's.
        let Ok(found) = entry.metadata() else { continue };
        if named && found.file_type().is_socket() {
            sockets.push(OperatorSocket {
                path: entry.path(),
                user: found.uid(),
            });
        }
    }
    sockets.sort();
    Ok(sockets)
}
