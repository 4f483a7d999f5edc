//! The controller service, for the volumes of this machine.

use std::collections::HashMap;

use tonic::{Request, Response, Status};

use super::api::controller_server::Controller;
use super::api::controller_service_capability::rpc::Type as RpcType;
use super::api::controller_service_capability::{Rpc, Type};
use super::api::validate_volume_capabilities_response::Confirmed;
use super::api::{
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, ControllerServiceCapability,
    CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest,
    GetCapacityResponse, ListVolumesRequest, ListVolumesResponse, Topology, TopologyRequirement,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, Volume, VolumeCapability,
    list_volumes_response,
};
use super::{CsiDriver, TOPOLOGY, id, missing, required, size, usage};
use crate::class::VolumeClass;
use crate::refusal::VolumeRefusal;
use crate::volume_id::VolumeId;
use crate::volumes::{BYTES_MAX, KEY};

/// Beginning of a token of [`Controller::list_volumes`]; the last id that was listed follows.
const AFTER: &str = "after/";

impl CsiDriver {
    fn topology(&self) -> Topology {
        let segments = HashMap::from([(TOPOLOGY.to_owned(), self.node_id.to_string())]);
        Topology { segments }
    }

    /// Whether a place is this machine, or may be.
    fn is_here(&self, place: &Topology) -> bool {
        place
            .segments
            .get(TOPOLOGY)
            .is_none_or(|node| **node == *self.node_id)
    }

    /// Refuses a volume that no allowed machine would have.
    fn check_topology(&self, asked: Option<&TopologyRequirement>) -> Result<(), VolumeRefusal> {
        let requisite = asked.map_or(&[][..], |asked| &asked.requisite);
        if requisite.is_empty() || requisite.iter().any(|place| self.is_here(place)) {
            return Ok(());
        }
        Err(VolumeRefusal::Elsewhere(format!(
            "volumes are made on this machine only, {}, and it is not among those allowed: run the provisioner beside every \
             driver, with --node-deployment",
            self.node_id
        )))
    }

    fn volume(&self, id: &VolumeId, bytes: u64) -> Volume {
        Volume {
            capacity_bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
            volume_id: id.to_string(),
            accessible_topology: vec![self.topology()],
            ..Volume::default()
        }
    }

    fn create(&self, request: &CreateVolumeRequest) -> Result<CreateVolumeResponse, VolumeRefusal> {
        required(&request.name, "name")?;
        check_capabilities(&request.volume_capabilities)?;
        if request.volume_content_source.is_some() {
            let sentence = "volumes are neither cloned nor made from snapshots; `netram volume restore` makes one from a \
                            data lender's copy";
            return Err(VolumeRefusal::Invalid(sentence.to_owned()));
        }
        self.check_topology(request.accessibility_requirements.as_ref())?;
        let class = VolumeClass::new(request.parameters.clone())?;
        let size = size(request.capacity_range.as_ref())?;
        let _alone = self.node.pending.enter(&VolumeId::of_name(&request.name))?;
        let key = request.secrets.get(KEY).map(String::as_str);
        let (id, bytes) = self.node.volumes.create(&request.name, size, &class, key)?;
        tracing::info!(volume = %id, bytes, "created");
        Ok(CreateVolumeResponse {
            volume: Some(self.volume(&id, bytes)),
        })
    }

