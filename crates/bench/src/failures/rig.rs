//! What a failure happens to: lenders, a volume, its device, ext4 on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use netram_transport::WaitPolicy;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::tool::{PATIENCE, finish, tool, until};
use crate::error::{BenchError, Context};
use crate::paper::namespaces::Namespaces;
use crate::site::{Lender, LenderSpec, Site, Wire, forget_mount, remember_mount};
use crate::volume::{Holders, Place};

const VOLUME_BYTES: u64 = 384 << 20;
/// Two members and a spare, as LND's cluster had more machines than it needed.
const LENDERS: usize = 3;
pub(super) const MEMBERS: usize = 2;
const SPEC: LenderSpec = LenderSpec {
    wire: Wire::Tcp,
    secure: true,
    wait: WaitPolicy::Yield { us: 50 },
    core: None,
};

/// A volume that is mounted while something fails.
pub(super) struct Rig<'s> {
    site: &'s Site,
    network: Option<Namespaces>,
    lenders: Vec<Option<Lender>>,
    place: Place,
    mount: PathBuf,
    run: PathBuf,
    /// Supervisor and server of the device.
    processes: Vec<i32>,
}

impl<'s> Rig<'s> {
    /// A new volume with ext4 on it, attached and mounted. `home` is where the client's files are: the site itself, or a
    /// site on a disk of its own. With `network`, the lenders are on the other side of it.
    pub(super) fn new(
        site: &'s Site,
        home: &Site,
        network: Option<Namespaces>,
    ) -> Result<Rig<'s>, BenchError> {
        let lenders: Result<Vec<Lender>, BenchError> = (0..LENDERS)
            .map(|_| match &network {
                Some(network) => home.lender_beyond(network, SPEC),
                None => home.lender(SPEC),
            })
            .collect();
        let lenders = lenders?;
        let holders = Holders {
            lenders: lenders.iter().map(|lender| lender.address().clone()).collect(),
            members: Some(MEMBERS),
            ..Holders::default()
        };
        let place = Place::new(home, VOLUME_BYTES, &holders)?;
        let number = site.number();
        let mount = site.folder().join(format!("mount-{number}"));
        fs::create_dir(&mount).context("make a folder to mount on")?;
        let mut rig = Rig {
            site,
            network,
            lenders: lenders.into_iter().map(Some).collect(),
            place,
            mount,
            run: site.folder().join(format!("run-{number}")),
            processes: Vec::new(),
        };
        remember_mount(&rig.mount);
        rig.attach(&[])?;
        rig.until_members(MEMBERS)?;
        tool("mkfs.ext4", &["-q", "-F", &rig.device()])?;
        rig.mount()?;
        Ok(rig)
    }

    /// Where the file system is.
    pub(super) fn mounted(&self) -> &Path {
        &self.mount
    }

    /// Where reports about it may be put.
    pub(super) fn beside(&self) -> &Path {
        self.site.folder()
    }

    fn device(&self) -> String {
        self.run.join("dev/volume").display().to_string()
    }

    /// `netram disk`, from the client's side of the network.
    fn disk(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Result<String, BenchError> {
        let mut command = match &self.network {
            Some(network) => {
                let mut command = Command::new("nsenter");
                command.arg(network.client_file()).arg(self.site.program());
                command
            }
            None => Command::new(self.site.program()),
        };
        command.arg("disk").args(arguments).arg(self.place.path());
        command.env("NETRAM_DISK_RUN", &self.run);
        command.envs(environment.iter().copied());
        finish(&mut command)
    }

    /// Gives the volume a device, which recovers it: how long that took.
    pub(super) fn attach(&mut self, environment: &[(&str, &str)]) -> Result<Duration, BenchError> {
        let mut said = Ok(String::new());
        let mut began = Instant::now();
        until("the volume is free", || {
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
        // The supervisor first: it might start another server.
        self.processes = [id("supervisor"), id("server")].into_iter().flatten().collect();
        match self.processes.len() {
            2 => Ok(took),
            _ => Err(BenchError::Asked(format!(
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
        until("the file system is unmounted", || {
            said = tool("umount", &[&mount]);
            Ok(!said
                .as_ref()
                .is_err_and(|error| error.to_string().contains("busy")))
        })?;
        said.map(drop)
    }

    /// The file system's own checker must find nothing. It has been mounted since the failure: its journal is empty.
    pub(super) fn check(&self) -> Result<(), BenchError> {
        tool("fsck.ext4", &["-f", "-n", &self.device()])
            .map(drop)
            .map_err(|error| BenchError::Wrong {
                place: self.place.path().to_owned(),
                why: error.to_string(),
            })
    }

    /// Everything closed as its user would.
    pub(super) fn close(mut self) -> Result<(), BenchError> {
        self.unmount()?;
        self.check()?;
        self.disk(&["detach"], &[])?;
        self.processes.clear();
        Ok(())
    }

    /// Supervisor and server are stopped where they stand, so that they cannot act on what happens to their disk.
    pub(super) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// As if the client's machine had died. Whoever uses the device gets errors.
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

    /// The members that the volume's view names.
    fn members(&self) -> Result<Vec<String>, BenchError> {
        let shown: Value =
            serde_json::from_str(&self.disk(&["show", "--json"], &[])?).context("read what is shown")?;
        let members = shown["members"].as_array().into_iter().flatten();
        Ok(members
            .filter_map(|one| one.as_str().map(str::to_owned))
            .collect())
    }

    /// Waits until so many members hold what is written: how long that took.
    pub(super) fn until_members(&self, count: usize) -> Result<Duration, BenchError> {
        self.until_view(&format!("there are {count} members"), |members| {
            members.len() == count
        })
    }

    /// Waits until there are as many members as are wanted, and the lender at this address is not one of them.
    pub(super) fn until_replaced(&self, address: &str) -> Result<Duration, BenchError> {
        self.until_view("a spare has replaced the lender", |members| {
            members.len() == MEMBERS && !members.iter().any(|one| one == address)
        })
    }

    fn until_view(&self, what: &str, enough: impl Fn(&[String]) -> bool) -> Result<Duration, BenchError> {
        let began = Instant::now();
        until(what, || Ok(enough(&self.members()?)))?;
        Ok(began.elapsed().min(PATIENCE))
    }

    pub(super) fn lender(&self, index: usize) -> Result<&Lender, BenchError> {
        self.lenders[index]
            .as_ref()
            .ok_or_else(|| BenchError::Asked(format!("lender {index} was killed")))
    }

    /// Kills a lender's process and takes its memory, as when its machine dies.
    pub(super) fn kill_lender(&mut self, index: usize) {
        self.lenders[index] = None;
    }

    /// The same with all of them: where they were.
    pub(super) fn kill_lenders(&mut self) -> Vec<String> {
        let lenders = self.lenders.iter_mut().filter_map(Option::take);
        lenders.map(|lender| lender.address().to_string()).collect()
    }

    /// Starts lenders where others were killed.
    pub(super) fn bring_lenders(&mut self, addresses: &[String]) -> Result<(), BenchError> {
        for (lender, address) in self.lenders.iter_mut().zip(addresses) {
            let address = address.parse().context("read where a lender was")?;
            *lender = Some(self.site.lender_at(SPEC, &address)?);
        }
        Ok(())
    }

    /// Lets nothing through between client and lenders.
    pub(super) fn cut(&self) -> Result<(), BenchError> {
        self.network.as_ref().map_or(Ok(()), Namespaces::cut)
    }

    /// And again everything.
    pub(super) fn heal(&self) -> Result<(), BenchError> {
        self.network.as_ref().map_or(Ok(()), Namespaces::heal)
    }
}

impl Drop for Rig<'_> {
    fn drop(&mut self) {
        // Of a measurement that failed. A server that is stuck would hold up the unmounting for ever, so it goes first.
        self.signal(Signal::CONT);
        self.crash();
        let mount = self.mount.display().to_string();
        if tool("umount", &[&mount]).is_err() {
            let _ = tool("umount", &["--lazy", &mount]);
        }
        forget_mount(&self.mount);
    }
}
