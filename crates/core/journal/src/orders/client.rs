//! Giving orders to the process that has a journal open.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use netram_process::lines::read_line;
use rustix::net::sockopt::socket_peercred;

use super::{
    JournalOrder, JournalReport, MembershipReport, OrderReply, REPLY_BYTES_MAX, REPLY_TIMEOUT,
    REQUEST_TIMEOUT, socket,
};
use crate::error::JournalOpenError;
use crate::open::open_view;
use crate::paths::JournalPaths;

/// Why an order got no answer.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The journal's files cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalOpenError),
    /// The process does not answer.
    #[error(
        "process {holder} has the journal open and takes no orders: it may run an earlier release, in another network \
         namespace, or be closing it"
    )]
    NoSocket {
        /// The process, as the lock file tells.
        holder: String,
    },
    /// The exchange with the process failed.
    #[error("cannot talk to the process that has the journal open: {0}")]
    Io(#[from] io::Error),
    /// Another user's process listens in its place.
    #[error("the process that answers for the journal belongs to user {0}, who does not own the journal")]
    Foreign(u32),
    /// The process refused.
    #[error("{0}")]
    Refused(String),
}

/// Gives an order to the process that has the journal at `root` open. `None`: no process has it open.
///
/// # Errors
///
/// [`OrderError`] if the process does not answer, or refuses.
pub fn order(root: &Path, order: &JournalOrder) -> Result<Option<MembershipReport>, OrderError> {
    match exchange(root, order)? {
        Some(OrderReply::Status(report)) => Ok(Some(*report)),
        Some(OrderReply::Report(report)) => Ok(Some(report.membership)),
        Some(OrderReply::Metrics(_)) => Err(less_than_asked()),
        Some(OrderReply::Refused(why)) => Err(OrderError::Refused(why)),
        None => Ok(None),
    }
}

/// The metrics of the process that has the journal at `root` open, in the text format of Prometheus. `None`:
/// no process has.
///
/// # Errors
///
/// As [`report`].
pub fn metrics(root: &Path) -> Result<Option<String>, OrderError> {
    match exchange(root, &JournalOrder::Metrics)? {
        Some(OrderReply::Metrics(text)) => Ok(Some(text)),
        Some(OrderReply::Refused(why)) => Err(OrderError::Refused(why)),
        Some(OrderReply::Status(_) | OrderReply::Report(_)) => Err(less_than_asked()),
        None => Ok(None),
    }
}

fn less_than_asked() -> OrderError {
    OrderError::Refused("it told less than it was asked for".into())
}

/// The whole state of the journal at `root`, from the process that has it open. `None`: no process has.
///
/// # Errors
///
/// [`OrderError`] if the process does not answer, or refuses, for example because it runs an earlier release.
pub fn report(root: &Path) -> Result<Option<JournalReport>, OrderError> {
    exchange(root, &JournalOrder::Report)?.map(report_in).transpose()
}

/// The report in a reply.
pub(super) fn report_in(reply: OrderReply) -> Result<JournalReport, OrderError> {
    match reply {
        OrderReply::Report(report) => Ok(*report),
        OrderReply::Status(_) | OrderReply::Metrics(_) => Err(less_than_asked()),
        OrderReply::Refused(why) => Err(OrderError::Refused(why)),
    }
}

fn exchange(root: &Path, order: &JournalOrder) -> Result<Option<OrderReply>, OrderError> {
    let paths = JournalPaths::at(root);
    if !paths.is_locked()? {
        return Ok(None);
    }
    let owner = std::fs::metadata(paths.log())?.uid();
    let writer = open_view(&paths, false)?.newest().writer;
    let mut stream = match UnixStream::connect_addr(&socket(writer)?) {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            // It may just have been closed.
            return match paths.is_locked()? {
                false => Ok(None),
                true => Err(OrderError::NoSocket {
                    holder: paths.holder(),
                }),
            };
        }
        Err(error) => return Err(error.into()),
    };
    let peer = socket_peercred(&stream).map_err(io::Error::from)?.uid;
    if !peer.is_root() && peer.as_raw() != owner && peer != rustix::process::geteuid() {
        return Err(OrderError::Foreign(peer.as_raw()));
    }
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    converse(&mut stream, order, REPLY_TIMEOUT).map(Some)
}

/// Sends an order over a connection, and reads the reply.
pub(super) fn converse(
    stream: &mut UnixStream,
    order: &JournalOrder,
    patience: Duration,
) -> Result<OrderReply, OrderError> {
    let mut line = serde_json::to_vec(order).map_err(io::Error::from)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let line = read_line(stream, &mut Vec::new(), REPLY_BYTES_MAX, patience);
    let line = line.map_err(|error| io::Error::other(error.to_string()))?;
    Ok(serde_json::from_slice(&line).map_err(io::Error::from)?)
}
