//! DNS messages: a question for SRV records, and what an answer says.

use netram_transport::NetAddress;
use simple_dns::rdata::{OPT, RData};
use simple_dns::{CLASS, Name, Packet, PacketFlag, QTYPE, Question, RCODE, TYPE};

use crate::limit::{DNS_UDP_BYTES, FOUND_MAX};

/// One SRV record: where a lender listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrvRecord {
    /// Lower ones come first.
    pub priority: u16,
    /// Share among records of one priority.
    pub weight: u16,
    /// The lender's address.
    pub address: NetAddress,
}

/// The meaning of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsAnswer {
    /// The name has these records.
    Records(Vec<SrvRecord>),
    /// The name exists, without such records.
    NoRecords,
    /// The name does not exist.
    NoName,
    /// The domain says that it has no such service: its only target is the root.
    NotOffered,
    /// The server could not or would not answer.
    Refused(String),
    /// The answer was cut and is whole over TCP only.
    Cut,
}

/// The bytes of a question for the SRV records of `name`, with this id.
///
/// # Errors
///
/// `name` is not a name of DNS.
pub fn question(name: &str, id: u16) -> Result<Vec<u8>, simple_dns::SimpleDnsError> {
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let asked = Question::new(Name::new(name)?, QTYPE::TYPE(TYPE::SRV), CLASS::IN.into(), false);
    packet.questions.push(asked);
    *packet.opt_mut() = Some(OPT {
        opt_codes: Vec::new(),
        udp_packet_size: DNS_UDP_BYTES,
        version: 0,
    });
    packet.build_bytes_vec()
}

/// Reads an answer to [`question`]. `None`: the bytes answer another question, or none.
pub fn answer(bytes: &[u8], name: &str, id: u16) -> Option<DnsAnswer> {
    let packet = Packet::parse(bytes).ok()?;
    let is_answer = packet.id() == id && packet.has_flags(PacketFlag::RESPONSE);
    let [asked] = &packet.questions[..] else {
        return None;
    };
    let is_ours =
        asked.qtype == QTYPE::TYPE(TYPE::SRV) && Name::new(name).is_ok_and(|name| asked.qname == name);
    if !is_answer || !is_ours {
        return None;
    }
    if packet.has_flags(PacketFlag::TRUNCATION) {
        return Some(DnsAnswer::Cut);
    }
    Some(match packet.rcode() {
        RCODE::NoError => records(&packet),
        RCODE::NameError => DnsAnswer::NoName,
        other => DnsAnswer::Refused(format!("{other:?}")),
    })
}

/// The SRV records of the answer. They may have another name than was asked for, an alias's.
fn records(packet: &Packet<'_>) -> DnsAnswer {
    let mut records = Vec::new();
    let mut is_refused = false;
    for record in &packet.answers {
        let RData::SRV(srv) = &record.rdata else { continue };
        let target = srv.target.to_string();
        let target = target.trim_end_matches('.');
        if target.is_empty() {
            is_refused = true;
            continue;
        }
        // A target that is no host name cannot be reached: the record is nobody's.
        let address = format!("tcp://{target}:{}", srv.port).parse();
        if let Ok(address) = address
            && records.len() < FOUND_MAX
        {
            records.push(SrvRecord {
                priority: srv.priority,
                weight: srv.weight,
                address,
            });
        }
    }
    match (records.is_empty(), is_refused) {
        (false, _) => DnsAnswer::Records(records),
        (true, true) => DnsAnswer::NotOffered,
        (true, false) => DnsAnswer::NoRecords,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use simple_dns::ResourceRecord;
    use simple_dns::rdata::SRV;

    use super::*;

    const NAME: &str = "_netram._tcp.example.org";

    fn reply(targets: &[(u16, u16, u16, &str)], change: impl FnOnce(&mut Packet<'_>)) -> Vec<u8> {
        let asked = question(NAME, 7).unwrap();
        let mut packet = Packet::parse(&asked).unwrap().into_reply();
        for (priority, weight, port, target) in targets {
            let srv = SRV {
                priority: *priority,
                weight: *weight,
                port: *port,
                target: Name::new_unchecked(target),
            };
            let record = ResourceRecord::new(Name::new(NAME).unwrap(), CLASS::IN, 60, RData::SRV(srv));
            packet.answers.push(record);
        }
        change(&mut packet);
        packet.build_bytes_vec_compressed().unwrap()
    }

    #[test]
    fn records_are_addresses_with_priority_and_weight() {
        let bytes = reply(
            &[(10, 5, 7420, "ram-1.example.org"), (20, 0, 7421, "10.0.0.9")],
            |_| (),
        );
        let Some(DnsAnswer::Records(records)) = answer(&bytes, NAME, 7) else {
            panic!("records");
        };
        assert_eq!(records[0].address.to_string(), "tcp://ram-1.example.org:7420");
        assert_eq!((records[0].priority, records[0].weight), (10, 5));
        assert_eq!(records[1].address.to_string(), "tcp://10.0.0.9:7421");
    }

    #[test]
    fn what_a_server_says_without_records_is_told_apart() {
        assert_eq!(answer(&reply(&[], |_| ()), NAME, 7), Some(DnsAnswer::NoRecords));
        let none = reply(&[], |packet| *packet.rcode_mut() = RCODE::NameError);
        assert_eq!(answer(&none, NAME, 7), Some(DnsAnswer::NoName));
        let refused = reply(&[], |packet| *packet.rcode_mut() = RCODE::Refused);
        assert!(matches!(answer(&refused, NAME, 7), Some(DnsAnswer::Refused(_))));
        let root = reply(&[(0, 0, 0, "")], |_| ());
        assert_eq!(answer(&root, NAME, 7), Some(DnsAnswer::NotOffered));
        let cut = reply(&[], |packet| packet.set_flags(PacketFlag::TRUNCATION));
        assert_eq!(answer(&cut, NAME, 7), Some(DnsAnswer::Cut));
    }

    #[test]
    fn an_answer_to_another_question_is_none() {
        let bytes = reply(&[(0, 0, 1, "a.b")], |_| ());
        assert!(answer(&bytes, NAME, 7).is_some());
        assert_eq!(answer(&bytes, NAME, 8), None, "another id");
        assert_eq!(
            answer(&bytes, "_netram._tcp.example.com", 7),
            None,
            "another name"
        );
        assert_eq!(answer(&question(NAME, 7).unwrap(), NAME, 7), None, "a question");
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = answer(&bytes, NAME, 7);
        }

        #[test]
        fn a_damaged_answer_is_read_or_not(at in 0_usize..80, flip in 1_u8..) {
            let mut bytes = reply(&[(10, 5, 7420, "ram-1.example.org")], |_| ());
            let at = at % bytes.len();
            bytes[at] ^= flip;
            let _ = answer(&bytes, NAME, 7);
        }
    }
}
