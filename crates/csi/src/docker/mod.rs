//! The volume plugin for Docker and Podman: JSON by HTTP over a Unix socket, as both document it.

mod users;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytesize::ByteSize;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::UnixListener;

use crate::class::VolumeClass;
use crate::node::{VolumeNode, VolumeUse};
use crate::refusal::VolumeRefusal;
use crate::volume_id::VolumeId;
use crate::volumes::SizeRange;
use users::VolumeUsers;

/// Option with a new volume's size.
const SIZE: &str = "size";

/// A request; each method uses some of its fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct PluginRequest {
    /// Name of the volume.
    name: String,
    /// Options of a new volume.
    opts: Option<BTreeMap<String, String>>,
    /// Name of the container that mounts it.
    #[serde(rename = "ID")]
    id: String,
}

/// The volume plugin of one machine.
#[derive(Debug)]
pub(crate) struct DockerPlugin {
    node: VolumeNode,
    users: VolumeUsers,
}

impl DockerPlugin {
    /// Makes the plugin. Containers that used volumes before it was started are still known.
    pub(crate) fn new(node: VolumeNode) -> Result<DockerPlugin, VolumeRefusal> {
        let users = VolumeUsers::open(&node.volumes.records)?;
        Ok(DockerPlugin { node, users })
    }

    /// Serves until `stopped` ends.
    pub(crate) async fn serve(
        self,
        listener: UnixListener,
        stopped: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let router = Router::new().fallback(answer).with_state(Arc::new(self));
        axum::serve(listener, router)
            .with_graceful_shutdown(stopped)
            .await
    }

    /// Carries out a request.
    fn carry_out(&self, method: &str, request: &PluginRequest) -> Result<Value, VolumeRefusal> {
        match method {
            "/Plugin.Activate" => Ok(json!({ "Implements": ["VolumeDriver"] })),
            "/VolumeDriver.Capabilities" => Ok(json!({ "Capabilities": { "Scope": "local" } })),
            "/VolumeDriver.Create" => self.create(request).map(|()| json!({ "Err": "" })),
            "/VolumeDriver.List" => {
                let all = self.node.volumes.list()?;
                let volumes = all.keys().map(|id| self.describe(id));
                let volumes = volumes.collect::<Result<Vec<Value>, VolumeRefusal>>()?;
                Ok(json!({ "Volumes": volumes, "Err": "" }))
            }
            "/VolumeDriver.Get" => {
                let id = self.existing(&request.name)?;
                Ok(json!({ "Volume": self.describe(&id)?, "Err": "" }))
            }
            "/VolumeDriver.Path" => {
                let id = self.existing(&request.name)?;
                Ok(json!({ "Mountpoint": self.mount_point(&id)?, "Err": "" }))
            }
            "/VolumeDriver.Remove" => self.remove(&request.name).map(|()| json!({ "Err": "" })),
            "/VolumeDriver.Mount" => {
                let place = self.mount(&request.name, &request.id)?;
                Ok(json!({ "Mountpoint": place, "Err": "" }))
            }
            "/VolumeDriver.Unmount" => {
                self.unmount(&request.name, &request.id)?;
                Ok(json!({ "Err": "" }))
            }
            other => Err(VolumeRefusal::Invalid(format!(
                "netram-csi has no method {other}: it is a volume plugin"
            ))),
        }
    }

    fn existing(&self, name: &str) -> Result<VolumeId, VolumeRefusal> {
        let id = VolumeId::of_name(name);
        match self.node.volumes.exists(&id) {
            true => Ok(id),
            false => Err(VolumeRefusal::NotFound(name.to_owned())),
        }
    }

