//! The fuzzers' input: what a name server may answer, and what may stand in a cluster file.

use std::path::Path;

use crate::cluster_file::ClusterFile;
use crate::dns::message::{DnsAnswer, answer, question};
use crate::limit::FOUND_MAX;

const NAME: &str = "_netram._tcp.example.org";
const ID: u16 = 0x4e52;

/// Reads any bytes as an answer. Its records are bounded, and their addresses can be written and read again.
pub fn dns_answer(bytes: &[u8]) {
    let Some(DnsAnswer::Records(records)) = answer(bytes, NAME, ID) else {
        return;
    };
    assert!((1..=FOUND_MAX).contains(&records.len()));
    for record in records {
        assert_eq!(record.address.to_string().parse().as_ref(), Ok(&record.address));
    }
}

/// Answers with and without records.
pub fn dns_seeds() -> Vec<Vec<u8>> {
    let mut empty = question(NAME, ID).expect("a name");
    // It becomes an answer: the highest bit of the flags, and no additional record.
    empty[2] |= 0x80;
    let mut full = empty.clone();
    // One record: its name is the question's, its data priority, weight, port and the target `a.b`.
    full.truncate(12 + NAME.len() + 2 + 4);
    (full[7], full[11]) = (1, 0);
    full.extend([0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60, 0, 11]);
    full.extend([0, 10, 0, 5, 0x1c, 0xfc, 1, b'a', 1, b'b', 0]);
    vec![empty, full]
}

/// Reads any text as a cluster file. One that is accepted names lenders or a way to find them.
pub fn cluster_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(file) = ClusterFile::parse(text, Path::new("cluster.toml")) {
        assert!(file.lenders.len() <= FOUND_MAX);
        assert!(!file.lenders.is_empty() || file.dns.is_some() || file.mdns);
    }
}

/// A file with each key.
pub fn cluster_seeds() -> Vec<Vec<u8>> {
    let all = "dns = \"a.b\"\nmdns = true\nmdns-wait-ms = 9\n[[lender]]\naddress = \"tcp://a:1\"\nname = \"x\"\ndomain = \"y\"\n";
    vec![all.into(), b"mdns = true".to_vec()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_what_they_are_said_to_be() {
        let answers: Vec<_> = dns_seeds().iter().map(|seed| answer(seed, NAME, ID)).collect();
        assert_eq!(answers[0], Some(DnsAnswer::NoRecords));
        assert!(
            matches!(&answers[1], Some(DnsAnswer::Records(records)) if records[0].address.to_string() == "tcp://a.b:7420")
        );
        for seed in cluster_seeds() {
            let text = String::from_utf8(seed).unwrap();
            ClusterFile::parse(&text, Path::new("cluster.toml")).unwrap();
        }
    }
}
