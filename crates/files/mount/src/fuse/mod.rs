//! The kernel's requests, answered from the journaled directory.
//!
//! The kernel may cache names, attributes and content, because nothing changes except through it.
//!
//! | module | answers |
//! |---|---|
//! | `names` | looking up, making, renaming and removing; attributes |
//! | `content` | opening, reading, writing and syncing files |
//! | `listing` | entries of directories |
//! | `xattrs` | extended attributes |

mod attributes;
mod content;
mod filesystem;
mod handles;
mod listing;
mod names;
mod xattrs;

use netram_files::InodeId;
use netram_fuse::{
    FuseAgreement, FuseOperation, FuseOptions, FuseRequest, FuseService, FuseTtl, ReplyBody, capability,
    follow_caller,
};
use netram_telemetry::TimedCall;
use rustix::io::Errno;

use crate::metrics::FuseCall;

pub(crate) use self::filesystem::FuseFilesystem;

/// Seconds for which the kernel may cache names and attributes.
const TTL: FuseTtl = FuseTtl {
    name_s: 3600,
    attributes_s: 3600,
};
/// Maximum number of requests, as of reading ahead, that the kernel sends before earlier ones are answered.
const BACKGROUND_MAX: u16 = 64;

/// Refusal of a kernel that sends no requests by io_uring.
const NO_IO_URING: &str = "the kernel's FUSE does not use io_uring: that needs Linux 6.14, and `echo Y > \
                           /sys/module/fuse/parameters/enable_uring` by root; or attach without --io-uring";

/// This file system's part of the handshake. `passthrough`: the kernel shall read files itself. `survive`:
/// another server shall be able to continue. `io_uring`: requests must come that way.
pub(crate) fn options(passthrough: bool, survive: bool, io_uring: bool) -> FuseOptions {
    let optional = |has: bool, capability| if has { capability } else { 0 };
    let wanted = capability::ASYNC_READ
        | capability::BIG_WRITES
        | capability::ASYNC_DIO
        | capability::PARALLEL_DIROPS
        | capability::CACHE_SYMLINKS
        | capability::HANDLE_KILLPRIV_V2
        | capability::DIRECT_IO_ALLOW_MMAP;
    FuseOptions {
        wanted: wanted
            | optional(passthrough, capability::PASSTHROUGH)
            | optional(survive, capability::HAS_RESEND),
        needed: (optional(io_uring, capability::OVER_IO_URING), NO_IO_URING),
        background_max: BACKGROUND_MAX,
    }
}

/// Whether the kernel will read files itself.
pub(crate) fn has_passthrough(agreement: FuseAgreement) -> bool {
    agreement.has(capability::PASSTHROUGH)
}

/// The kind under which a request is timed.
fn kind_of(operation: &FuseOperation<'_>) -> Option<FuseCall> {
    Some(match operation {
        FuseOperation::Read { .. } => FuseCall::Read,
        FuseOperation::Write(_) => FuseCall::Write,
        FuseOperation::Sync | FuseOperation::SyncDirectory => FuseCall::Sync,
        FuseOperation::MakeNode { .. }
        | FuseOperation::MakeDirectory { .. }
        | FuseOperation::Symlink { .. }
        | FuseOperation::Unlink(_)
        | FuseOperation::RemoveDirectory(_)
        | FuseOperation::Rename { .. }
        | FuseOperation::Link { .. } => FuseCall::Name,
        FuseOperation::Lookup(_)
        | FuseOperation::Attributes
        | FuseOperation::ReadLink
        | FuseOperation::Seek { .. }
        | FuseOperation::ReadDirectory { .. }
        | FuseOperation::Space
        | FuseOperation::Xattr { .. }
        | FuseOperation::Xattrs { .. } => FuseCall::Look,
        FuseOperation::Open { .. }
        | FuseOperation::Create { .. }
        | FuseOperation::Release { .. }
        | FuseOperation::OpenDirectory
        | FuseOperation::ReleaseDirectory { .. } => FuseCall::Open,
        FuseOperation::Set(_)
        | FuseOperation::Allocate { .. }
        | FuseOperation::SetXattr { .. }
        | FuseOperation::RemoveXattr(_) => FuseCall::Set,
        FuseOperation::Init(_)
        | FuseOperation::Forget
        | FuseOperation::ForgetAll(_)
        | FuseOperation::Destroy
        | FuseOperation::Other
        | FuseOperation::Malformed => return None,
    })
}

