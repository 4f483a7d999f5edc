//! The system under failure: lenders, a volume, its device, and ext4 on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use netram_transport::{NetAddress, WaitPolicy};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::cleanup::{CleanupItem, register, unregister};
use crate::error::{BenchError, ErrorContext};
use crate::namespaces::NamespacePair;
use crate::testbed::{LenderProcess, LenderSpec, SocketKind, Testbed};
use crate::tool::{TOOL_TIMEOUT, finish, tool, wait_until};
use crate::volume::{VolumeDirectory, VolumeRedundancy};

const VOLUME_BYTES: u64 = 384 << 20;
/// Two members and a spare, as LND's cluster had more machines than it needed.
const LENDERS: usize = 3;
pub(super) const MEMBERS: usize = 2;
const SPEC: LenderSpec = LenderSpec {
    wire: SocketKind::Tcp,
    secure: true,
    wait: WaitPolicy::Yield { us: 50 },
    core: None,
};

/// The data lender and the directory on its disk. Its process may be dead.
struct TestDataLender {
    process: Option<LenderProcess>,
    address: NetAddress,
    directory: PathBuf,
}

/// A mounted volume into which failures are injected.
pub(super) struct FailureTestbed<'s> {
    site: &'s Testbed,
    network: Option<NamespacePair>,
    lenders: Vec<Option<LenderProcess>>,
    data: Option<TestDataLender>,
    /// Removed at the end.
    _place: VolumeDirectory,
    /// Directory of the volume.
    volume: PathBuf,
    mount: PathBuf,
    run: PathBuf,
    /// Supervisor and server of the device.
    processes: Vec<i32>,
}

