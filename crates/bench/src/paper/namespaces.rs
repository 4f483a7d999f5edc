//! Two network namespaces joined by a veth pair: two machines, as far as the network's code goes. Needs root and `ip`.
//!
//! The client's threads enter the first, the lender is started in the second, and nothing of the machine's own network is
//! touched.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use netram_transport::Address;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::{BenchError, Context};
use crate::site::{forget_namespace, remember_namespace};

const CLIENT_HOST: &str = "10.190.0.1";
const LENDER_HOST: &str = "10.190.0.2";

/// Pairs made by this process: interface and namespace names must not meet.
static MADE: AtomicU32 = AtomicU32::new(0);

/// The two, removed when dropped.
#[derive(Debug)]
pub struct Namespaces {
    client: String,
    lender: String,
}

impl Namespaces {
    /// Makes two joined namespaces. `Err`: what the machine does not allow.
    pub fn new() -> Result<Namespaces, BenchError> {
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("netram-{}-{number}", std::process::id());
        let pair = Namespaces {
            client: format!("{prefix}-client"),
            lender: format!("{prefix}-lender"),
        };
        for name in [&pair.client, &pair.lender] {
            // Remembered before it is made: a signal between the two would leave it.
            remember_namespace(name);
            ip(&["netns", "add", name])?;
        }
        let (client, lender) = (pair.client.as_str(), pair.lender.as_str());
        ip(&[
            "-n", client, "link", "add", "eth", "type", "veth", "peer", "name", "eth", "netns", lender,
        ])?;
        for (name, host) in [(client, CLIENT_HOST), (lender, LENDER_HOST)] {
            let network = format!("{host}/30");
            ip(&["-n", name, "address", "add", &network, "dev", "eth"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
            ip(&["-n", name, "link", "set", "eth", "up"])?;
        }
        Ok(pair)
    }

    /// Lets the client's half send so many megabits a second and no more, as a network card of that kind would. Needs
    /// the `tc` command.
    pub fn shape(&self, megabits: u32) -> Result<(), BenchError> {
        let rate = format!("{megabits}mbit");
        run(
            "tc",
            &[
                "-n",
                &self.client,
                "qdisc",
                "replace",
                "dev",
                "eth",
                "root",
                "tbf",
                "rate",
                &rate,
                "burst",
                "256kb",
                "latency",
                "20ms",
            ],
        )
    }

    /// Moves the calling thread, and those it starts from now on, into the client's namespace. There is no way back for
    /// the thread: let it be one that ends.
    pub fn enter(&self) -> Result<(), BenchError> {
        let path = PathBuf::from("/run/netns").join(&self.client);
        let what = format_args!("enter the network namespace {}", self.client);
        let namespace = File::open(path).context(what)?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).context(what)
    }

    /// The client's namespace, as an argument of `nsenter`. Unlike `ip netns exec` it leaves the mounts alone: a copy of
    /// them would hold up whoever unmounts something.
    pub(crate) fn client_file(&self) -> String {
        format!("--net=/run/netns/{}", self.client)
    }

    /// A switch that has failed: frames to the lenders vanish, and nobody is told. Needs the `nft` command.
    pub(crate) fn cut(&self) -> Result<(), BenchError> {
        let chain = "add chain inet cut input { type filter hook input priority 0; policy drop; }";
        self.nft(&format!("add table inet cut; {chain}"))
    }

    /// It works again.
    pub(crate) fn heal(&self) -> Result<(), BenchError> {
        self.nft("delete table inet cut")
    }

    fn nft(&self, commands: &str) -> Result<(), BenchError> {
        let namespace = format!("--net=/run/netns/{}", self.lender);
        run("nsenter", &[namespace.as_str(), "nft", commands])
    }

    /// The command that starts the one behind it in the lender's namespace.
    pub fn on_lender(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.lender]
    }

    /// An address for a lender to listen on.
    pub fn listen(&self) -> Address {
        let text = format!("tcp://{LENDER_HOST}:0");
        text.parse().expect("a constant host and port 0 are an address")
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in [&self.client, &self.lender] {
            // Fails only when making it had failed, or when the operator removed it.
            let _ = ip(&["netns", "delete", name]);
            forget_namespace(name);
        }
    }
}

/// Runs the `ip` command.
pub(crate) fn ip(arguments: &[&str]) -> Result<(), BenchError> {
    run("ip", arguments)
}

/// Runs an administrator's command.
fn run(program: &str, arguments: &[&str]) -> Result<(), BenchError> {
    let what = || format!("run `{program} {}`", arguments.join(" "));
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .context(what())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(BenchError::Asked(format!("cannot {}: {said}", what())))
}
