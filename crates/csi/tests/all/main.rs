//! The driver, asked as Kubernetes, Docker and Podman ask it, with real lenders and mounted volumes.
#![forbid(unsafe_code)]

mod docker;
mod kill;
mod kubernetes;
mod refused;
mod testbed;

/// Messages of the specification, and clients of its services.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    reason = "made from the specification's own file"
)]
mod api {
    tonic::include_proto!("csi.v1");
}
