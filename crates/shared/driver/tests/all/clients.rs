//! Named clients of a region's server: who may join, who may ask, and what ends when a key is revoked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_clients::{ClientLimits, ClientRegistry, ClientResource, ClientsFile, change_file};
use netram_proto::wire::ClientLimitRefusal;
use netram_shared::channel::{Channel, ChannelOpenError};
use netram_shared::server::serve::inquiry::{InquiryError, ask};
use netram_shared::server::{RegionStore, ServeConfig, ServingRegion};
use netram_transport::{ClusterKey, Security};

use crate::common::history::plan;

const PATIENCE: Duration = Duration::from_secs(20);

struct NamedRegion {
    directory: tempfile::TempDir,
    serving: ServingRegion,
}

impl NamedRegion {
    fn start() -> NamedRegion {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("region");
        RegionStore::create(&root, &plan(1 << 20)).unwrap();
        let file = directory.path().join("clients");
        change_file(&file, |file| Ok(file.clone())).unwrap();
        let clients = ClientRegistry::read(&file).unwrap();
        let own = Security::Key(ClusterKey::generate());
        let config = ServeConfig {
            clients: Some(Arc::new(clients)),
            ..ServeConfig::new(vec!["tcp://127.0.0.1:0".parse().unwrap()], own)
        };
        NamedRegion {
            serving: ServingRegion::start(&root, config).unwrap(),
            directory,
        }
    }

    fn change(&self, change: impl FnOnce(&ClientsFile, &ClusterKey) -> ClientsFile) -> Security {
        let mut made = None;
        change_file(&self.directory.path().join("clients"), |file| {
            let key = file.new_key();
            let changed = change(file, &key);
            made = Some(key);
            Ok(changed)
        })
        .unwrap();
        self.serving.reload_clients().unwrap();
        Security::Key(made.unwrap())
    }

    fn add(&self, name: &str, refused: Option<(ClientResource, u64)>) -> Security {
        let mut limits = ClientLimits::default();
        if let Some((resource, limit)) = refused {
            limits.set(resource, Some(limit));
        }
        self.change(|file, key| file.add(name, key, &limits).unwrap())
    }

    fn open(&self, client: &Security) -> Result<Channel, ChannelOpenError> {
        Channel::open(&self.serving.addresses()[0], client, PATIENCE)
    }

    fn ask(&self, client: &Security) -> Result<(), ChannelOpenError> {
        match ask(&self.serving.addresses()[0], client, PATIENCE) {
            Ok(_) => Ok(()),
            Err(InquiryError::Open { cause, .. }) => Err(cause),
            Err(error) => panic!("{error}"),
        }
    }
}

fn refused(outcome: Result<impl Sized, ChannelOpenError>) -> ClientLimitRefusal {
    match outcome.map(drop) {
        Err(ChannelOpenError::OverClientLimit(refusal)) => refusal,
        other => panic!("not refused for its limit: {other:?}"),
    }
}

#[test]
fn a_region_is_joined_and_asked_by_clients_who_may() {
    let region = NamedRegion::start();
    let node = region.add("node", Some((ClientResource::Sessions, 1)));
    let outsider = region.add("outsider", Some((ClientResource::Shared, 0)));
    let silent = region.add("silent", Some((ClientResource::Status, 0)));
    let first = region.open(&node).unwrap();
    let second = refused(region.open(&node));
    assert_eq!(
        (second.resource, second.limit),
        (Some(ClientResource::Sessions), 1)
    );
    region.ask(&node).unwrap();
    let no_node = refused(region.open(&outsider));
    assert_eq!(
        (no_node.resource, no_node.limit),
        (Some(ClientResource::Shared), 0)
    );
    region.ask(&outsider).unwrap();
    drop(region.open(&silent).unwrap());
    let no_status = refused(region.ask(&silent));
    assert_eq!(no_status.resource, Some(ClientResource::Status));
    drop(first);
}

#[test]
fn a_session_whose_key_is_revoked_ends_and_others_do_not() {
    let region = NamedRegion::start();
    let (bad, good) = (region.add("bad", None), region.add("good", None));
    let (mut revoked, mut stays) = (region.open(&bad).unwrap(), region.open(&good).unwrap());
    region.change(|file, _| file.remove("bad").unwrap());
    let deadline = Instant::now() + PATIENCE;
    while revoked.receive().is_ok() {
        assert!(Instant::now() < deadline, "the revoked session goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    stays.receive().unwrap();
    assert!(matches!(region.open(&bad), Err(ChannelOpenError::Connect(_))));
    drop(region.open(&good).unwrap());
}
