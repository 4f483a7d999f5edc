//! A region that is served, for nodes that are played by hand.
#![allow(dead_code, unreachable_pub)] // each test binary uses its part

use std::path::PathBuf;
use std::time::Duration;

use netram_proto::shared::NodeId;
use netram_proto::shared::message::Joined;
use netram_shared::server::serve::report::NodeReport;
use netram_shared::server::{ServeConfig, Serving, Store};
use netram_transport::{Address, ClusterKey, Security};

use super::history::{BYTES, plan};
use super::script::Script;

/// Longer than any test.
pub const LONG: Duration = Duration::from_secs(60);

pub struct Scene {
    pub serving: Option<Serving>,
    pub security: Security,
    pub segment: u32,
    pub lease: Duration,
    folder: tempfile::TempDir,
}

impl Scene {
    pub fn new(lease: Duration) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("region");
        Store::create(&root, &plan(1 << 20)).unwrap();
        let (store, _) = Store::open(&root, || ()).unwrap();
        let segment = store.segment();
        store.close().unwrap();
        let mut place = Scene {
            serving: None,
            security: Security::Key(ClusterKey::generate()),
            segment,
            lease,
            folder,
        };
        place.start();
        place
    }

    pub fn root(&self) -> PathBuf {
        self.folder.path().join("region")
    }

    pub fn config(&self) -> ServeConfig {
        let listen = vec!["tcp://127.0.0.1:0".parse().unwrap()];
        ServeConfig {
            lease: self.lease,
            ..ServeConfig::new(listen, self.security.clone())
        }
    }

    pub fn start(&mut self) {
        self.serving = Some(Serving::start(&self.root(), self.config()).unwrap());
    }

    pub fn stop(&mut self) {
        let serving = self.serving.take().unwrap();
        serving.stop();
        serving.wait().unwrap();
    }

    pub fn serving(&self) -> &Serving {
        self.serving.as_ref().unwrap()
    }

    pub fn address(&self) -> &Address {
        &self.serving().addresses()[0]
    }

    pub fn join(&self, journal: u128) -> (Script, Joined) {
        Script::join(self.address(), &self.security, self.segment, journal)
    }

    /// A node that has the whole region.
    pub fn node(&self, journal: u128) -> Script {
        let (mut script, _) = self.join(journal);
        script.whole(BYTES);
        script
    }

    pub fn stranger(&self) -> Script {
        Script::stranger(self.address(), &self.security, self.segment)
    }

    pub fn report_of(&self, node: NodeId) -> Option<NodeReport> {
        let report = self.serving().report()?;
        report.nodes.into_iter().find(|one| one.node == node.0)
    }
}
