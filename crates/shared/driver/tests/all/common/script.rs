//! A scripted node: it sends and receives messages over a real channel, and has no memory.

use std::time::{Duration, Instant};

use netram_proto::id::{JournalId, Lsn};
use netram_proto::journal::View;
use netram_proto::wire::ChainPoint;
use netram_shared::channel::{Channel, ChannelError};
use netram_shared_machine::lock::{LockOrder, LockRequestId, ToCache, ToService};
use netram_shared_machine::message::{JoinReply, JoinRequest};
use netram_shared_machine::{
    GrantNumber, LockId, LockMode, LockVersion, NodeId, Position, RecordNumber, RegionId, Stamp, ToNode,
    ToServer,
};
use netram_transport::{NetAddress, OwnerKey, Security};

use super::PATIENCE;
use super::history::{SPAN, payload};

pub(crate) type Bytes = Vec<u8>;

/// Far more often than any lease ends.
const PING_EVERY: Duration = Duration::from_millis(50);

pub(crate) struct ScriptedPeer {
    pub(crate) channel: Channel,
    pub(crate) id: NodeId,
    pub(crate) region: RegionId,
    pub(crate) journal: JournalId,
    /// Its last record.
    pub(crate) number: RecordNumber,
    /// Whether it keeps its lease while it waits for messages.
    pub(crate) pings: bool,
    segment: u32,
    asks: u64,
    links: u64,
    pinged: Instant,
    /// Nonce of its last ping.
    nonce: u64,
    /// Proves on each link that it owns its journal.
    pub(crate) owner: Option<OwnerKey>,
}

pub(crate) fn join_message(view: View) -> ToServer<Bytes> {
    ToServer::Join(JoinRequest {
        region: None,
        name: "script".to_owned(),
        view,
        key: Vec::new(),
        begins: ChainPoint::default(),
        lazy: false,
        link: 1,
    })
}

/// End of a record in the imaginary journal.
pub(crate) fn end_of(number: RecordNumber) -> ChainPoint {
    ChainPoint {
        lsn: Lsn(number.0 * 1000),
        chain: number.0 as u32,
    }
}

impl ScriptedPeer {
    /// A session without a node.
    pub(crate) fn stranger(address: &NetAddress, security: &Security, segment: u32) -> ScriptedPeer {
        ScriptedPeer {
            channel: Channel::open(address, security, PATIENCE).unwrap(),
            id: NodeId(0),
            region: RegionId(0),
            journal: JournalId(0),
            number: RecordNumber(0),
            pings: false,
            segment,
            asks: 0,
            links: 1,
            pinged: Instant::now(),
            nonce: 0,
            owner: None,
        }
    }

    pub(crate) fn join(
        address: &NetAddress,
        security: &Security,
        segment: u32,
        journal: u128,
    ) -> (ScriptedPeer, JoinReply) {
        ScriptedPeer::join_with(address, security, segment, View::first(JournalId(journal)))
    }

    pub(crate) fn join_with(
        address: &NetAddress,
        security: &Security,
        segment: u32,
        view: View,
    ) -> (ScriptedPeer, JoinReply) {
        let mut script = ScriptedPeer::stranger(address, security, segment);
        script.journal = view.journal;
        let joined = script.enter(&join_message(view));
        (script, joined)
    }

    /// Joins with this request.
    pub(crate) fn enter(&mut self, join: &ToServer<Bytes>) -> JoinReply {
        self.say(join);
        let joined = self.expect("Joined", |message| match message {
            ToNode::Joined(joined) => Some(joined.clone()),
            _ => None,
        });
        (self.id, self.region, self.pings) = (joined.node, joined.opening.region, true);
        joined
    }

    /// Goes on over another link. Returns the former one.
    pub(crate) fn reconnect(&mut self, address: &NetAddress, security: &Security) -> Channel {
        let next = Channel::open_as(address, security, PATIENCE, self.owner.as_ref()).unwrap();
        std::mem::replace(&mut self.channel, next)
    }

