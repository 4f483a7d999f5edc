//! A served shared region, with a lender for its nodes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use netram_lender::{Lender, LenderConfig};
use netram_shared::server::{RegionPlan, RegionStore, ServeConfig, ServingRegion, Spans};
use netram_transport::{ClusterKey, NetAddress, Security};

/// An unused address: above those that the kernel chooses, and below the stack.
pub(crate) const ADDRESS: u64 = 0x2000_0000_0000;
/// Bytes of the log of a region's server.
pub(crate) const LOG_BYTES: u64 = 4 << 20;

/// Parameters of the served region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FixtureOptions {
    pub(crate) address: u64,
    /// Bytes covered by each lock.
    pub(crate) span: u64,
    pub(crate) spans: u64,
    pub(crate) lease: Duration,
}

/// A server, a lender, and the key to both. Fields are dropped in this order, the server first.
pub(crate) struct RegionFixture {
    serving: Option<ServingRegion>,
    _lender: Lender,
    shape: FixtureOptions,
    key: ClusterKey,
    pub(crate) directory: tempfile::TempDir,
}

impl Default for FixtureOptions {
    fn default() -> FixtureOptions {
        FixtureOptions {
            address: 0,
            span: 4096,
            spans: 16,
            // Longer than a node is silent on a loaded machine or under valgrind. Dead nodes are recognised
            // by their closed links.
            lease: Duration::from_secs(10),
        }
    }
}

impl RegionFixture {
    pub(crate) fn start(shape: FixtureOptions) -> RegionFixture {
        let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
        let at = |name: &str| directory.path().join(name);
        let key = ClusterKey::generate();
        key.save_new(&at("cluster.key")).expect("the key can be written");
        let lender = Lender::start(LenderConfig {
            name: "capi-shared".to_owned(),
            listen: vec![NetAddress::Unix(at("lender.sock"))],
            security: Security::Key(key.clone()),
            memory: 64 << 20,
            store: Some(at("lender.mem")),
            ..LenderConfig::default()
        });
        let lender = lender.expect("a lender starts");
        let bytes = shape.span * shape.spans;
        let plan = RegionPlan {
            bytes,
            address: shape.address,
            spans: Spans::even(bytes, shape.span).expect("spans"),
            log_bytes: LOG_BYTES,
            nodes_settings: format!(
                "[journal]\nlenders = [\"unix:{}\"]\ninsecure = true\none-domain = true\nmembers = 1\nwindow = \"1MiB\"\npatience = \"2s\"\n",
                at("lender.sock").display()
            ),
        };
        RegionStore::create(&at("region"), &plan).expect("a region is made");
        let mut world = RegionFixture {
            serving: None,
            _lender: lender,
            shape,
            key,
            directory,
        };
        world.serve();
        world
    }

    /// Serves the region's directory.
    pub(crate) fn serve(&mut self) {
        let address = NetAddress::Unix(self.at("server.sock"));
        let config = ServeConfig {
            lease: self.shape.lease,
            ..ServeConfig::new(vec![address], Security::Key(self.key.clone()))
        };
        let serving = ServingRegion::start(&self.at("region"), config);
        self.serving = Some(serving.expect("the region is served"));
    }

    /// Removes the server together with its directory.
    pub(crate) fn lose(&mut self) {
        self.serving = None;
        std::fs::rename(self.at("region"), self.at("lost")).expect("the path is a directory");
    }

    pub(crate) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn server(&self) -> String {
        format!("unix:{}", self.at("server.sock").display())
    }

    /// A command that runs a case of a program with this region.
    pub(crate) fn case(&self, mut command: Command, case: &str) -> Command {
        command.arg(case).arg(self.directory.path());
        command.env("SERVER", self.server());
        command.env("ADDRESS", format!("{ADDRESS:#x}"));
        command
    }
}
