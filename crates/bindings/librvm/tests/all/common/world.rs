//! A shared region that is served, with a lender for its nodes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use netram_lender::{Config, Lender};
use netram_shared::server::{Plan, ServeConfig, Serving, Spans, Store};
use netram_transport::{Address, ClusterKey, Security};

/// Where nothing else is: above what the kernel gives to programs that do not choose, and below the stack.
pub(crate) const ADDRESS: u64 = 0x2000_0000_0000;
/// Bytes of the log of a region's server.
pub(crate) const LOG_BYTES: u64 = 4 << 20;

/// What is served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) address: u64,
    /// Bytes under a lock.
    pub(crate) span: u64,
    pub(crate) spans: u64,
    pub(crate) lease: Duration,
}

/// A server, a lender, and the key to both. Fields go in this order: the server first.
pub(crate) struct World {
    serving: Option<Serving>,
    _lender: Lender,
    shape: Shape,
    key: ClusterKey,
    pub(crate) folder: tempfile::TempDir,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            address: 0,
            span: 4096,
            spans: 16,
            // Longer than a loaded machine, or valgrind, lets a node be silent. The dead are known by their closed links.
            lease: Duration::from_secs(10),
        }
    }
}

impl World {
    pub(crate) fn start(shape: Shape) -> World {
        let folder = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
        let at = |name: &str| folder.path().join(name);
        let key = ClusterKey::generate();
        key.save_new(&at("cluster.key")).expect("the key can be written");
        let lender = Lender::start(Config {
            name: "capi-shared".to_owned(),
            listen: vec![Address::Unix(at("lender.sock"))],
            security: Security::Key(key.clone()),
            memory: 64 << 20,
            store: Some(at("lender.mem")),
            ..Config::default()
        });
        let lender = lender.expect("a lender starts");
        let bytes = shape.span * shape.spans;
        let plan = Plan {
            bytes,
            address: shape.address,
            spans: Spans::even(bytes, shape.span).expect("spans"),
            log_bytes: LOG_BYTES,
            nodes_settings: format!(
                "lenders = [\"unix:{}\"]\ninsecure = true\none-domain = true\nmembers = 1\nwindow = \"1MiB\"\npatience = \"2s\"\n",
                at("lender.sock").display()
            ),
        };
        Store::create(&at("region"), &plan).expect("a region is made");
        let mut world = World {
            serving: None,
            _lender: lender,
            shape,
            key,
            folder,
        };
        world.serve();
        world
    }

    /// Serves what is in the region's directory.
    pub(crate) fn serve(&mut self) {
        let address = Address::Unix(self.at("server.sock"));
        let config = ServeConfig {
            lease: self.shape.lease,
            ..ServeConfig::new(vec![address], Security::Key(self.key.clone()))
        };
        let serving = Serving::start(&self.at("region"), config);
        self.serving = Some(serving.expect("the region is served"));
    }

    /// The server is gone, with its directory.
    pub(crate) fn lose(&mut self) {
        self.serving = None;
        std::fs::rename(self.at("region"), self.at("lost")).expect("it is a directory");
    }

    pub(crate) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn server(&self) -> String {
        format!("unix:{}", self.at("server.sock").display())
    }

    /// A case of a program, in this world.
    pub(crate) fn case(&self, mut command: Command, case: &str) -> Command {
        command.arg(case).arg(self.folder.path());
        command.env("SERVER", self.server());
        command.env("ADDRESS", format!("{ADDRESS:#x}"));
        command
    }
}
