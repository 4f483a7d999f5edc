//! Name servers that are silent, slow, cut their answers, or answer something else.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use netram_discover::dns::{DnsError, look_up};
use simple_dns::rdata::{RData, SRV};
use simple_dns::{CLASS, Name, Packet, PacketFlag, ResourceRecord};

/// The reply to a question, with `count` records.
fn reply(question: &[u8], count: u16) -> Vec<u8> {
    let mut packet = Packet::parse(question).expect("a question").into_reply();
    let name = packet.questions[0].qname.clone().into_owned();
    for number in 0..count {
        let srv = SRV {
            priority: number,
            weight: 0,
            port: 7420,
            target: Name::new("ram.example.org").unwrap(),
        };
        packet
            .answers
            .push(ResourceRecord::new(name.clone(), CLASS::IN, 60, RData::SRV(srv)));
    }
    packet.build_bytes_vec().unwrap()
}

/// A server of one datagram after the other, on a thread that ends with the test.
fn serve(mut answer: impl FnMut(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut bytes = [0; 2048];
        while let Ok((length, peer)) = socket.recv_from(&mut bytes) {
            for answer in answer(&bytes[..length]) {
                let _ = socket.send_to(&answer, peer);
            }
        }
    });
    at
}

#[test]
fn a_silent_server_is_left_for_the_next() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let well = serve(|question| vec![reply(question, 2)]);
    let found = look_up("example.org", &[silent.local_addr().unwrap(), well]).unwrap();
    let priorities: Vec<u16> = found.iter().map(|record| record.priority).collect();
    assert_eq!(priorities, [0, 1]);
    assert_eq!(found[0].address.to_string(), "tcp://ram.example.org:7420");
}

#[test]
fn if_all_are_silent_the_error_names_the_question_and_the_servers() {
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    // No program has this port any more: the system says so at once.
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = look_up("example.org", &[at, closed]).unwrap_err();
    let said = error.to_string();
    for part in ["_netram._tcp.example.org", &at.to_string(), &closed.to_string()] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn answers_to_other_questions_are_passed_over() {
    let server = serve(|question| {
        let well = reply(question, 1);
        let mut other = reply(question, 9);
        other[0] ^= 1;
        vec![b"nonsense".to_vec(), other, question.to_vec(), well]
    });
    assert_eq!(look_up("example.org", &[server]).unwrap().len(), 1);
}

/// A server at one port whose datagrams are cut, and whose stream does as `over_tcp` says.
fn cutting(over_tcp: impl Fn(&mut std::net::TcpStream, &[u8]) + Send + 'static) -> SocketAddr {
    let at = serve(|question| {
        let mut packet = Packet::parse(question).expect("a question").into_reply();
        packet.set_flags(PacketFlag::TRUNCATION);
        vec![packet.build_bytes_vec().unwrap()]
    });
    let listener = TcpListener::bind(at).expect("the same port is free");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut question).unwrap();
            over_tcp(&mut stream, &question);
        }
    });
    at
}

fn send(stream: &mut std::net::TcpStream, bytes: &[u8]) {
    let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
    // The other side may have given up.
    let _ = stream.write_all(&[&length[..], bytes].concat());
}

#[test]
fn an_answer_that_is_cut_is_asked_for_again_over_tcp() {
    let server = cutting(|stream, question| send(stream, &reply(question, 50)));
    assert_eq!(look_up("example.org", &[server]).unwrap().len(), 50);
}

#[test]
fn a_server_that_stops_in_the_middle_of_an_answer_is_given_up() {
    let server = cutting(|stream, question| {
        let whole = reply(question, 50);
        let _ = stream.write_all(&u16::try_from(whole.len()).unwrap().to_be_bytes());
        let _ = stream.write_all(&whole[..9]);
        std::thread::sleep(Duration::from_secs(600));
    });
    let error = look_up("example.org", &[server]).unwrap_err();
    assert!(matches!(&error, DnsError::Silent { .. }), "{error}");
}
