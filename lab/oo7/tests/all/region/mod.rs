//! A shared region, with its server and a lender in this process.

use std::path::Path;
use std::time::Duration;

use netram_lender::{Lender, LenderConfig};
use netram_shared::server::serve::{ServeConfig, ServingRegion};
use netram_shared::server::{RegionPlan, RegionStore as Directory, Spans};
use netram_shared::{Node, NodeOptions};
use netram_transport::{NetAddress, Security};

/// A lender and a server, and the directory of their files and the nodes'.
pub(crate) struct SharedTestbed {
    pub(crate) directory: tempfile::TempDir,
    // Dropped first.
    _serving: ServingRegion,
    _lender: Lender,
}

impl SharedTestbed {
    /// A region with this number of locks, each over a span of this size.
    pub(crate) fn new(locks: u32, span: u64) -> SharedTestbed {
        let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
        let address = |name: &str| NetAddress::Unix(directory.path().join(name));
        let lender = Lender::start(LenderConfig {
            name: "a".to_owned(),
            listen: vec![address("lender.sock")],
            security: Security::Insecure,
            memory: 256 << 20,
            store: Some(directory.path().join("lender.mem")),
            ..LenderConfig::default()
        });
        let bytes = u64::from(locks) * span;
        let plan = RegionPlan {
            bytes,
            address: 0,
            spans: Spans::even(bytes, span).unwrap(),
            log_bytes: 64 << 20,
            nodes_settings: format!(
                "[journal]\nlenders = [\"{}\"]\ninsecure = true\none-domain = true\nmembers = 1\nwindow = \"16MiB\"\n",
                address("lender.sock")
            ),
        };
        let region = directory.path().join("region");
        Directory::create(&region, &plan).unwrap();
        let mut config = ServeConfig::new(vec![address("server.sock")], Security::Insecure);
        // No node dies here, and a loaded machine may be slow.
        config.lease = Duration::from_secs(20);
        SharedTestbed {
            _serving: ServingRegion::start(&region, config).unwrap(),
            _lender: lender.unwrap(),
            directory,
        }
    }

    pub(crate) fn join(&self, name: &str) -> Node {
        join(self.directory.path(), name)
    }
}

/// Joins the region in `world` from any process.
pub(crate) fn join(world: &Path, name: &str) -> Node {
    let server = NetAddress::Unix(world.join("server.sock"));
    let options = NodeOptions {
        log_bytes: 64 << 20,
        ..NodeOptions::new(server, Security::Insecure, world.join(name))
    };
    Node::join(options).unwrap()
}
