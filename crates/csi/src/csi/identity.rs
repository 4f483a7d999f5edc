//! The identity service.

use tonic::{Request, Response, Status};

use super::api::identity_server::Identity;
use super::api::plugin_capability::service::Type as ServiceType;
use super::api::plugin_capability::volume_expansion::Type as ExpansionType;
use super::api::plugin_capability::{Service, Type, VolumeExpansion};
use super::api::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};
use super::{CsiDriver, DRIVER};
use crate::host::run;

#[tonic::async_trait]
impl Identity for CsiDriver {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: DRIVER.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = |kind: ServiceType| Type::Service(Service { r#type: kind.into() });
        let kinds = [
            service(ServiceType::ControllerService),
            service(ServiceType::VolumeAccessibilityConstraints),
            Type::VolumeExpansion(VolumeExpansion {
                r#type: ExpansionType::Online.into(),
            }),
        ];
        let capabilities = kinds.map(|kind| PluginCapability { r#type: Some(kind) });
        Ok(Response::new(GetPluginCapabilitiesResponse {
            capabilities: capabilities.into(),
        }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        self.work("Probe", |driver| {
            let host = &driver.node.volumes.host;
            // A driver without the program can do nothing.
            run(host.netram().arg("--version"))?;
            driver.node.volumes.free_bytes()?;
            Ok(ProbeResponse { ready: Some(true) })
        })
        .await
    }
}