    fn list(&self, request: &ListVolumesRequest) -> Result<ListVolumesResponse, VolumeRefusal> {
        let after = match request.starting_token.as_str() {
            "" => None,
            token => {
                let last = token.strip_prefix(AFTER).and_then(VolumeId::parse);
                // What the specification asks for: the caller begins anew.
                Some(last.ok_or_else(|| {
                    VolumeRefusal::Restart(format!("`{token}` is no token of a list: begin anew"))
                })?)
            }
        };
        let most = match usize::try_from(request.max_entries) {
            Err(_) => return Err(VolumeRefusal::Invalid("max_entries is negative".to_owned())),
            Ok(0) => usize::MAX,
            Ok(most) => most,
        };
        let all = self.node.volumes.list()?;
        let mut rest = all
            .iter()
            .filter(|(id, _)| after.as_ref().is_none_or(|after| *id > after));
        let page: Vec<_> = rest.by_ref().take(most).collect();
        let next = rest.next().and(page.last());
        let entry = |(id, state): &(&VolumeId, &crate::volumes::VolumeState)| list_volumes_response::Entry {
            volume: Some(self.volume(id, state.bytes.unwrap_or_default())),
            status: None,
        };
        Ok(ListVolumesResponse {
            entries: page.iter().map(entry).collect(),
            next_token: next.map_or_else(String::new, |(id, _)| format!("{AFTER}{id}")),
        })
    }

    fn capacity(&self, request: &GetCapacityRequest) -> Result<GetCapacityResponse, VolumeRefusal> {
        let is_here = request
            .accessible_topology
            .as_ref()
            .is_none_or(|place| self.is_here(place));
        let is_usable = request.volume_capabilities.iter().all(|one| usage(one).is_ok());
        let free = match is_here && is_usable {
            true => self.node.volumes.free_bytes()?,
            false => 0,
        };
        Ok(GetCapacityResponse {
            available_capacity: i64::try_from(free).unwrap_or(i64::MAX),
            maximum_volume_size: Some(i64::try_from(free.min(BYTES_MAX)).unwrap_or(i64::MAX)),
            minimum_volume_size: None,
        })
    }
}

/// Refuses capabilities of which a volume lacks one.
fn check_capabilities(capabilities: &[VolumeCapability]) -> Result<(), VolumeRefusal> {
    if capabilities.is_empty() {
        return Err(missing("volume_capabilities"));
    }
    capabilities.iter().try_for_each(|one| usage(one).map(drop))
}

#[tonic::async_trait]
impl Controller for CsiDriver {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        self.work("CreateVolume", move |driver| driver.create(request.get_ref()))
            .await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        self.work("DeleteVolume", move |driver| {
            match id(&request.get_ref().volume_id) {
                // What cannot exist is deleted already.
                Err(VolumeRefusal::NotFound(_)) => (),
                id => {
                    let id = id?;
                    let _alone = driver.node.pending.enter(&id)?;
                    driver.node.volumes.delete(&id)?;
                    tracing::info!(volume = %id, "deleted");
                }
            }
            Ok(DeleteVolumeResponse {})
        })
        .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        self.work("ValidateVolumeCapabilities", move |driver| {
            let request = request.into_inner();
            let id = id(&request.volume_id)?;
            if request.volume_capabilities.is_empty() {
                return Err(missing("volume_capabilities"));
            }
            driver.node.volumes.state(&id)?;
            let checked = check_capabilities(&request.volume_capabilities);
            Ok(match checked {
                Err(refusal) => ValidateVolumeCapabilitiesResponse {
                    confirmed: None,
                    message: refusal.to_string(),
                },
                Ok(()) => ValidateVolumeCapabilitiesResponse {
                    confirmed: Some(Confirmed {
                        volume_context: request.volume_context,
                        volume_capabilities: request.volume_capabilities,
                        parameters: request.parameters,
                        mutable_parameters: request.mutable_parameters,
                    }),
                    message: String::new(),
                },
            })
        })
        .await
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        self.work("ListVolumes", move |driver| driver.list(request.get_ref()))
            .await
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        self.work("GetCapacity", move |driver| driver.capacity(request.get_ref()))
            .await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        // No EXPAND_VOLUME: the machine that has the volume makes it larger, by NodeExpandVolume.
        let kinds = [
            RpcType::CreateDeleteVolume,
            RpcType::ListVolumes,
            RpcType::GetCapacity,
            RpcType::SingleNodeMultiWriter,
        ];
        let capabilities = kinds.map(|kind| ControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })),
        });
        Ok(Response::new(ControllerGetCapabilitiesResponse {
            capabilities: capabilities.into(),
        }))
    }
}
