//! A network block device server with an arbitrary client.

use netram_nbd::command::{self, NbdCommand, NbdSession};
use netram_nbd::fuzzed::{EXPORT_BYTES, serve_bytes};
use netram_nbd::handshake::{ExportOffer, HandshakeStep, NbdHandshake, TlsPolicy};
use netram_nbd::limit::{OPTION_BYTES_MAX, OPTIONS_MAX};
use netram_nbd::wire::reply::{CHUNK_BYTES, EXTENDED_CHUNK_BYTES, SIMPLE_BYTES};
use netram_nbd::wire::request::{EXTENDED_REQUEST_BYTES, NbdRequest, REQUEST_BYTES};
use netram_nbd::wire::{
    BASE_ALLOCATION, CHUNK_MAGIC, EXTENDED_CHUNK_MAGIC, GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC,
    SIMPLE_REPLY_MAGIC,
};

const BYTES: u64 = 1 << 20;

fn offers() -> Vec<ExportOffer> {
    let offer = |name: &str, read_only| ExportOffer {
        name: name.into(),
        description: "a volume".into(),
        bytes: BYTES,
        read_only,
    };
    vec![offer("first", false), offer("second", true)]
}

/// Options of a handshake, under each of the three policies. It takes bytes or waits for more, answers with
/// whole replies, and ends. The first byte chooses the policy; the second the number of bytes before those
/// that would be encrypted.
pub fn handshake(bytes: &[u8]) {
    let Some(([policy, clear], input)) = bytes.split_first_chunk() else {
        return;
    };
    let (mut input, encrypted) = input.split_at(usize::from(*clear).min(input.len()));
    let policies = [TlsPolicy::Off, TlsPolicy::On, TlsPolicy::Require];
    let policy = policies[usize::from(policy % 3)];
    let offers = offers();
    let mut handshake = NbdHandshake::new(&offers, policy);
    let mut secure = false;
    // Each option is answered once, and each long one takes at most two steps.
    for _ in 0..3 * OPTIONS_MAX {
        let mut out = Vec::new();
        let (taken, step) = handshake.handle(input, &mut out);
        assert!(taken <= input.len());
        input = &input[taken..];
        assert!(out.len() <= 64 * 1024, "answers to an option are bounded");
        match step {
            HandshakeStep::Again => {
                assert!(taken > 0, "it goes on");
                check_replies(&out);
            }
            HandshakeStep::Starved => {
                assert_eq!(taken, 0);
                assert!(input.len() < OPTION_BYTES_MAX + 16);
                return;
            }
            HandshakeStep::StartTls => {
                assert!(policy != TlsPolicy::Off && !secure && input.is_empty());
                secure = true;
                handshake.encrypted();
                input = encrypted;
            }
            HandshakeStep::Transmit(session) => {
                assert!(policy != TlsPolicy::Require || secure);
                assert!(session.export < offers.len());
                assert!(!session.extended || session.structured);
                assert_eq!(session.read_only, offers[session.export].read_only);
                return;
            }
            HandshakeStep::End(_) => return,
        }
    }
    panic!("a handshake ends");
}

/// Checks that `out` consists of whole replies to options.
fn check_replies(mut out: &[u8]) {
    while let Some((magic, rest)) = out.split_first_chunk::<8>() {
        assert_eq!(u64::from_be_bytes(*magic), OPTION_REPLY_MAGIC);
        let length = u32::from_be_bytes([rest[8], rest[9], rest[10], rest[11]]) as usize;
        out = &rest[12 + length..];
    }
    assert!(out.is_empty());
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

fn named(name: &str, rest: &[u8]) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes()[..], name.as_bytes(), rest].concat()
}

fn contexts() -> Vec<u8> {
    let query = named(BASE_ALLOCATION, &[]);
    option(10, &named("first", &[&1_u32.to_be_bytes()[..], &query].concat()))
}

pub(crate) fn handshake_seeds() -> Vec<Vec<u8>> {
    let begin = |policy: u8| [&[policy, 255][..], &3_u32.to_be_bytes()].concat();
    let encrypted = [&[2, 20][..], &3_u32.to_be_bytes(), &option(5, &[])].concat();
    let go = option(7, &named("second", &[0, 2, 0, 1, 0, 2]));
    vec![
        [
            begin(0),
            option(3, &[]),
            option(6, &named("", &[0, 0])),
            go.clone(),
        ]
        .concat(),
        [begin(0), option(8, &[]), contexts(), go.clone()].concat(),
        [
            begin(1),
            option(11, &[]),
            contexts(),
            option(99, b"?"),
            option(5, &[]),
        ]
        .concat(),
        [begin(2), go.clone(), option(5, &[])].concat(),
        [encrypted, option(8, &[]), contexts(), go].concat(),
        [begin(0), option(1, b"first")].concat(),
        [begin(0), option(2, &[])].concat(),
    ]
}

