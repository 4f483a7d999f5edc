//! A machine with lenders, volumes and a driver, and what an orchestrator does with them.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use netram_testkit::{CommandOutput, LenderProcess, clean, finish, netram, program, skipped, start};
use rustix::process::{Pid, Signal, kill_process};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use crate::api::controller_client::ControllerClient;
use crate::api::node_client::NodeClient;
use crate::api::volume_capability::access_mode::Mode;
use crate::api::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use crate::api::*;

const PATIENCE: Duration = Duration::from_secs(120);
pub(crate) const MIB: i64 = 1 << 20;

/// A machine whose driver may be killed and started again.
pub(crate) struct Machine {
    directory: tempfile::TempDir,
    lenders: Vec<LenderProcess>,
    runtime: tokio::runtime::Runtime,
    driver: Option<Child>,
    /// Arguments that start the driver.
    arguments: Vec<String>,
    /// Whether the driver has only the process ids of its machine, as in a container.
    in_container: bool,
}

/// Process 1 of a machine, which starts the driver in a container again whenever it ends.
const CONTAINERS: &str = r#"
    mount --make-rshared /
    while :; do unshare --mount --propagation slave -- "$0" "$@" & wait $!; done
"#;
/// Stands for systemd's program, which here has nothing to start a scope with.
const SYSTEMD_RUN: &str = r#"#!/bin/sh
    echo "$*" >> "${0%/*}/scopes"
    while [ "$1" != -- ]; do shift; done
    shift
    exec "$@"
"#;

