//! Directory of the example: the lenders' memory, the region, and each node's journal.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use netram_lender::{Lender, LenderConfig};
use netram_shared::server::serve::{ServeConfig, ServingRegion};
use netram_shared::server::{RegionPlan, RegionStore, Spans};
use netram_shared::{Node, NodeOptions};
use netram_transport::{NetAddress, Security};

use crate::drawing::{LAYER_BYTES, LAYERS};

/// Names of the lenders. Every commit waits for two of them.
pub(crate) const LENDERS: [&str; 3] = ["lender-1", "lender-2", "lender-3"];
/// Time within which a process must join.
const PATIENCE: Duration = Duration::from_secs(30);

/// All processes are on this machine and talk over sockets in this directory, which no other user can enter,
/// so no keys are needed. On several machines the addresses are `tcp://`, and a key provides security.
pub(crate) struct DemoDirectory {
    pub(crate) directory: PathBuf,
}

impl DemoDirectory {
    pub(crate) fn at(directory: PathBuf) -> DemoDirectory {
        DemoDirectory { directory }
    }

    fn address(&self, name: &str) -> NetAddress {
        NetAddress::Unix(self.directory.join(format!("{name}.sock")))
    }

    fn region(&self) -> PathBuf {
        self.directory.join("region")
    }

    /// Creates the region: one span for each layer, under its lock.
    pub(crate) fn create(&self) -> anyhow::Result<()> {
        let bytes = LAYER_BYTES * u64::from(LAYERS);
        let lenders = LENDERS.map(|name| format!("\"{}\"", self.address(name)));
        let plan = RegionPlan {
            bytes,
            address: 0,
            spans: Spans::even(bytes, LAYER_BYTES)?,
            log_bytes: 16 << 20,
            nodes_settings: format!(
                "[journal]\nlenders = [{}]\nmembers = 2\none-domain = true\ninsecure = true\nwindow = \"4MiB\"\n",
                lenders.join(", ")
            ),
        };
        RegionStore::create(&self.region(), &plan)?;
        Ok(())
    }

    /// Runs a process that lends memory.
    pub(crate) fn lend(&self, name: &str) -> anyhow::Result<()> {
        let _lender = Lender::start(LenderConfig {
            name: name.to_owned(),
            listen: vec![self.address(name)],
            security: Security::Insecure,
            memory: 64 << 20,
            store: Some(self.directory.join(format!("{name}.mem"))),
            ..LenderConfig::default()
        })?;
        wait_for_end_of_input();
        Ok(())
    }

    /// Runs the process that keeps the region on its disk, with its locks and the order of its records.
    pub(crate) fn serve(&self) -> anyhow::Result<()> {
        let config = ServeConfig {
            // A process that ends is noticed at once, because its link closes. A process on a busy machine
            // must not lose its lease.
            lease: Duration::from_secs(5),
            ..ServeConfig::new(vec![self.address("server")], Security::Insecure)
        };
        let _serving = ServingRegion::start(&self.region(), config)?;
        wait_for_end_of_input();
        Ok(())
    }

    /// Maps the region into this process's memory.
    pub(crate) fn join(&self, name: &str) -> anyhow::Result<Node> {
        let directory = self.directory.join(name);
        let options = NodeOptions {
            name: name.to_owned(),
            log_bytes: 16 << 20,
            server_timeout: PATIENCE,
            ..NodeOptions::new(self.address("server"), Security::Insecure, directory)
        };
        Node::join(options).with_context(|| format!("{name} joins"))
    }
}

/// Waits for the end of the input, by which the starting process stops this one.
pub(crate) fn wait_for_end_of_input() {
    // The input's content is ignored, and an input that cannot be read has ended.
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}
