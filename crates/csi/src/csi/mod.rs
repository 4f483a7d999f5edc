//! The driver for Kubernetes: the services of the Container Storage Interface, v1.13.

mod controller;
mod identity;
mod node;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Code, Response, Status};

use crate::node::{VolumeNode, VolumeUse};
use crate::refusal::VolumeRefusal;
use crate::volume_id::VolumeId;
use api::controller_server::ControllerServer;
use api::identity_server::IdentityServer;
use api::node_server::NodeServer;
use api::volume_capability::AccessType;
use api::volume_capability::access_mode::Mode;
use api::{CapacityRange, VolumeCapability};

/// Messages and services of the specification.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    reason = "made from the specification's own file"
)]
pub(crate) mod api {
    tonic::include_proto!("csi.v1");
}

/// Name of the driver, as StorageClasses name it.
pub(crate) const DRIVER: &str = "csi.netram.io";
/// Label of the machine that has a volume's directory.
pub(crate) const TOPOLOGY: &str = "topology.csi.netram.io/node";

/// The driver of one machine.
#[derive(Clone, Debug)]
pub(crate) struct CsiDriver {
    node: Arc<VolumeNode>,
    /// Name of this machine.
    node_id: Arc<str>,
}

impl CsiDriver {
    /// Makes the driver of the machine `node_id`.
    pub(crate) fn new(node: VolumeNode, node_id: &str) -> CsiDriver {
        CsiDriver {
            node: Arc::new(node),
            node_id: node_id.into(),
        }
    }

    /// Serves until `stopped` ends.
    pub(crate) async fn serve(
        self,
        listener: UnixListener,
        stopped: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let served = Server::builder()
            .add_service(IdentityServer::new(self.clone()))
            .add_service(ControllerServer::new(self.clone()))
            .add_service(NodeServer::new(self))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stopped);
        served.await.map_err(io::Error::other)
    }

    /// Does work that waits for programs and disks. A request whose client has gone is carried out all the
    /// same: the client repeats it.
    async fn work<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&CsiDriver) -> Result<T, VolumeRefusal> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let driver = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let metrics = &driver.node.metrics;
            metrics.carry_out(what, || work(&driver))
        })
        .await;
        let done = done.map_err(|error| Status::internal(format!("{what}: {error}")))?;
        done.map(Response::new).map_err(|refusal| {
            tracing::warn!(request = what, "{refusal}");
            status(&refusal)
        })
    }
}

fn status(refusal: &VolumeRefusal) -> Status {
    let code = match refusal {
        VolumeRefusal::Invalid(_) => Code::InvalidArgument,
        VolumeRefusal::NotFound(_) => Code::NotFound,
        VolumeRefusal::Exists(_) => Code::AlreadyExists,
        VolumeRefusal::OutOfRange(_) => Code::OutOfRange,
        VolumeRefusal::Elsewhere(_) => Code::ResourceExhausted,
        VolumeRefusal::Precondition(_) => Code::FailedPrecondition,
        VolumeRefusal::Busy(_) | VolumeRefusal::Restart(_) => Code::Aborted,
        VolumeRefusal::Failed(_) | VolumeRefusal::File { .. } => Code::Internal,
    };
    Status::new(code, refusal.to_string())
}

/// Returns the id in a request.
fn id(text: &str) -> Result<VolumeId, VolumeRefusal> {
    required(text, "volume_id")?;
    VolumeId::parse(text).ok_or_else(|| VolumeRefusal::NotFound(text.to_owned()))
}

/// Returns the path in a request.
fn path(text: &str, field: &str) -> Result<PathBuf, VolumeRefusal> {
    required(text, field).map(PathBuf::from)
}

fn required<'a>(text: &'a str, field: &str) -> Result<&'a str, VolumeRefusal> {
    match text.is_empty() {
        true => Err(missing(field)),
        false => Ok(text),
    }
}

fn missing(field: &str) -> VolumeRefusal {
    VolumeRefusal::Invalid(format!("the request has no {field}"))
}

/// Returns how a volume is to be used.
///
/// # Errors
///
/// It is to be used on several machines, or in no way that is known here.
fn usage(capability: &VolumeCapability) -> Result<(VolumeUse, Mode), VolumeRefusal> {
    let mode = capability.access_mode.as_ref().map(|mode| mode.mode());
    let mode = mode.ok_or_else(|| missing("volume_capability.access_mode"))?;
    if !matches!(
        mode,
        Mode::SingleNodeWriter
            | Mode::SingleNodeReaderOnly
            | Mode::SingleNodeSingleWriter
            | Mode::SingleNodeMultiWriter
    ) {
        return Err(VolumeRefusal::Invalid(format!(
            "a volume is used by one machine at a time, not {}: ask for ReadWriteOnce or ReadWriteOncePod",
            mode.as_str_name()
        )));
    }
    let usage = match &capability.access_type {
        None => return Err(missing("volume_capability.access_type")),
        Some(AccessType::Block(_)) => VolumeUse::Block,
        Some(AccessType::Mount(mount)) => {
            let kind = Some(mount.fs_type.clone()).filter(|kind| !kind.is_empty());
            if let Some(kind) = &kind {
                crate::node::check_kind(kind)?;
            }
            VolumeUse::Mount {
                kind,
                options: mount.mount_flags.clone(),
            }
        }
    };
    Ok((usage, mode))
}

/// Returns the bounds of a size in a request.
fn size(range: Option<&CapacityRange>) -> Result<crate::volumes::SizeRange, VolumeRefusal> {
    let bound = |bytes: i64| {
        u64::try_from(bytes).map_err(|_| {
            VolumeRefusal::OutOfRange(format!("{bytes} bytes are asked for: a size is not negative"))
        })
    };
    Ok(crate::volumes::SizeRange {
        least: bound(range.map_or(0, |range| range.required_bytes))?,
        most: bound(range.map_or(0, |range| range.limit_bytes))?,
    })
}