impl Machine {
    /// Returns `None` if the machine lacks something; the test printed that it is skipped.
    fn with_driver(name: &str, arguments: impl FnOnce(&Path) -> Vec<String>) -> Option<Machine> {
        let lacks = match rustix::process::geteuid().is_root() {
            false => Some("root"),
            true => ["/dev/fuse", "/dev/loop-control"]
                .into_iter()
                .find(|path| !Path::new(path).exists()),
        };
        if let Some(lacks) = lacks {
            skipped(format_args!("attaching a volume needs {lacks}"));
            return None;
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let listen = ["--insecure", "--listen", "tcp://127.0.0.1:0"];
        let lenders =
            ["a", "b"].map(|one| LenderProcess::with_memory("64MiB", &format!("{name}-{one}"), &listen));
        let mut arguments = arguments(directory.path());
        let volumes = directory.path().join("volumes").display().to_string();
        arguments.extend([
            "--directory".to_owned(),
            volumes,
            "--netram".to_owned(),
            program().to_owned(),
        ]);
        let mut machine = Machine {
            directory,
            lenders: lenders.into(),
            // With a thread of its own, which closes connections that the driver ends.
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap(),
            driver: None,
            in_container: arguments.iter().any(|argument| argument == "--in-container"),
            arguments,
        };
        if machine.in_container {
            let program = machine.path("systemd-run");
            fs::write(&program, SYSTEMD_RUN).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        machine.start();
        Some(machine)
    }

    /// A machine with a driver for Kubernetes.
    pub(crate) fn for_kubernetes(name: &str) -> Option<Machine> {
        Machine::with_driver(name, |directory| {
            let socket = format!("unix://{}", directory.join("socket").display());
            ["serve", "--node-id", "node-1", "--endpoint", &socket]
                .map(str::to_owned)
                .into()
        })
    }

    /// A machine with a volume plugin.
    pub(crate) fn for_docker(name: &str) -> Option<Machine> {
        Machine::with_driver(name, |directory| {
            let socket = directory.join("socket").display().to_string();
            ["docker", "--socket", &socket].map(str::to_owned).into()
        })
    }

    /// A machine with process ids of its own, whose volume plugin is in a container of it.
    pub(crate) fn with_container(name: &str) -> Option<Machine> {
        Machine::with_driver(name, |directory| {
            let socket = directory.join("socket").display().to_string();
            ["docker", "--in-container", "--socket", &socket]
                .map(str::to_owned)
                .into()
        })
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self) -> Command {
        let driver = env!("CARGO_BIN_EXE_netram-csi");
        let mut command = match self.in_container {
            false => Command::new(driver),
            true => {
                let path = std::env::var("PATH").unwrap();
                let mut machine = Command::new("unshare");
                machine
                    .args(["--pid", "--fork", "--kill-child", "--mount", "--mount-proc"])
                    .args(["--", "sh", "-c", CONTAINERS, driver])
                    .env("PATH", format!("{}:{path}", self.directory.path().display()));
                machine
            }
        };
        command.args(&self.arguments);
        clean(command)
    }

    /// Starts the driver, and waits until it answers.
    pub(crate) fn start(&mut self) {
        let mut command = self.command();
        command.env("NETRAM_VOLUME_RUN", self.path("run"));
        self.driver = Some(start(&mut command));
        self.wait_until_it_listens();
    }

    fn wait_until_it_listens(&mut self) {
        let until = Instant::now() + PATIENCE;
        while UnixStream::connect(self.socket()).is_err() {
            assert!(Instant::now() < until, "the driver does not listen");
            let ended = self.driver.as_mut().unwrap().try_wait().unwrap();
            assert_eq!(ended, None, "the driver ended");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the driver in a container, and the machine's process 1.
    fn contained(&self) -> (Pid, Pid) {
        let socket = self.socket().display().to_string();
        let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<i32>().ok();
        let ours = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            let is_driver = program == Path::new(env!("CARGO_BIN_EXE_netram-csi"));
            is_driver && String::from_utf8_lossy(&line).contains(&socket)
        };
        let mut processes = fs::read_dir("/proc").unwrap().flatten().filter_map(number);
        let driver = processes.find(ours).expect("the driver runs");
        let status = fs::read_to_string(format!("/proc/{driver}/status")).unwrap();
        let parent = status
            .lines()
            .find_map(|line| line.strip_prefix("PPid:"))
            .unwrap();
        let pid = |number: i32| Pid::from_raw(number).unwrap();
        (pid(driver), pid(parent.trim().parse().unwrap()))
    }

    /// Returns a path by which this process reaches a file of the machine that has containers.
    pub(crate) fn on_machine(&self, path: &str) -> PathBuf {
        let (_, first) = self.contained();
        PathBuf::from(format!("/proc/{}/root{path}", first.as_raw_nonzero()))
    }

    /// Kills the driver in its container, and waits until another one listens.
    pub(crate) fn kill_container(&mut self) {
        let (driver, _) = self.contained();
        kill_process(driver, Signal::KILL).unwrap();
        let gone = || !Path::new(&format!("/proc/{}", driver.as_raw_nonzero())).exists();
        let until = Instant::now() + PATIENCE;
        while !gone() {
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.wait_until_it_listens();
    }

    /// Kills the driver by SIGKILL.
    pub(crate) fn kill_driver(&mut self) {
        let mut driver = self.driver.take().unwrap();
        driver.kill().unwrap();
        driver.wait().unwrap();
    }

    /// Ends the driver as an update does.
    pub(crate) fn end_driver(&mut self) {
        let mut driver = self.driver.take().unwrap();
        kill_process(Pid::from_child(&driver), Signal::TERM).unwrap();
        assert!(driver.wait().unwrap().success());
    }

    /// Runs a second driver beside the first, to its end.
    pub(crate) fn second(&self, socket: &str) -> CommandOutput {
        let ours = self.socket().display().to_string();
        let mut command = clean(Command::new(env!("CARGO_BIN_EXE_netram-csi")));
        command.args(
            self.arguments
                .iter()
                .map(|argument| argument.replace(&ours, socket)),
        );
        finish(&mut command)
    }

    /// Runs `netram` on this machine's volumes.
    pub(crate) fn netram(&self, words: &[&str]) -> CommandOutput {
        let mut command = netram();
        command
            .args(words)
            .current_dir(self.path("volumes"))
            .env("NETRAM_VOLUME_RUN", self.path("run"));
        finish(&mut command)
    }

    /// Returns the number of attached volumes.
    pub(crate) fn attached(&self) -> usize {
        let listed = self.netram(&["volume", "list", "--json"]);
        let list: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
        list.as_array().unwrap().len()
    }

    /// Parameters of a class whose volumes have both lenders.
    pub(crate) fn class(&self) -> HashMap<String, String> {
        let lenders: Vec<&str> = self
            .lenders
            .iter()
            .map(|lender| lender.address.as_str())
            .collect();
        let given = [
            ("lenders", lenders.join(",")),
            ("insecure", "true".to_owned()),
            ("oneDomain", "true".to_owned()),
            ("journalSize", "16MiB".to_owned()),
        ];
        given.map(|(key, value)| (key.to_owned(), value)).into()
    }

    fn channel(&self) -> Channel {
        let address = format!("unix://{}", self.socket().display());
        Endpoint::try_from(address)
            .unwrap()
            .timeout(PATIENCE)
            .connect_lazy()
    }

    /// Asks the controller service.
    pub(crate) fn controller<T>(
        &self,
        ask: impl AsyncFnOnce(&mut ControllerClient<Channel>) -> Result<tonic::Response<T>, Status>,
    ) -> Result<T, Status> {
        self.runtime.block_on(async {
            let mut client = ControllerClient::new(self.channel());
            ask(&mut client).await.map(tonic::Response::into_inner)
        })
    }

    /// Asks the node service.
    pub(crate) fn node<T>(
        &self,
        ask: impl AsyncFnOnce(&mut NodeClient<Channel>) -> Result<tonic::Response<T>, Status>,
    ) -> Result<T, Status> {
        self.runtime.block_on(async {
            let mut client = NodeClient::new(self.channel());
            ask(&mut client).await.map(tonic::Response::into_inner)
        })
    }

    /// Creates a volume of 64 MiB or more.
    pub(crate) fn create(
        &self,
        name: &str,
        more: impl FnOnce(&mut CreateVolumeRequest),
    ) -> Result<Volume, Status> {
        let mut request = CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(range(64 * MIB)),
            volume_capabilities: vec![mounted(Mode::SingleNodeWriter)],
            parameters: self.class(),
            ..CreateVolumeRequest::default()
        };
        more(&mut request);
        let created = self.controller(async |client| client.create_volume(request).await)?;
        Ok(created.volume.unwrap())
    }

    pub(crate) fn delete(&self, id: &str) -> Result<(), Status> {
        let volume_id = id.to_owned();
        let request = DeleteVolumeRequest {
            volume_id,
            ..DeleteVolumeRequest::default()
        };
        self.controller(async |client| client.delete_volume(request).await)
            .map(drop)
    }

    /// Stages a volume at `stage-ID`.
    pub(crate) fn stage(&self, id: &str, capability: &VolumeCapability) -> Result<(), Status> {
        let request = NodeStageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: text(&self.path(&format!("stage-{id}"))),
            volume_capability: Some(capability.clone()),
            ..NodeStageVolumeRequest::default()
        };
        self.node(async |client| client.node_stage_volume(request).await)
            .map(drop)
    }

    pub(crate) fn unstage(&self, id: &str) -> Result<(), Status> {
        let request = NodeUnstageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: text(&self.path(&format!("stage-{id}"))),
        };
        self.node(async |client| client.node_unstage_volume(request).await)
            .map(drop)
    }

    /// Publishes a staged volume at `target`.
    pub(crate) fn publish(
        &self,
        id: &str,
        target: &str,
        capability: &VolumeCapability,
        readonly: bool,
    ) -> Result<PathBuf, Status> {
        let path = self.path(target);
        let request = NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: text(&self.path(&format!("stage-{id}"))),
            target_path: text(&path),
            volume_capability: Some(capability.clone()),
            readonly,
            ..NodePublishVolumeRequest::default()
        };
        self.node(async |client| client.node_publish_volume(request).await)?;
        Ok(path)
    }