/// A request in both forms. It must be decoded as it was encoded, and every allowed request is inside the
/// export.
pub fn request(bytes: &[u8]) {
    let Some((agreed, bytes)) = bytes.split_first() else {
        return;
    };
    let session = NbdSession {
        export: 0,
        structured: agreed & 1 != 0,
        extended: agreed & 3 == 3,
        block_status: agreed & 5 == 5,
        read_only: agreed & 8 != 0,
    };
    let short = bytes.first_chunk::<REQUEST_BYTES>();
    if let Some((bytes, request)) = short.and_then(|bytes| Some((bytes, NbdRequest::parse(bytes)?))) {
        assert_eq!(request.encode(), *bytes);
        judge(&request, &session);
    }
    let long = bytes.first_chunk::<EXTENDED_REQUEST_BYTES>();
    if let Some((bytes, request)) = long.and_then(|bytes| Some((bytes, NbdRequest::parse_extended(bytes)?))) {
        assert_eq!(request.encode_extended(), *bytes);
        judge(&request, &session);
    }
}

fn judge(request: &NbdRequest, session: &NbdSession) {
    let inside = |span: command::ExportSpan| {
        let end = span.offset().checked_add(span.length());
        assert!(span.length() > 0 && end.is_some_and(|end| end <= BYTES));
        assert!(span.offset().is_multiple_of(512) && span.length().is_multiple_of(512));
    };
    match command::check_request(request, session, BYTES) {
        Ok(NbdCommand::Read { span, .. } | NbdCommand::Status { span, .. }) => inside(span),
        Ok(
            NbdCommand::Write { span, .. } | NbdCommand::Zero { span, .. } | NbdCommand::Trim { span, .. },
        ) => {
            assert!(!session.read_only);
            inside(span);
        }
        Ok(NbdCommand::Flush | NbdCommand::Cache | NbdCommand::Disconnect) | Err(_) => (),
    }
}

fn a_request(command: u16, flags: u16, offset: u64, length: u64) -> NbdRequest {
    NbdRequest {
        flags,
        command,
        cookie: 0x0102_0304,
        offset,
        length,
    }
}

pub(crate) fn request_seeds() -> Vec<Vec<u8>> {
    let short = |agreed: u8, request: NbdRequest| [&[agreed], &request.encode()[..]].concat();
    let mut seeds: Vec<Vec<u8>> = (0..8)
        .map(|command| short(5, a_request(command, 0, 4096, 4096)))
        .collect();
    seeds.push([&[7], &a_request(7, 8, 0, 1 << 19).encode_extended()[..]].concat());
    seeds
}

/// A whole connection over a socket: the handshake, then requests. The server always ends, and every byte
/// that it sent is a reply.
pub fn session(bytes: &[u8]) {
    let Some((how, bytes)) = bytes.split_first() else {
        return;
    };
    let mut sent = 3_u32.to_be_bytes().to_vec();
    if how & 1 != 0 {
        sent.extend_from_slice(&option(if how & 2 != 0 { 11 } else { 8 }, &[]));
        if how & 4 != 0 {
            sent.extend_from_slice(&contexts());
        }
    }
    if how & 8 == 0 {
        sent.extend_from_slice(&option(7, &named("first", &[0, 0])));
    }
    sent.extend_from_slice(bytes);
    let answer = serve_bytes(&sent);
    let mut rest = match answer.split_first_chunk::<18>() {
        Some((greeting, rest)) => {
            assert!(greeting.starts_with(&GREETING_MAGIC.to_be_bytes()));
            rest
        }
        None => panic!("a server greets"),
    };
    while !rest.is_empty() {
        let magic = |rest: &[u8]| rest.first_chunk().map(|magic| u32::from_be_bytes(*magic));
        let number =
            |at: usize| u32::from_be_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]) as usize;
        let length = match magic(rest) {
            Some(CHUNK_MAGIC) => CHUNK_BYTES + number(16),
            Some(EXTENDED_CHUNK_MAGIC) => EXTENDED_CHUNK_BYTES + number(28),
            Some(_) if rest.starts_with(&OPTION_REPLY_MAGIC.to_be_bytes()) => 20 + number(16),
            // Only its request determines a simple reply's length, and the old-style option has an answer
            // without a header.
            Some(SIMPLE_REPLY_MAGIC) if how & 1 == 0 => return,
            Some(SIMPLE_REPLY_MAGIC) => SIMPLE_BYTES,
            _ if how & 8 != 0 || how & 1 == 0 => return,
            found => panic!("{found:x?} begins no reply"),
        };
        rest = &rest[length..];
    }
}

pub(crate) fn session_seeds() -> Vec<Vec<u8>> {
    let write = [&a_request(1, 1, 512, 512).encode()[..], &[7; 512]].concat();
    let read = a_request(0, 0, 0, EXPORT_BYTES).encode().to_vec();
    let more = [2, 3, 4, 5, 6, 7].map(|command| a_request(command, 0, 0, 1024).encode().to_vec());
    let extended = [0, 4, 7].map(|command| a_request(command, 0, 0, 1024).encode_extended().to_vec());
    vec![
        [&[0], &write[..], &read].concat(),
        [&[5], &read[..], &more.concat()].concat(),
        [&[1], &write[..], &read, &more[1..].concat()].concat(),
        [&[7], &extended.concat()[..]].concat(),
        [&[8], &option(1, b"second")[..], &read].concat(),
    ]
}