    /// Receives until the region is complete, and returns it.
    pub(crate) fn whole(&mut self, bytes: u64) -> Bytes {
        let mut region = vec![0; bytes as usize];
        loop {
            match self.hear("Current").unwrap() {
                ToNode::Page { offset, bytes } => {
                    region[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
                ToNode::Current => return region,
                _ => (),
            }
        }
    }

    pub(crate) fn say(&mut self, message: &ToServer<Bytes>) {
        let mut head = Vec::new();
        message.head(&mut head);
        let payload: &[u8] = message.payload().map_or(&[], Vec::as_slice);
        self.raw(&[head.as_slice(), payload]);
    }

    pub(crate) fn raw(&mut self, parts: &[&[u8]]) {
        self.channel.queue(parts);
        // The next receive finds out if the link is gone.
        let _ = self.channel.flush();
    }

    /// Sends a ping, and returns its nonce. Nonces ascend: the server answers only the last of several pings.
    pub(crate) fn ping(&mut self) -> u64 {
        self.pinged = Instant::now();
        self.nonce += 1;
        self.say(&ToServer::Ping {
            nonce: self.nonce,
            applied: Position(0),
        });
        self.nonce
    }

    pub(crate) fn hear(&mut self, what: &str) -> Result<ToNode<Bytes>, ChannelError> {
        let end = Instant::now() + PATIENCE;
        loop {
            if self.pings && self.pinged.elapsed() > PING_EVERY {
                self.ping();
            }
            self.channel.flush()?;
            if let Some(bytes) = self.channel.receive()? {
                let message = ToNode::decode(bytes).expect("what the server says is a message");
                return Ok(message.map(<[u8]>::to_vec));
            }
            assert!(Instant::now() < end, "node {} never heard {what}", self.id);
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Receives until a message of interest comes. Earlier messages are dropped, so that this checks the
    /// order, too.
    pub(crate) fn expect<T>(&mut self, what: &str, interest: impl Fn(&ToNode<Bytes>) -> Option<T>) -> T {
        loop {
            let message = self
                .hear(what)
                .unwrap_or_else(|error| panic!("waiting for {what}: {error}"));
            if let Some(found) = interest(&message) {
                return found;
            }
        }
    }

    /// Records that are still in a link whose other end is gone.
    pub(crate) fn drain(&mut self) -> Vec<(NodeId, RecordNumber)> {
        let end = Instant::now() + PATIENCE;
        let mut records = Vec::new();
        loop {
            match self.channel.receive() {
                Ok(Some(bytes)) => {
                    if let Ok(ToNode::Record { node, number, .. }) = ToNode::decode(bytes) {
                        records.push((node, number));
                    }
                }
                Ok(None) => std::thread::sleep(Duration::from_micros(100)),
                Err(_) => return records,
            }
            assert!(Instant::now() < end, "the link's other end is gone");
        }
    }

    /// Receives until the link ends.
    pub(crate) fn expect_end(&mut self) {
        self.pings = false;
        while self.hear("the link's end").is_ok() {}
    }

    pub(crate) fn ask(&mut self, lock: u32, hold: LockMode) {
        self.asks += 1;
        self.say(&ToServer::Lock(ToService::Acquire {
            lock: LockId(lock),
            hold,
            order: LockOrder::Up,
            ask: LockRequestId(self.asks),
        }));
    }

    pub(crate) fn granted(&mut self, lock: u32) -> (GrantNumber, LockVersion) {
        self.expect("Grant", |message| match message {
            ToNode::Lock(ToCache::Grant {
                lock: which,
                grant,
                version,
                ..
            }) if which.0 == lock => Some((*grant, *version)),
            _ => None,
        })
    }

    pub(crate) fn acquire(&mut self, lock: u32) -> (GrantNumber, LockVersion) {
        self.ask(lock, LockMode::Exclusive);
        self.granted(lock)
    }

    pub(crate) fn release(&mut self, lock: u32, grant: GrantNumber, version: LockVersion) {
        self.say(&ToServer::Lock(ToService::Release {
            lock: LockId(lock),
            grant,
            version,
            keep: None,
        }));
    }

    /// Payload of a record that makes `version` of a lock, and writes `bytes` at the start of its span.
    pub(crate) fn record(&self, lock: u32, version: u64, bytes: &[u8]) -> Bytes {
        let stamp = Stamp {
            written: vec![(LockId(lock), LockVersion(version))],
            read: Vec::new(),
        };
        payload(&stamp, self.segment, &[(u64::from(lock) * SPAN, bytes.to_vec())])
    }

    /// Commits such a record, and sends it.
    pub(crate) fn write(&mut self, lock: u32, version: u64, bytes: &[u8]) -> Bytes {
        let payload = self.record(lock, version, bytes);
        self.number = self.number.next();
        self.tail(self.number, payload.clone());
        payload
    }

    pub(crate) fn tail(&mut self, number: RecordNumber, payload: Bytes) {
        self.say(&ToServer::Record {
            number,
            end: end_of(number),
            acked: true,
            payload,
        });
    }

    pub(crate) fn next_record(&mut self) -> (NodeId, RecordNumber, Bytes) {
        self.expect("Record", |message| match message {
            ToNode::Record {
                node,
                number,
                payload,
                ..
            } => Some((*node, *number, payload.clone())),
            _ => None,
        })
    }

    pub(crate) fn kept(&mut self, number: RecordNumber) {
        self.expect("Kept", |message| match message {
            ToNode::Durable { number: kept, .. } if *kept >= number => Some(()),
            _ => None,
        });
    }

    /// Resumes over a new link, with these records of other nodes applied. Returns its last merged record.
    pub(crate) fn resume(
        &mut self,
        address: &NetAddress,
        security: &Security,
        mut applied: Vec<(NodeId, RecordNumber)>,
    ) -> RecordNumber {
        // It has its own records.
        applied.push((self.id, self.number));
        applied.sort_unstable();
        // As a node does, it closes the former link once the next one is answered.
        let _before = self.reconnect(address, security);
        self.links += 1;
        self.say(&self.resumption(self.links, applied));
        self.expect("Resumed", |message| match message {
            ToNode::Resumed { merged, .. } => Some(*merged),
            _ => None,
        })
    }

    /// The message with which the node goes on over a link of this number.
    pub(crate) fn resumption(&self, link: u64, applied: Vec<(NodeId, RecordNumber)>) -> ToServer<Bytes> {
        ToServer::Resume {
            region: self.region,
            node: self.id,
            link,
            whole: true,
            applied,
        }
    }
}