    pub(crate) fn unpublish(&self, id: &str, target: &str) -> Result<(), Status> {
        let request = NodeUnpublishVolumeRequest {
            volume_id: id.to_owned(),
            target_path: text(&self.path(target)),
        };
        self.node(async |client| client.node_unpublish_volume(request).await)
            .map(drop)
    }

    pub(crate) fn expand(&self, id: &str, target: &str, bytes: i64) -> Result<i64, Status> {
        let request = NodeExpandVolumeRequest {
            volume_id: id.to_owned(),
            volume_path: text(&self.path(target)),
            capacity_range: Some(range(bytes)),
            ..NodeExpandVolumeRequest::default()
        };
        let expanded = self.node(async |client| client.node_expand_volume(request).await)?;
        Ok(expanded.capacity_bytes)
    }

    pub(crate) fn stats(&self, id: &str, target: &str) -> Result<Vec<VolumeUsage>, Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: id.to_owned(),
            volume_path: text(&self.path(target)),
            ..NodeGetVolumeStatsRequest::default()
        };
        let stats = self.node(async |client| client.node_get_volume_stats(request).await)?;
        Ok(stats.usage)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(mut driver) = self.driver.take() {
            let _ = driver.kill();
            let _ = driver.wait();
        }
        // Nothing of a failed test may be left behind.
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let ours = table.lines().rev().filter_map(|line| line.split(' ').nth(4));
        for target in ours.filter(|target| Path::new(target).starts_with(self.directory.path())) {
            let _ = Command::new("umount")
                .args(["--lazy", target])
                .stderr(Stdio::null())
                .status();
        }
        for name in fs::read_dir(self.path("volumes")).into_iter().flatten().flatten() {
            let name = name.file_name().to_string_lossy().into_owned();
            let _ = self.netram(&["volume", "detach", &name, "--force"]);
        }
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

pub(crate) fn range(required_bytes: i64) -> CapacityRange {
    CapacityRange {
        required_bytes,
        limit_bytes: 0,
    }
}

fn capability(mode: Mode, access: AccessType) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access),
    }
}

/// The use of a volume by its file system.
pub(crate) fn mounted(mode: Mode) -> VolumeCapability {
    capability(mode, AccessType::Mount(MountVolume::default()))
}

/// The use of a volume as a block device.
pub(crate) fn block(mode: Mode) -> VolumeCapability {
    capability(mode, AccessType::Block(BlockVolume {}))
}