impl<'s> FailureTestbed<'s> {
    /// Creates a volume with ext4, attached and mounted. `home` is the site of the client's files: the
    /// testbed itself, or one on another disk. With `network` the lenders are on its other side.
    pub(super) fn new(
        site: &'s Testbed,
        home: &Testbed,
        network: Option<NamespacePair>,
    ) -> Result<FailureTestbed<'s>, BenchError> {
        FailureTestbed::with(site, home, network, None)
    }

    /// The same, with a data lender that is in service.
    pub(super) fn with_data_lender(site: &'s Testbed) -> Result<FailureTestbed<'s>, BenchError> {
        let directory = site.directory().join(format!("kept-{}", site.number()));
        let process = site.data_lender_at(SPEC, &site.listen(SocketKind::Tcp), &directory)?;
        let data = TestDataLender {
            address: process.address().clone(),
            process: Some(process),
            directory,
        };
        let rig = FailureTestbed::with(site, site, None, Some(data))?;
        rig.until_in_service()?;
        Ok(rig)
    }

    fn with(
        site: &'s Testbed,
        home: &Testbed,
        network: Option<NamespacePair>,
        data: Option<TestDataLender>,
    ) -> Result<FailureTestbed<'s>, BenchError> {
        let lenders: Result<Vec<LenderProcess>, BenchError> = (0..LENDERS)
            .map(|_| match &network {
                Some(network) => home.remote_lender(network, SPEC),
                None => home.lender(SPEC),
            })
            .collect();
        let lenders = lenders?;
        let holders = VolumeRedundancy {
            lenders: lenders.iter().map(|lender| lender.address().clone()).collect(),
            members: Some(MEMBERS),
            data_lender: data.as_ref().map(|data| data.address.clone()),
            ..VolumeRedundancy::default()
        };
        let place = VolumeDirectory::new(home, VOLUME_BYTES, &holders)?;
        let number = site.number();
        let mount = site.directory().join(format!("mount-{number}"));
        fs::create_dir(&mount).context("make a directory to mount on")?;
        let mut rig = FailureTestbed {
            site,
            network,
            lenders: lenders.into_iter().map(Some).collect(),
            data,
            volume: place.path().to_owned(),
            _place: place,
            mount,
            run: site.directory().join(format!("run-{number}")),
            processes: Vec::new(),
        };
        register(CleanupItem::Mount(rig.mount.clone()));
        rig.attach(&[])?;
        rig.until_members(MEMBERS)?;
        tool("mkfs.ext4", &["-q", "-F", &rig.device()])?;
        rig.mount()?;
        Ok(rig)
    }

    /// Mount point of the file system.
    pub(super) fn mounted(&self) -> &Path {
        &self.mount
    }

    /// Directory for fio's reports.
    pub(super) fn report_directory(&self) -> &Path {
        self.site.directory()
    }

    fn device(&self) -> String {
        self.run.join("dev/volume").display().to_string()
    }

    /// Runs `netram volume` on the client's side of the network.
    fn disk(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Result<String, BenchError> {
        let mut command = match &self.network {
            Some(network) => network.on_client(self.site.program()),
            None => Command::new(self.site.program()),
        };
        command.arg("volume").args(arguments).arg(&self.volume);
        command.env("NETRAM_VOLUME_RUN", &self.run);
        command.envs(environment.iter().copied());
        finish(&mut command)
    }

    /// Attaches the volume, which recovers it. Returns the duration.
    pub(super) fn attach(&mut self, environment: &[(&str, &str)]) -> Result<Duration, BenchError> {
        let mut said = Ok(String::new());
        let mut began = Instant::now();
        wait_until("the volume is free", || {
            began = Instant::now();
            said = self.disk(
                &["attach", "--way", "fuse", "--name", "volume", "--json"],
                environment,
            );
            let early = |error: &BenchError| error.to_string().contains("being attached or detached");
            Ok(!said.as_ref().is_err_and(early))
        })?;
        let took = began.elapsed();
        let record: Value = serde_json::from_str(&said?).context("read what is attached")?;
        let id = |part: &str| record[part]["id"].as_i64().and_then(|id| i32::try_from(id).ok());
        // The supervisor comes first, since it might restart the server.
        self.processes = [id("supervisor"), id("server")].into_iter().flatten().collect();
        match self.processes.len() {
            2 => Ok(took),
            _ => Err(BenchError::InvalidRequest(format!(
                "the device has no processes: {record}"
            ))),
        }
    }

    pub(super) fn mount(&self) -> Result<(), BenchError> {
        let mount = self.mount.display().to_string();
        tool("mount", &["-t", "ext4", &self.device(), &mount]).map(drop)
    }

    pub(super) fn unmount(&self) -> Result<(), BenchError> {
        let mount = self.mount.display().to_string();
        let mut said = Ok(String::new());
        wait_until("the file system is unmounted", || {
            said = tool("umount", &[&mount]);
            Ok(!said
                .as_ref()
                .is_err_and(|error| error.to_string().contains("busy")))
        })?;
        said.map(drop)
    }

    /// Checks with the file system's own checker, which must find no error. The file system has been mounted
    /// since the failure, so its journal is empty.
    pub(super) fn check(&self) -> Result<(), BenchError> {
        tool("fsck.ext4", &["-f", "-n", &self.device()])
            .map(drop)
            .map_err(|error| BenchError::WrongData {
                place: self.volume.clone(),
                why: error.to_string(),
            })
    }

    /// Closes everything in the order that a user would.
    pub(super) fn close(mut self) -> Result<(), BenchError> {
        self.unmount()?;
        self.check()?;
        self.disk(&["detach"], &[])?;
        self.processes.clear();
        Ok(())
    }

    /// Stops supervisor and server, so that they cannot react to their disk's failure. Returns when none of
    /// their threads runs, because a signal takes a moment.
    pub(super) fn freeze(&self) -> Result<(), BenchError> {
        self.signal(Signal::STOP);
        wait_until("the volume's processes stand still", || {
            Ok(self.processes.iter().all(|process| is_stopped(*process)))
        })
    }

    /// Kills the client's processes, as if its machine had died. Users of the device get errors.
    pub(super) fn crash(&mut self) {
        self.signal(Signal::KILL);
        self.processes.clear();
    }

    fn signal(&self, signal: Signal) {
        for pid in self.processes.iter().copied().filter_map(Pid::from_raw) {
            // It may have ended by itself, with its device.
            let _ = kill_process(pid, signal);
        }
    }

    fn volume_status(&self) -> Result<Value, BenchError> {
        let said = self.disk(&["status", "--json"], &[])?;
        serde_json::from_str(&said).context("read what is shown")
    }

    /// The members that the volume's view names.
    fn members(&self) -> Result<Vec<String>, BenchError> {
        let shown = self.volume_status()?;
        let members = shown["members"].as_array().into_iter().flatten();
        Ok(members
            .filter_map(|one| one.as_str().map(str::to_owned))
            .collect())
    }

    /// Waits until `count` members hold the writes; returns the duration.
    pub(super) fn until_members(&self, count: usize) -> Result<Duration, BenchError> {
        self.until_view(&format!("there are {count} members"), |members| {
            members.len() == count
        })
    }

    /// Waits until the wanted number of members is reached without the lender at `address`; returns the
    /// duration.
    pub(super) fn until_replaced(&self, address: &str) -> Result<Duration, BenchError> {
        self.until_view("a spare has replaced the lender", |members| {
            members.len() == MEMBERS && !members.iter().any(|one| one == address)
        })
    }

    fn until_view(&self, what: &str, enough: impl Fn(&[String]) -> bool) -> Result<Duration, BenchError> {
        let began = Instant::now();
        wait_until(what, || Ok(enough(&self.members()?)))?;
        Ok(began.elapsed().min(TOOL_TIMEOUT))
    }

    pub(super) fn lender(&self, index: usize) -> Result<&LenderProcess, BenchError> {
        self.lenders[index]
            .as_ref()
            .ok_or_else(|| BenchError::InvalidRequest(format!("lender {index} was killed")))
    }

    /// Kills a lender's process and discards its memory, as when its machine dies.
    pub(super) fn kill_lender(&mut self, index: usize) {
        self.lenders[index] = None;
    }

    /// Does the same to all lenders; returns their addresses.
    pub(super) fn kill_lenders(&mut self) -> Vec<String> {
        let lenders = self.lenders.iter_mut().filter_map(Option::take);
        lenders.map(|lender| lender.address().to_string()).collect()
    }

    /// Starts lenders at the addresses of killed ones.
    pub(super) fn restart_lenders(&mut self, addresses: &[String]) -> Result<(), BenchError> {
        for (lender, address) in self.lenders.iter_mut().zip(addresses) {
            let address = address.parse().context("read where a lender was")?;
            *lender = Some(self.site.lender_at(SPEC, &address)?);
        }
        Ok(())
    }

    /// Kills the data lender's process; its disk stays.
    pub(super) fn kill_data_lender(&mut self) {
        if let Some(data) = &mut self.data {
            data.process = None;
        }
    }

    /// Restarts it on its disk.
    pub(super) fn restart_data_lender(&mut self) -> Result<(), BenchError> {
        if let Some(data) = &mut self.data {
            data.process = Some(self.site.data_lender_at(SPEC, &data.address, &data.directory)?);
        }
        Ok(())
    }

    /// Waits until the data lender has everything on the client's disk; returns the duration.
    pub(super) fn until_in_service(&self) -> Result<Duration, BenchError> {
        let began = Instant::now();
        wait_until("the data lender is in service", || {
            Ok(self.volume_status()?["live"]["data_lender"]["in_service"] == true)
        })?;
        Ok(began.elapsed())
    }

    /// Waits until the volume has noticed that its data lender is gone.
    pub(super) fn until_data_lender_lost(&self) -> Result<Duration, BenchError> {
        let began = Instant::now();
        wait_until("the data lender is missed", || {
            Ok(self.volume_status()?["live"]["data_lender"]["connected"] == false)
        })?;
        Ok(began.elapsed())
    }

    /// Waits until the client's new disk has every block.
    pub(super) fn until_copied(&self) -> Result<(), BenchError> {
        wait_until("everything is copied", || {
            let live = &self.volume_status()?["live"];
            Ok(live.is_object() && live["restoring"].is_null())
        })
    }

    /// Removes the client's directory, as when its disk has died, and prepares fetching the volume from the
    /// data lender.
    pub(super) fn lose_disk(&mut self, id: &str) -> Result<(), BenchError> {
        std::fs::remove_dir_all(&self.volume).context("remove the client's directory")?;
        let Some(data) = &self.data else {
            return Err(BenchError::InvalidRequest("there is no data lender".to_owned()));
        };
        self.volume = self.volume.with_extension("restored");
        let key = self.site.key_file().display().to_string();
        let from = data.address.to_string();
        let mut arguments = vec![
            "restore",
            "--from",
            &from,
            "--volume",
            id,
            "--key-file",
            &key,
            "--one-domain",
            "--client-is-off",
        ];
        let lenders = self
            .lenders
            .iter()
            .flatten()
            .map(|lender| lender.address().to_string());
        let lenders: Vec<String> = lenders.collect();
        lenders
            .iter()
            .for_each(|lender| arguments.extend(["--lender", lender]));
        self.disk(&arguments, &[]).map(drop)
    }

    /// The volume's id.
    pub(super) fn id(&self) -> Result<String, BenchError> {
        let shown = self.volume_status()?;
        Ok(shown["id"].as_str().unwrap_or_default().to_owned())
    }

    /// Drops all packets between client and lenders.
    pub(super) fn cut(&self) -> Result<(), BenchError> {
        self.network.as_ref().map_or(Ok(()), NamespacePair::cut)
    }

    /// Lets packets through again.
    pub(super) fn heal(&self) -> Result<(), BenchError> {
        self.network.as_ref().map_or(Ok(()), NamespacePair::heal)
    }
}

impl Drop for FailureTestbed<'_> {
    fn drop(&mut self) {
        // After a failed measurement: a stuck server would hold up the unmount for ever, so it is resumed
        // first.
        self.signal(Signal::CONT);
        self.crash();
        let mount = self.mount.display().to_string();
        if tool("umount", &[&mount]).is_err() {
            let _ = tool("umount", &["--lazy", &mount]);
        }
        unregister(&CleanupItem::Mount(self.mount.clone()));
    }
}

/// Whether the process has ended or none of its threads runs.
fn is_stopped(process: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    threads.into_iter().flatten().flatten().all(|thread| {
        let line = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The name before it may contain spaces and brackets. A process that has just ended has no line.
        line.rsplit_once(") ")
            .is_none_or(|(_, state)| state.starts_with(['T', 'Z', 'X']))
    })
}
