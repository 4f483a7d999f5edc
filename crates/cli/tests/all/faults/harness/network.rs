//! Namespaces joined by a bridge: each a machine of its own, as far as the network goes. Needs root.

use std::sync::atomic::{AtomicU32, Ordering};

use super::process::tool;

/// The port that lenders in namespaces listen on.
const PORT: u16 = 7420;

/// Machines on one network, numbered from 0; all of it removed when dropped.
pub(crate) struct Network {
    /// Short and unique: interface names hold 15 characters.
    prefix: String,
    machines: Vec<String>,
}

static NETWORKS: AtomicU32 = AtomicU32::new(0);

impl Network {
    /// `Err`: what is missing to make one.
    pub(crate) fn new(count: usize) -> Result<Network, String> {
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("nf{:x}{number:x}", std::process::id());
        let mut network = Network {
            prefix,
            machines: Vec::new(),
        };
        network.build(count)?;
        Ok(network)
    }

    fn build(&mut self, count: usize) -> Result<(), String> {
        // The switch is a namespace of its own, so that nothing of the real network is touched.
        let switch = self.add(&format!("{}s", self.prefix))?;
        ip(&["-n", &switch, "link", "add", "switch", "type", "bridge"])?;
        ip(&["-n", &switch, "link", "set", "switch", "up"])?;
        for index in 0..count {
            let machine = self.add(&format!("{}m{index}", self.prefix))?;
            let port = format!("port{index}");
            ip(&[
                "-n", &machine, "link", "add", "eth", "type", "veth", "peer", "name", &port, "netns", &switch,
            ])?;
            ip(&["-n", &switch, "link", "set", &port, "master", "switch", "up"])?;
            ip(&[
                "-n",
                &machine,
                "address",
                "add",
                &format!("{}/24", host(index)),
                "dev",
                "eth",
            ])?;
            ip(&["-n", &machine, "link", "set", "lo", "up"])?;
            ip(&["-n", &machine, "link", "set", "eth", "up"])?;
        }
        Ok(())
    }

    fn add(&mut self, name: &str) -> Result<String, String> {
        ip(&["netns", "add", name])?;
        self.machines.push(name.to_owned());
        Ok(name.to_owned())
    }

    /// The command that runs the one behind it on a machine. Not `ip netns exec`: that gives it mounts of its
    /// own, and a disk that another test unmounts would stay mounted there.
    pub(crate) fn on(&self, machine: usize) -> Vec<String> {
        vec!["nsenter".to_owned(), format!("--net={}", self.namespace(machine))]
    }

    /// The file that names a machine's namespace.
    pub(crate) fn namespace(&self, machine: usize) -> String {
        format!("/run/netns/{}", self.machines[machine + 1])
    }

    pub(crate) fn host(&self, machine: usize) -> String {
        host(machine)
    }

    /// Gives what a machine sends this many Mbit/s.
    pub(crate) fn shape(&self, machine: usize, mbit: &str) {
        let rate = format!("{mbit}mbit");
        let namespace = &self.machines[machine + 1];
        let device = ["-n", namespace, "qdisc", "add", "dev", "eth", "root"];
        let bucket = ["tbf", "rate", &rate, "burst", "1mb", "latency", "50ms"];
        tool("tc", &[&device[..], &bucket].concat()).expect("the device is ours");
    }

    pub(crate) fn address(&self, machine: usize) -> String {
        format!("tcp://{}:{PORT}", host(machine))
    }

    /// Cuts a machine off: frames to and from it vanish without an error.
    pub(crate) fn cut(&self, machine: usize) {
        self.set_port(machine, "down");
    }

    pub(crate) fn heal(&self, machine: usize) {
        self.set_port(machine, "up");
    }

    fn set_port(&self, machine: usize, state: &str) {
        let port = format!("port{machine}");
        ip(&["-n", &self.machines[0], "link", "set", &port, state]).expect("the port is ours");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for machine in &self.machines {
            let _ = ip(&["netns", "delete", machine]);
        }
    }
}

fn host(machine: usize) -> String {
    format!("10.77.0.{}", machine + 1)
}

fn ip(arguments: &[&str]) -> Result<String, String> {
    tool("ip", arguments)
}
