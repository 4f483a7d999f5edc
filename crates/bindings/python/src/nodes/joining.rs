//! Joining a shared region.

use std::path::PathBuf;

use netram_rvm::{CaptureMode, DetectMethod, VerifyMode};
use netram_shared::{Node as Joining, NodeOptions};
use netram_shared_machine::RegionId;
use netram_shared_machine::node::PinnedOverflow;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::session::NodeSession;
use super::{Node, error, seconds};
use crate::open::{interruptibly, parse, security};
use crate::size::SizeArgument;

/// Join the shared region of the server at an address. The whole region is in memory when this returns.
///
/// directory belongs to this process alone and is created if missing; records that earlier processes left
/// there are offered to the server. key_file is the cluster key's file; insecure=True works without one, on
/// this machine only. The call waits at most patience seconds for a server that is not reachable yet.
/// lazy=True: commits of other nodes arrive before a lock is granted, or when pull() requests them.
///
/// capture is how this node's stores are found. "declared" (set_range, array, memory, write); "twins" or
/// "pages": by page, without declarations, and Node.memory can be written; "adaptive": declared, with the
/// cheapest method for each page; "verified": declared, and undeclared stores raise Stray; "reported":
/// declared, and undeclared stores are only listed by Node.undeclared. find is how the first store to a page
/// is found: "trap" (SIGSEGV) or "watch" (Linux 6.7). By page, one transaction at a time holds locks
/// exclusively.
///
/// straight=False sends records only through the server. listen is the address at which other nodes reach
/// this machine. group is the multicast group, "ADDRESS:PORT%INTERFACE". full is what happens when readers
/// hold back more than pinned bytes: "expire" ends the readers, "fall-behind" ends the node.
///
/// Raises JoinError; InUse if a running node has the directory; Gone if the server refuses this node.
#[pyfunction]
#[pyo3(signature = (server, directory, *, key_file = None, insecure = false, name = None, region = None, lazy = false,
    wait = None, log_size = None, pinned = None, lock_timeout = 10.0, patience = 30.0, capture = "declared", find = "trap",
    straight = true, listen = None, group = None, full = "expire"))]
#[allow(
    clippy::too_many_arguments,
    reason = "they are Python's keywords, each optional"
)]
pub(crate) fn join(
    py: Python<'_>,
    server: &str,
    directory: PathBuf,
    key_file: Option<PathBuf>,
    insecure: bool,
    name: Option<String>,
    region: Option<&str>,
    lazy: bool,
    wait: Option<&str>,
    log_size: Option<SizeArgument>,
    pinned: Option<SizeArgument>,
    lock_timeout: f64,
    patience: f64,
    capture: &str,
    find: &str,
    straight: bool,
    listen: Option<&str>,
    group: Option<&str>,
    full: &str,
) -> PyResult<Node> {
    let security = security(key_file, insecure, |cause| error::join_error(py, cause))?;
    let mut options = NodeOptions::new(parse("server", server)?, security, directory);
    options.name = name.unwrap_or(options.name);
    if let Some(id) = region {
        let number = u128::from_str_radix(id, 16);
        let number =
            number.map_err(|_| PyValueError::new_err(format!("{id:?} is not the id of a region")))?;
        options.region = Some(RegionId(number));
    }
    if let Some(wait) = wait {
        options.wait = parse("wait", wait)?;
    }
    options.log_bytes = log_size.map_or(options.log_bytes, |size| size.0);
    if let Some(SizeArgument(bytes)) = pinned {
        let bytes = usize::try_from(bytes);
        options.pinned_bytes_max =
            bytes.map_err(|_| PyValueError::new_err("pinned exceeds the address space"))?;
    }
    options.lazy = lazy;
    options.lock_timeout = seconds(lock_timeout)?;
    options.server_timeout = seconds(patience)?;
    options.capture = self::capture(capture, find)?;
    options.direct = straight;
    options.listen = listen.map(|listen| parse("listen", listen)).transpose()?;
    options.group = group.map(|group| parse("group", group)).transpose()?;
    options.full = match full {
        "expire" => PinnedOverflow::Expire,
        "fall-behind" => PinnedOverflow::FallBehind,
        other => {
            let text = format!("full is \"expire\" or \"fall-behind\", not {other:?}");
            return Err(PyValueError::new_err(text));
        }
    };
    let finds_stores = matches!(options.capture, CaptureMode::Twins(_) | CaptureMode::Pages(_));
    let node = interruptibly(py, move || Joining::join(options))?;
    let node = node.map_err(|cause| error::join(py, &cause))?;
    Ok(Node {
        joined: NodeSession::new(node, finds_stores),
    })
}

fn capture(capture: &str, find: &str) -> PyResult<CaptureMode> {
    let find = match find {
        "trap" => DetectMethod::Trap,
        "watch" => DetectMethod::Watch,
        other => {
            let text = format!("find is \"trap\" or \"watch\", not {other:?}");
            return Err(PyValueError::new_err(text));
        }
    };
    Ok(match capture {
        "declared" => CaptureMode::Declared,
        "twins" => CaptureMode::Twins(find),
        "pages" => CaptureMode::Pages(find),
        "adaptive" => CaptureMode::Adaptive,
        "verified" => CaptureMode::Verified(VerifyMode::Refuse),
        "reported" => CaptureMode::Verified(VerifyMode::Report),
        other => {
            return Err(PyValueError::new_err(format!(
                "capture {other:?} does not exist; choose \"declared\", \"twins\", \"pages\", \"adaptive\", \"verified\" or \"reported\""
            )));
        }
    })
}