    fn create(&self, request: &PluginRequest) -> Result<(), VolumeRefusal> {
        if request.name.is_empty() {
            return Err(VolumeRefusal::Invalid("the request has no Name".to_owned()));
        }
        let mut options = request.opts.clone().unwrap_or_default();
        let id = VolumeId::of_name(&request.name);
        let _alone = self.node.pending.enter(&id)?;
        if options.is_empty() && self.node.volumes.exists(&id) {
            return Ok(());
        }
        let size = match options.remove(SIZE) {
            None => SizeRange::default(),
            Some(text) => {
                let size: ByteSize = text.parse().map_err(|error| {
                    VolumeRefusal::Invalid(format!("size `{text}` is not one like 20GiB: {error}"))
                })?;
                SizeRange {
                    least: size.as_u64(),
                    most: 0,
                }
            }
        };
        if let Some(kind) = options.get(crate::class::FILE_SYSTEM) {
            crate::node::check_kind(kind)?;
        }
        let class = VolumeClass::new(options)?;
        self.node
            .volumes
            .create(&request.name, size, &class, None)
            .map(drop)
    }

    fn remove(&self, name: &str) -> Result<(), VolumeRefusal> {
        let id = self.existing(name)?;
        let _alone = self.node.pending.enter(&id)?;
        self.node.volumes.delete(&id)
    }

    /// Mounts a volume for a container, unless it is mounted for another.
    fn mount(&self, name: &str, user: &str) -> Result<PathBuf, VolumeRefusal> {
        let id = self.existing(name)?;
        let place = self.node.volumes.own_mount(&id);
        let _users = self.users.alone();
        // The user first: while one is known, nothing is unmounted.
        self.users.add(&id, user)?;
        let usage = VolumeUse::Mount {
            kind: None,
            options: Vec::new(),
        };
        let staged = self.node.stage(&id, &place, &usage);
        if staged.is_err() {
            self.users.remove(&id, user)?;
        }
        staged.map(|()| place)
    }

    /// Unmounts a volume with its last container.
    fn unmount(&self, name: &str, user: &str) -> Result<(), VolumeRefusal> {
        let id = VolumeId::of_name(name);
        let _users = self.users.alone();
        if self.users.others(&id, user)? {
            return self.users.remove(&id, user);
        }
        self.node.unstage(&id, &self.node.volumes.own_mount(&id))?;
        self.users.remove(&id, user)
    }

    /// Returns where a volume is mounted; nothing if it is not.
    fn mount_point(&self, id: &VolumeId) -> Result<String, VolumeRefusal> {
        let place = self.node.volumes.own_mount(id);
        let table = crate::file_system::table(&self.node.volumes.host)?;
        Ok(match crate::mount_table::at(&table, &place) {
            Some(_) => place.display().to_string(),
            None => String::new(),
        })
    }

    fn describe(&self, id: &VolumeId) -> Result<Value, VolumeRefusal> {
        let record = self.node.volumes.records.read(id)?;
        let name = record.map_or_else(|| id.to_string(), |record| record.name);
        Ok(json!({ "Name": name, "Mountpoint": self.mount_point(id)?, "Status": {} }))
    }
}

/// Answers a request. Its type of contents is not looked at: clients send none, or one of several.
async fn answer(State(plugin): State<Arc<DockerPlugin>>, uri: Uri, body: Bytes) -> Response {
    let done = tokio::task::spawn_blocking(move || {
        let request = match body.is_empty() {
            true => PluginRequest::default(),
            // `null` is one without contents, too.
            false => serde_json::from_slice::<Option<PluginRequest>>(&body)
                .map_err(|error| VolumeRefusal::Invalid(format!("the request cannot be read: {error}")))?
                .unwrap_or_default(),
        };
        let carried = (plugin.node.metrics).carry_out(uri.path(), || plugin.carry_out(uri.path(), &request));
        carried.inspect_err(|refusal| {
            tracing::warn!(request = uri.path(), "{refusal}");
        })
    });
    let (status, answer) = match done.await {
        Ok(Ok(answer)) => (StatusCode::OK, answer),
        Ok(Err(refusal)) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            json!({ "Err": refusal.to_string() }),
        ),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            json!({ "Err": error.to_string() }),
        ),
    };
    let kind = [(header::CONTENT_TYPE, "application/vnd.docker.plugins.v1.1+json")];
    (status, kind, answer.to_string()).into_response()
}