/// Whether the request has another result when it is executed twice.
fn is_executed_once(operation: &FuseOperation<'_>) -> bool {
    matches!(kind_of(operation), Some(FuseCall::Name))
        || matches!(
            operation,
            FuseOperation::Create { .. } | FuseOperation::SetXattr { .. } | FuseOperation::RemoveXattr(_)
        )
}

/// A request until its reply was sent.
pub(crate) struct Answering<'a> {
    _timed: Option<TimedCall<'a>>,
    /// The request's number, if it must not be executed again while it is unanswered.
    executed: Option<(&'a FuseFilesystem, u64)>,
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        if let Some((filesystem, number)) = self.executed {
            filesystem.state.journaled.on_answered(number);
        }
    }
}

impl FuseService for FuseFilesystem {
    type Timed<'a> = Answering<'a>;

    fn begin(&self, request: &FuseRequest<'_>) -> Answering<'_> {
        let timed = kind_of(&request.operation).map(|kind| self.state.metrics.begin(kind));
        let is_once = self.survives && is_executed_once(&request.operation);
        Answering {
            _timed: timed,
            executed: is_once.then_some((self, request.number())),
        }
    }

    fn on_resent_answered(&self) {
        self.state.journaled.on_all_answered();
    }

    fn answer(&self, request: &FuseRequest<'_>, body: &mut ReplyBody) -> Result<(), Errno> {
        if request.is_resent()
            && is_executed_once(&request.operation)
            && let Some(node) = self.state.journaled.executed_before(request.number())
        {
            return self.answer_executed(&request.operation, node, body);
        }
        self.execute(request, body)
    }
}

impl FuseFilesystem {
    fn execute(&self, request: &FuseRequest<'_>, body: &mut ReplyBody) -> Result<(), Errno> {
        let (number, caller, asked) = (request.node, request.caller, Some(request.number()));
        let node = InodeId(number);
        match &request.operation {
            FuseOperation::Write(write) => self.write(node, caller, write, body),
            FuseOperation::Sync => {
                follow_caller(caller.thread);
                self.sync(node)
            }
            FuseOperation::Read {
                handle,
                offset,
                bytes,
            } => self.read(node, *handle, *offset, *bytes, body),
            FuseOperation::Lookup(name) => self.look_up(number, name, body),
            FuseOperation::Attributes => self.get_attributes(node, body),
            FuseOperation::Set(set) => self.set(node, caller, set, body),
            FuseOperation::Forget => self.forget_all([number].into_iter()),
            FuseOperation::ForgetAll(forgotten) => self.forget_all(forgotten.nodes()),
            FuseOperation::Open { flags } => self.open(node, *flags, body),
            FuseOperation::Create { name, mode, flags } => {
                let at = attributes::entry_at(number, name);
                self.create(caller, at, (*mode, *flags), asked, body)
            }
            FuseOperation::Release { handle } => {
                self.handles.drop(*handle);
                Ok(())
            }
            FuseOperation::Allocate {
                handle,
                offset,
                length,
                mode,
            } => self.allocate(
                node,
                caller,
                *handle,
                *offset..offset.saturating_add(*length),
                *mode,
            ),
            FuseOperation::Seek {
                handle,
                offset,
                whence,
            } => self.seek(node, *handle, *offset, *whence, body),
            FuseOperation::Space => self.space(body),
            FuseOperation::SyncDirectory => self.sync(node),
            FuseOperation::OpenDirectory => self.open_directory(body),
            FuseOperation::ReadDirectory {
                handle,
                offset,
                bytes,
            } => self.read_directory(node, *handle, *offset, *bytes, body),
            FuseOperation::ReleaseDirectory { handle } => {
                self.handles.drop_listing(*handle);
                Ok(())
            }
            FuseOperation::Destroy => Ok(()),
            FuseOperation::Xattr { .. }
            | FuseOperation::Xattrs { .. }
            | FuseOperation::SetXattr { .. }
            | FuseOperation::RemoveXattr(_) => self.xattr(node, &request.operation, asked, body),
            other => self.change_name(number, caller, other, asked, body),
        }
    }
}
