//! A region that is served, for nodes that are played by hand.

use std::path::PathBuf;
use std::time::Duration;

use netram_shared::server::serve::report::NodeReport;
use netram_shared::server::{ServeConfig, Serving, Store};
use netram_shared_machine::NodeId;
use netram_shared_machine::message::Joined;
use netram_transport::{Address, ClusterKey, Security};

use super::history::{BYTES, plan};
use super::script::Script;

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) struct Scene {
    pub(crate) serving: Option<Serving>,
    pub(crate) security: Security,
    pub(crate) segment: u32,
    pub(crate) lease: Duration,
    folder: tempfile::TempDir,
}

impl Scene {
    pub(crate) fn new(lease: Duration) -> Scene {
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

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path().join("region")
    }

    pub(crate) fn config(&self) -> ServeConfig {
        let listen = vec!["tcp://127.0.0.1:0".parse().unwrap()];
        ServeConfig {
            lease: self.lease,
            ..ServeConfig::new(listen, self.security.clone())
        }
    }

    pub(crate) fn start(&mut self) {
        self.serving = Some(Serving::start(&self.root(), self.config()).unwrap());
    }

    pub(crate) fn stop(&mut self) {
        let serving = self.serving.take().unwrap();
        serving.stop();
        serving.wait().unwrap();
    }

    pub(crate) fn serving(&self) -> &Serving {
        self.serving.as_ref().unwrap()
    }

    pub(crate) fn address(&self) -> &Address {
        &self.serving().addresses()[0]
    }

    pub(crate) fn join(&self, journal: u128) -> (Script, Joined) {
        Script::join(self.address(), &self.security, self.segment, journal)
    }

    /// A node that has the whole region.
    pub(crate) fn node(&self, journal: u128) -> Script {
        let (mut script, _) = self.join(journal);
        script.whole(BYTES);
        script
    }

    pub(crate) fn stranger(&self) -> Script {
        Script::stranger(self.address(), &self.security, self.segment)
    }

    pub(crate) fn report_of(&self, node: NodeId) -> Option<NodeReport> {
        let report = self.serving().report()?;
        report.nodes.into_iter().find(|one| one.node == node.0)
    }
}
