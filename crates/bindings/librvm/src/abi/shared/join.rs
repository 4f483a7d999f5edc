//! Conversion of a join record into options of a node.

use std::ffi::{c_char, c_int};
use std::path::PathBuf;

use netram_rvm::{CaptureMode, DetectMethod, VerifyMode};
use netram_shared::NodeOptions;
use netram_shared_machine::RegionId;
use netram_shared_machine::node::PinnedOverflow;
use netram_transport::Security;

use super::super::name;
use super::{milliseconds, wrong};
use crate::failure::CallFailure;
use crate::nodes::JoinRecord;

/// The options that a record chooses.
pub(super) fn chosen(join: &JoinRecord) -> Result<NodeOptions, CallFailure> {
    let server = text(join.server, "server")?.ok_or_else(|| wrong("`server` is not set"))?;
    let server = server
        .parse()
        .map_err(|reason| wrong(format!("server {server:?}: {reason}")))?;
    let directory = name(join.directory).ok_or_else(|| wrong("`directory` is not set"))?;
    let mut options = NodeOptions::new(
        server,
        security(name(join.key_file), join.insecure != 0)?,
        directory,
    );
    if let Some(name) = text(join.name, "name")? {
        options.name = name;
    }
    if let Some(wait) = text(join.wait, "wait")? {
        options.wait = wait
            .parse()
            .map_err(|reason| wrong(format!("wait {wait:?}: {reason}")))?;
    }
    if let Some(id) = text(join.region, "region")? {
        let id =
            u128::from_str_radix(&id, 16).map_err(|_| wrong(format!("{id:?} is not the id of a region")))?;
        options.region = Some(RegionId(id));
    }
    if join.log_bytes != 0 {
        options.log_bytes = join.log_bytes;
    }
    if join.pinned_bytes_max != 0 {
        options.pinned_bytes_max = join.pinned_bytes_max as usize;
    }
    options.capture = capture(join.capture, join.find)?;
    options.direct = join.straight != 0;
    if let Some(listen) = text(join.listen, "listen")? {
        let listen = listen
            .parse()
            .map_err(|reason| wrong(format!("listen {listen:?}: {reason}")))?;
        options.listen = Some(listen);
    }
    if let Some(group) = text(join.group, "group")? {
        let group = group
            .parse()
            .map_err(|reason| wrong(format!("group: {reason}")))?;
        options.group = Some(group);
    }
    if join.fall_behind != 0 {
        options.full = PinnedOverflow::FallBehind;
    }
    options.lazy = join.lazy != 0;
    options.lock_timeout = milliseconds(join.lock_timeout_ms);
    options.server_timeout = milliseconds(join.patience_ms);
    Ok(options)
}

/// How stores are found.
fn capture(capture: c_int, find: c_int) -> Result<CaptureMode, CallFailure> {
    let find = match find {
        0 => DetectMethod::Trap,
        1 => DetectMethod::Watch,
        other => {
            return Err(wrong(format!(
                "`find` has the value {other}, which is not an rvm_find_t"
            )));
        }
    };
    Ok(match capture {
        0 => CaptureMode::Declared,
        1 => CaptureMode::Twins(find),
        2 => CaptureMode::Pages(find),
        3 => CaptureMode::Adaptive,
        4 => CaptureMode::Verified(VerifyMode::Refuse),
        5 => CaptureMode::Verified(VerifyMode::Report),
        other => {
            return Err(wrong(format!(
                "`capture` has the value {other}, which is not an rvm_capture_t"
            )));
        }
    })
}

pub(in crate::abi) fn security(key_file: Option<PathBuf>, insecure: bool) -> Result<Security, CallFailure> {
    Security::choose(key_file, insecure).map_err(|error| wrong(error.to_string()))
}

pub(in crate::abi) fn text(pointer: *const c_char, field: &str) -> Result<Option<String>, CallFailure> {
    let text = name(pointer).map(|text| text.into_os_string().into_string());
    text.transpose()
        .map_err(|_| wrong(format!("`{field}` is not UTF-8")))
}
