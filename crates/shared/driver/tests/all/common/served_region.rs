//! A served region for scripted nodes.

use std::path::PathBuf;
use std::time::Duration;

use netram_shared::server::serve::report::NodeReport;
use netram_shared::server::{RegionStore, ServeConfig, ServingRegion};
use netram_shared_machine::NodeId;
use netram_shared_machine::message::JoinReply;
use netram_transport::{ClusterKey, NetAddress, Security};

use super::history::{BYTES, plan};
use super::script::ScriptedPeer;

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) struct ServedRegion {
    pub(crate) serving: Option<ServingRegion>,
    pub(crate) security: Security,
    pub(crate) segment: u32,
    pub(crate) lease: Duration,
    directory: tempfile::TempDir,
}

impl ServedRegion {
    pub(crate) fn new(lease: Duration) -> ServedRegion {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("region");
        RegionStore::create(&root, &plan(1 << 20)).unwrap();
        let (store, _) = RegionStore::open(&root, || ()).unwrap();
        let segment = store.segment();
        store.close().unwrap();
        let mut place = ServedRegion {
            serving: None,
            security: Security::Key(ClusterKey::generate()),
            segment,
            lease,
            directory,
        };
        place.start();
        place
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.directory.path().join("region")
    }

    pub(crate) fn config(&self) -> ServeConfig {
        let listen = vec!["tcp://127.0.0.1:0".parse().unwrap()];
        ServeConfig {
            lease: self.lease,
            ..ServeConfig::new(listen, self.security.clone())
        }
    }

    pub(crate) fn start(&mut self) {
        self.serving = Some(ServingRegion::start(&self.root(), self.config()).unwrap());
    }

    pub(crate) fn stop(&mut self) {
        let serving = self.serving.take().unwrap();
        serving.stop();
        serving.wait().unwrap();
    }

    pub(crate) fn serving(&self) -> &ServingRegion {
        self.serving.as_ref().unwrap()
    }

    pub(crate) fn address(&self) -> &NetAddress {
        &self.serving().addresses()[0]
    }

    pub(crate) fn join(&self, journal: u128) -> (ScriptedPeer, JoinReply) {
        ScriptedPeer::join(self.address(), &self.security, self.segment, journal)
    }

    /// A node that has the whole region.
    pub(crate) fn node(&self, journal: u128) -> ScriptedPeer {
        let (mut script, _) = self.join(journal);
        script.whole(BYTES);
        script
    }

    pub(crate) fn stranger(&self) -> ScriptedPeer {
        ScriptedPeer::stranger(self.address(), &self.security, self.segment)
    }

    pub(crate) fn report_of(&self, node: NodeId) -> Option<NodeReport> {
        let report = self.serving().report()?;
        report.nodes.into_iter().find(|one| one.node == node.0)
    }
}
