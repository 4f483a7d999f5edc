//! Two network namespaces joined by a veth pair, which to the network code are two machines. Needs root and
//! `ip`.
//!
//! The client's threads enter the first, and the lender is started in the second. The machine's own network
//! is not changed.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use netram_transport::NetAddress;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::cleanup::{CleanupItem, register, unregister};
use crate::error::{BenchError, ErrorContext};
use crate::tool::{ip, tool};

const CLIENT_HOST: &str = "10.190.0.1";
const LENDER_HOST: &str = "10.190.0.2";

/// Network devices of the reading thread's namespace.
const THREAD_DEVICES: &str = "/proc/thread-self/net/dev";
/// Index of the bytes sent among a device's numbers.
const SENT_BYTES_COLUMN: usize = 8;

/// Number of pairs made by this process, so that interface and namespace names differ.
static PAIR_COUNT: AtomicU32 = AtomicU32::new(0);

/// Two joined namespaces, removed when dropped.
#[derive(Debug)]
pub struct NamespacePair {
    client: String,
    lender: String,
}

impl NamespacePair {
    /// Creates two joined namespaces.
    ///
    /// # Errors
    ///
    /// Fails if the machine does not allow it.
    pub fn new() -> Result<NamespacePair, BenchError> {
        let number = PAIR_COUNT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("netram-{}-{number}", std::process::id());
        let pair = NamespacePair {
            client: format!("{prefix}-client"),
            lender: format!("{prefix}-lender"),
        };
        for name in [&pair.client, &pair.lender] {
            register(CleanupItem::Namespace(name.clone()));
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

    /// Limits the client's half to sending `megabits` per second, like a network card of that speed. Needs
    /// the `tc` command.
    ///
    /// # Errors
    ///
    /// Fails if `tc` does.
    pub fn shape(&self, megabits: u32) -> Result<(), BenchError> {
        let rate = format!("{megabits}mbit");
        tool(
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
        .map(drop)
    }

    /// Moves the calling thread, and those it starts from now on, into the client's namespace. The thread
    /// cannot return, so it should be one that ends.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses.
    pub fn enter(&self) -> Result<(), BenchError> {
        let path = PathBuf::from("/run/netns").join(&self.client);
        let what = format_args!("enter the network namespace {}", self.client);
        let namespace = File::open(path).context(what)?;
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).context(what)
    }

    /// Bytes that the client's half has sent so far, with frame headers. The caller must be a thread that has
    /// entered.
    ///
    /// # Errors
    ///
    /// Fails if the kernel's table cannot be read.
    pub fn sent_bytes(&self) -> Result<u64, BenchError> {
        let text = std::fs::read_to_string(THREAD_DEVICES).context("count what a link has carried")?;
        sent_bytes_of(&text).ok_or_else(|| {
            BenchError::InvalidRequest(format!("{THREAD_DEVICES} has no line for `eth`: {text}"))
        })
    }

    /// A command that executes `program` in the client's namespace. Unlike `ip netns exec`, `nsenter` does
    /// not copy the mounts; a copy would keep them busy for any process that unmounts one.
    pub(crate) fn on_client(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", self.client))
            .arg(program);
        command
    }

    /// Drops all frames to the lenders without any notice, like a failed switch. Needs the `nft` command.
    pub(crate) fn cut(&self) -> Result<(), BenchError> {
        let chain = "add chain inet cut input { type filter hook input priority 0; policy drop; }";
        self.nft(&format!("add table inet cut; {chain}"))
    }

    /// Lets frames through again.
    pub(crate) fn heal(&self) -> Result<(), BenchError> {
        self.nft("delete table inet cut")
    }

    fn nft(&self, commands: &str) -> Result<(), BenchError> {
        let namespace = format!("--net=/run/netns/{}", self.lender);
        tool("nsenter", &[namespace.as_str(), "nft", commands]).map(drop)
    }

    /// The command that executes the following one in the lender's namespace.
    pub fn on_lender(&self) -> [String; 2] {
        ["nsenter".to_owned(), format!("--net=/run/netns/{}", self.lender)]
    }

    /// An address for a lender to listen on.
    pub fn listen(&self) -> NetAddress {
        let text = format!("tcp://{LENDER_HOST}:0");
        text.parse().expect("a constant host and port 0 are an address")
    }
}

impl Drop for NamespacePair {
    fn drop(&mut self) {
        for name in [&self.client, &self.lender] {
            // Fails only if creating it failed, or the operator removed it.
            let _ = ip(&["netns", "delete", name]);
            unregister(&CleanupItem::Namespace(name.clone()));
        }
    }
}

/// Bytes that the device `eth` has sent, from the kernel's table.
fn sent_bytes_of(table: &str) -> Option<u64> {
    let numbers = table.lines().find_map(|line| line.trim().strip_prefix("eth:"))?;
    numbers.split_whitespace().nth(SENT_BYTES_COLUMN)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_bytes_are_the_ninth_number() {
        let table = "Inter-|   Receive  |  Transmit\n    lo: 1 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0\n   \
                     eth: 1006 13 0 0 0 0 0 0 4096 9 0 0 0 0 0 0\n";
        assert_eq!(sent_bytes_of(table), Some(4096));
        assert_eq!(sent_bytes_of("Inter-|   Receive"), None);
    }
}
