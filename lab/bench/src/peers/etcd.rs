//! etcd: one node or three, each with its own log, synced at every commit. The client puts over gRPC.

use std::net::TcpStream;
use std::time::Duration;

use super::grpc::GrpcClient;
use super::{COMMIT_BYTES, PeerKind, PeerSubject, free_ports, must_have, server, timed};
use crate::child::ChildProcess;
use crate::error::BenchError;
use crate::histogram::LatencySummary;
use crate::testbed::Testbed;
use crate::tool::wait_until;

pub(crate) const TXN: &str = "/etcdserverpb.KV/Txn";
const PUT: &str = "/etcdserverpb.KV/Put";
pub(crate) const RANGE: &str = "/etcdserverpb.KV/Range";
/// Nodes of the largest cluster.
const NODES_MAX: usize = 3;
/// Bytes of a key: a number in decimal.
const KEY_BYTES: usize = 10;

struct EtcdSubject {
    peer: PeerKind,
    client: GrpcClient,
    acknowledged: u64,
    _nodes: Vec<ChildProcess>,
    site: Testbed,
}

/// Starts `nodes` nodes, and waits until they take a write.
pub(super) fn start(site: &Testbed, nodes: usize) -> Result<Box<dyn PeerSubject>, BenchError> {
    let site = Testbed::new(site.program().to_owned(), site.directory())?;
    let (clients, peers) = (free_ports::<NODES_MAX>()?, free_ports::<NODES_MAX>()?);
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let names: Vec<String> = (0..nodes)
        .map(|node| format!("n{node}={}", url(peers[node])))
        .collect();
    let names = names.join(",");
    let mut running = Vec::new();
    for node in 0..nodes {
        let data = site.directory().join(format!("n{node}"));
        let (own, client) = (url(peers[node]), url(clients[node]));
        let words = [
            "etcd".to_owned(),
            format!("--name=n{node}"),
            format!("--data-dir={}", data.display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={own}"),
            format!("--initial-advertise-peer-urls={own}"),
            format!("--initial-cluster={names}"),
            "--logger=zap".to_owned(),
            "--log-level=error".to_owned(),
        ];
        running.push(server(&site, "etcd", &[], &words)?);
    }
    let mut ready = None;
    wait_until("etcd takes a write", || {
        let Ok(stream) = TcpStream::connect(("127.0.0.1", clients[0])) else {
            return Ok(false);
        };
        let mut client = GrpcClient::new(stream)?;
        let is_ready = client.call(PUT, &put(0)).is_ok();
        ready = is_ready.then_some(client);
        Ok(is_ready)
    })?;
    Ok(Box::new(EtcdSubject {
        peer: if nodes == 1 {
            PeerKind::EtcdOne
        } else {
            PeerKind::EtcdThree
        },
        site,
        client: ready.expect("the condition above is that it is ready"),
        acknowledged: 1,
        _nodes: running,
    }))
}

impl PeerSubject for EtcdSubject {
    fn round(&mut self, time: Duration) -> Result<LatencySummary, BenchError> {
        let client = &mut self.client;
        timed(time, &mut self.acknowledged, |number| {
            client.call(PUT, &put(number)).map(drop)
        })
    }

    fn end(mut self: Box<Self>) -> Result<(), BenchError> {
        let answer = self.client.call(RANGE, &count_all())?;
        let found = number(&answer, COUNT).unwrap_or(0);
        must_have(self.peer, &self.site, found, self.acknowledged)
    }
}

/// The message that puts a value under the key `number`.
fn put(number: u64) -> Vec<u8> {
    let mut message = vec![0x0a, KEY_BYTES as u8];
    message.extend(format!("{number:0width$}", width = KEY_BYTES).as_bytes());
    // The length takes two bytes from 128 on.
    const { assert!(COMMIT_BYTES == 128) };
    message.extend([0x12, 0x80, 0x01]);
    message.extend([b'x'; COMMIT_BYTES]);
    message
}

/// The message that asks how many keys there are.
fn count_all() -> Vec<u8> {
    // From the lowest key on, without end, only the count.
    vec![0x0a, 1, 0, 0x12, 1, 0, 0x48, 1]
}

/// The message that creates a key unless it exists. kine, which does not put, knows it by exactly this form.
pub(crate) fn create(key: &[u8], value: &[u8]) -> Vec<u8> {
    // The key's revision of modification is zero.
    let compare = [&[0x10, 2][..], &field(3, key), &[0x30, 0]].concat();
    let put = [field(1, key), field(2, value)].concat();
    [field(1, &compare), field(2, &field(2, &put))].concat()
}

/// The message that counts the keys from `from` on and below `end`. Without an end, that key alone.
pub(crate) fn count(from: &[u8], end: Option<&[u8]>) -> Vec<u8> {
    let end = end.map(|end| field(2, end)).unwrap_or_default();
    [&field(1, from)[..], &end, &[0x48, 1]].concat()
}

/// A field of bytes in a message.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length > 0x7f {
        field.push(length as u8 | 0x80);
        length >>= 7;
    }
    field.push(length as u8);
    field.extend_from_slice(bytes);
    field
}

/// Field of an answer to [`RANGE`] that has the count.
pub(crate) const COUNT: u64 = 4;
/// Field of an answer to [`TXN`] that says whether the comparison held.
pub(crate) const SUCCEEDED: u64 = 2;

/// The first number in an answer's field; `None` if the field is missing, as for zero.
pub(crate) fn number(mut answer: &[u8], field: u64) -> Option<u64> {
    loop {
        let tag = varint(&mut answer)?;
        match tag & 7 {
            0 => {
                let value = varint(&mut answer)?;
                if tag >> 3 == field {
                    return Some(value);
                }
            }
            2 => {
                let length = varint(&mut answer)? as usize;
                answer = answer.get(length..)?;
            }
            _ => return None,
        }
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_found_behind_the_header() {
        let answer = [0x0a, 2, 0x08, 1, 0x18, 1, 0x20, 0xac, 0x02];
        assert_eq!(number(&answer, COUNT), Some(300));
        assert_eq!(number(&answer[..6], COUNT), None);
        assert_eq!(number(&[0x0a, 200, 1], COUNT), None);
    }

    #[test]
    fn a_creation_has_lengths_of_more_than_a_byte() {
        let message = create(b"k", &[b'x'; 200]);
        // Comparison, and an operation with a put, whose value takes two bytes for its length.
        assert_eq!(message[..9], [0x0a, 7, 0x10, 2, 0x1a, 1, b'k', 0x30, 0]);
        assert_eq!(message[9..12], [0x12, 0xd1, 0x01]);
        assert_eq!(message[12..15], [0x12, 0xce, 0x01]);
        assert_eq!(message[15..21], [0x0a, 1, b'k', 0x12, 0xc8, 0x01]);
        assert_eq!(message.len(), 221);
    }
}
