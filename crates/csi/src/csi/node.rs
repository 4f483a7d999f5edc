//! The node service.

use tonic::{Request, Response, Status};

use super::api::node_server::Node;
use super::api::node_service_capability::rpc::Type as RpcType;
use super::api::node_service_capability::{Rpc, Type};
use super::api::volume_capability::access_mode::Mode;
use super::api::volume_usage::Unit;
use super::api::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest,
    NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability,
    NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse,
    NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, Topology, VolumeCapability, VolumeUsage,
};
use super::{CsiDriver, TOPOLOGY, id, missing, path, size, usage};
use crate::node::{PublishMode, VolumeSpace, VolumeUse};
use crate::refusal::VolumeRefusal;

/// Returns how a volume is to be used, by a capability that must be there.
fn asked(capability: Option<&VolumeCapability>) -> Result<(VolumeUse, Mode), VolumeRefusal> {
    usage(capability.ok_or_else(|| missing("volume_capability"))?)
}

fn amounts([total, used, available]: [u64; 3], unit: Unit) -> VolumeUsage {
    let amount = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    VolumeUsage {
        available: amount(available),
        total: amount(total),
        used: amount(used),
        unit: unit.into(),
    }
}

#[tonic::async_trait]
impl Node for CsiDriver {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        self.work("NodeStageVolume", move |driver| {
            let request = request.get_ref();
            let id = id(&request.volume_id)?;
            let staging = path(&request.staging_target_path, "staging_target_path")?;
            let (usage, _) = asked(request.volume_capability.as_ref())?;
            driver.node.stage(&id, &staging, &usage)?;
            Ok(NodeStageVolumeResponse {})
        })
        .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        self.work("NodeUnstageVolume", move |driver| {
            let request = request.get_ref();
            let id = id(&request.volume_id)?;
            let staging = path(&request.staging_target_path, "staging_target_path")?;
            driver.node.unstage(&id, &staging)?;
            Ok(NodeUnstageVolumeResponse {})
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        self.work("NodePublishVolume", move |driver| {
            let request = request.get_ref();
            let id = id(&request.volume_id)?;
            let target = path(&request.target_path, "target_path")?;
            let (usage, mode) = asked(request.volume_capability.as_ref())?;
            let staging = path(&request.staging_target_path, "staging_target_path")?;
            let mode = PublishMode {
                read_only: request.readonly || mode == Mode::SingleNodeReaderOnly,
                alone: mode == Mode::SingleNodeSingleWriter,
            };
            driver.node.publish(&id, (&staging, &target), &usage, mode)?;
            Ok(NodePublishVolumeResponse {})
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        self.work("NodeUnpublishVolume", move |driver| {
            let request = request.get_ref();
            let id = id(&request.volume_id)?;
            let target = path(&request.target_path, "target_path")?;
            driver.node.unpublish(&id, &target)?;
            Ok(NodeUnpublishVolumeResponse {})
        })
        .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        self.work("NodeGetVolumeStats", move |driver| {
            let request = request.get_ref();
            let id = id(&request.volume_id)?;
            let path = path(&request.volume_path, "volume_path")?;
            let usage = match driver.node.space(&id, &path)? {
                VolumeSpace::Block(bytes) => vec![VolumeUsage {
                    total: i64::try_from(bytes).unwrap_or(i64::MAX),
                    unit: Unit::Bytes.into(),
                    ..VolumeUsage::default()
                }],
                VolumeSpace::FileSystem { bytes, inodes } => {
                    vec![amounts(bytes, Unit::Bytes), amounts(inodes, Unit::Inodes)]
                }
            };
            Ok(NodeGetVolumeStatsResponse { usage })
        })
        .await
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        self.work("NodeExpandVolume", move |driver| {
            let request = request.get_ref();
            let id = id(&request.volume_id)?;
            let path = path(&request.volume_path, "volume_path")?;
            let size = size(request.capacity_range.as_ref())?;
            let bytes = driver.node.expand(&id, &path, size)?;
            Ok(NodeExpandVolumeResponse {
                capacity_bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
            })
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let kinds = [
            RpcType::StageUnstageVolume,
            RpcType::GetVolumeStats,
            RpcType::ExpandVolume,
            RpcType::SingleNodeMultiWriter,
        ];
        let capabilities = kinds.map(|kind| NodeServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })),
        });
        Ok(Response::new(NodeGetCapabilitiesResponse {
            capabilities: capabilities.into(),
        }))
    }

    async fn node_get_info(
        &self,
        _: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        let segments = [(TOPOLOGY.to_owned(), self.node_id.to_string())];
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.node_id.to_string(),
            accessible_topology: Some(Topology {
                segments: segments.into(),
            }),
            ..NodeGetInfoResponse::default()
        }))
    }
}
