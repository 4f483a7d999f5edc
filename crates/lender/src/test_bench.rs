//! A lender's state without its threads, and links to it, for tests of its parts.

use std::sync::Arc;

use netram_proto::id::JournalId;
use netram_proto::wire::{Frame, FrameHeader, FrameKind};
use netram_transport::both_ends::link_pair;
use netram_transport::{Link, NetAddress, Security, Waker};

use crate::accept::{ClientVisit, Greeting};
use crate::config::LenderConfig;
use crate::state::DaemonState;
use crate::store::WindowStore;

/// A lender's state, with one shard, in a directory of its own.
pub(crate) struct TestDaemon {
    directory: tempfile::TempDir,
    pub(crate) shared: Arc<DaemonState>,
}

impl TestDaemon {
    pub(crate) fn new(journals_max: u32) -> TestDaemon {
        let directory = tempfile::Builder::new().tempdir_in("/dev/shm").unwrap();
        let config = LenderConfig {
            memory: 64 * 1024,
            chunk_bytes: 4096,
            journals_max,
            store: Some(directory.path().join("store")),
            ..LenderConfig::default()
        };
        let (store, _) = WindowStore::open(&config.store_config()).unwrap();
        let wakers = (0..3).map(|_| Waker::new().unwrap()).collect();
        let addresses = (Vec::new(), Vec::new());
        let shared = DaemonState::new(config, store, None, addresses, wakers);
        TestDaemon {
            directory,
            shared: Arc::new(shared),
        }
    }

    /// Both ends of a link: the client's, then the lender's.
    pub(crate) fn link_pair(&self) -> (Link, Link) {
        let socket = self.directory.path().join("socket");
        link_pair(&NetAddress::Unix(socket), &Security::Insecure)
    }

    /// A client that has asked for a journal.
    pub(crate) fn greet(&self, journal: JournalId) -> Greeting {
        let mut greeting = Greeting::default();
        let header = FrameHeader::new(FrameKind::Bind);
        let body = &journal.0.to_le_bytes();
        greeting.session.handle(&Frame { header, body }).unwrap();
        let account = self.shared.clients.account(None);
        greeting.visit = Some(ClientVisit::begin(account).unwrap());
        greeting
    }
}

/// Sends as many frames of this kind as the link takes, up to `count`. Returns whether the socket took them
/// all.
pub(crate) fn say(client: &mut Link, kind: FrameKind, count: usize) -> bool {
    let frame = FrameHeader::new(kind).encode(0);
    let all = (0..count).all(|_| client.queue(&[&frame]).is_ok());
    client.flush().unwrap() && all
}

/// Number of frames that the client has got.
pub(crate) fn answers(client: &mut Link) -> usize {
    let mut answers = 0;
    while client.receive().unwrap().is_some() {
        answers += 1;
    }
    answers
}
