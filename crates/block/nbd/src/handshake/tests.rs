//! Options that a client may send at each time, and their replies.

use proptest::prelude::*;

use super::*;
use crate::wire::{OPTION_REPLY_MAGIC, WireReader, export};

fn offers() -> Vec<ExportOffer> {
    let offer = |name: &str, read_only| ExportOffer {
        name: name.into(),
        description: format!("volume {name}"),
        bytes: 1 << 30,
        read_only,
    };
    vec![offer("first", false), offer("second", true)]
}

const FIXED: u32 = 1;
const NO_ZEROES: u32 = 2;

/// A handshake and its client, in one thread.
struct HandshakeClient<'a> {
    handshake: NbdHandshake<'a>,
    out: Vec<u8>,
}

impl<'a> HandshakeClient<'a> {
    fn new(offers: &'a [ExportOffer], tls: TlsPolicy, flags: u32) -> HandshakeClient<'a> {
        let mut handshake = NbdHandshake::new(offers, tls);
        let flags = handshake.handle(&flags.to_be_bytes(), &mut Vec::new());
        assert_eq!(flags, (4, HandshakeStep::Again));
        let out = Vec::new();
        HandshakeClient { handshake, out }
    }

    fn send(&mut self, bytes: &[u8]) -> HandshakeStep {
        self.out.clear();
        let (taken, step) = self.handshake.handle(bytes, &mut self.out);
        assert!(taken <= bytes.len());
        step
    }

    /// Sends one option; returns the kinds and data of its replies.
    fn ask(&mut self, number: u32, data: &[u8]) -> (HandshakeStep, Vec<(u32, Vec<u8>)>) {
        let step = self.send(&option(number, data));
        (step, replies(number, &self.out))
    }

    /// Kind of the last reply.
    fn verdict(&mut self, number: u32, data: &[u8]) -> u32 {
        let (step, replies) = self.ask(number, data);
        assert_eq!(step, HandshakeStep::Again);
        replies.last().expect("an option is answered").0
    }
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn replies(number: u32, bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut reader = WireReader::new(bytes);
    let mut found = Vec::new();
    while !reader.is_done() {
        assert_eq!(reader.u64(), Some(OPTION_REPLY_MAGIC));
        assert_eq!(reader.u32(), Some(number));
        let kind = reader.u32().unwrap();
        found.push((kind, reader.counted().unwrap().to_vec()));
    }
    found
}

fn go(name: &str) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend([0, 0]);
    data
}

fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = Vec::new();
    let counted = |data: &mut Vec<u8>, text: &str| {
        data.extend((text.len() as u32).to_be_bytes());
        data.extend(text.as_bytes());
    };
    counted(&mut data, name);
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        counted(&mut data, query);
    }
    data
}

const ACK: u32 = OptionReply::Ack as u32;
const INVALID: u32 = OptionReply::Invalid as u32;
const UNKNOWN: u32 = OptionReply::Unknown as u32;
const TLS_REQUIRED: u32 = OptionReply::TlsRequired as u32;

#[test]
fn padding_zeros_are_sent_unless_the_client_declines_them() {
    let offers = offers();
    for (flags, length) in [(0, 134), (FIXED, 134), (FIXED | NO_ZEROES, 10)] {
        let mut talk = HandshakeClient::new(&offers, TlsPolicy::Off, flags);
        let step = talk.send(&option(1, b""));
        assert!(matches!(step, HandshakeStep::Transmit(session) if session.export == 0));
        assert_eq!(talk.out.len(), length);
        assert_eq!(talk.out[..8], (1_u64 << 30).to_be_bytes());
    }
    let mut talk = HandshakeClient::new(&offers, TlsPolicy::Off, FIXED);
    assert_eq!(
        talk.send(&option(1, b"third")),
        HandshakeStep::End(HandshakeEnd::UnknownExport)
    );
    let mut old = HandshakeClient::new(&offers, TlsPolicy::Off, 0);
    assert_eq!(
        old.send(&option(3, b"")),
        HandshakeStep::End(HandshakeEnd::NotNbd)
    );
}

#[test]
fn unknown_flags_and_magics_end_the_handshake() {
    let offers = offers();
    let mut handshake = NbdHandshake::new(&offers, TlsPolicy::Off);
    let (_, step) = handshake.handle(&4_u32.to_be_bytes(), &mut Vec::new());
    assert_eq!(step, HandshakeStep::End(HandshakeEnd::NotNbd));
    let mut talk = HandshakeClient::new(&offers, TlsPolicy::Off, FIXED);
    assert_eq!(talk.send(&[7; 16]), HandshakeStep::End(HandshakeEnd::NotNbd));
    assert_eq!(
        talk.send(&option(3, b"")),
        HandshakeStep::End(HandshakeEnd::NotNbd),
        "the handshake stays ended"
    );
}

#[test]
fn list_names_all_and_go_chooses_one() {
    let offers = offers();
    let mut talk = HandshakeClient::new(&offers, TlsPolicy::Off, FIXED);
    let (_, listed) = talk.ask(3, b"");
    assert_eq!(listed.len(), 3);
    assert_eq!(listed[1].1, b"\x00\x00\x00\x06secondvolume second");
    assert_eq!(talk.verdict(7, &go("third")), UNKNOWN);
    let (step, told) = talk.ask(7, &go("second"));
    let HandshakeStep::Transmit(session) = step else {
        panic!("{step:?}")
    };
    assert!(session.read_only && session.export == 1 && !session.structured);
    let flags = u16::from_be_bytes([told[0].1[10], told[0].1[11]]);
    assert_eq!(flags & export::READ_ONLY, export::READ_ONLY);
    assert_eq!(flags & export::SEND_DF, 0);
    let sizes = [512_u32, 4096, 32 << 20].map(u32::to_be_bytes);
    assert_eq!(told[1].1[2..], *sizes.as_flattened());
    assert_eq!(told[2], (ACK, Vec::new()));
}

#[test]
fn info_describes_and_chooses_nothing() {
    let offers = offers();
    let mut talk = HandshakeClient::new(&offers, TlsPolicy::Off, FIXED);
    let mut data = go("");
    data.pop();
    data.extend([3, 0, 1, 0, 2, 0, 99]);
    let (step, told) = talk.ask(6, &data);
    assert_eq!(step, HandshakeStep::Again);
    assert_eq!(told[1].1, b"\x00\x01first");
    assert_eq!(told[2].1, b"\x00\x02volume first");
}

#[test]
fn block_status_applies_only_to_the_export_it_was_chosen_for() {
    let offers = offers();
    let chosen = |export: &str| {
        let mut talk = HandshakeClient::new(&offers, TlsPolicy::Off, FIXED);
        let set = contexts("first", &["base:allocation", "other:thing"]);
        assert_eq!(
            talk.verdict(10, &set),
            INVALID,
            "contexts need structured replies"
        );
        assert_eq!(talk.verdict(8, b""), ACK);
        assert_eq!(
            talk.verdict(8, b""),
            INVALID,
            "structured replies were already negotiated"
        );
        let (_, told) = talk.ask(10, &set);
        assert_eq!(told[0].1, b"\x00\x00\x00\x01base:allocation");
        match talk.send(&option(7, &go(export))) {
            HandshakeStep::Transmit(session) => session,
            step => panic!("{step:?}"),
        }
    };
    assert!(chosen("first").block_status);
    assert!(chosen("").block_status, "the empty name is the first export");
    assert!(!chosen("second").block_status);
}

#[test]
fn a_new_choice_of_contexts_replaces_the_old_even_when_it_fails() {
    let offers = offers();
    let mut talk = HandshakeClient::new(&offers, TlsPolicy::Off, FIXED);
    assert_eq!(talk.verdict(8, b""), ACK);
    assert_eq!(talk.verdict(10, &contexts("", &["base:allocation"])), ACK);
    assert_eq!(
        talk.verdict(10, &contexts("third", &["base:allocation"])),
        UNKNOWN
    );
    let step = talk.send(&option(7, &go("")));
    assert!(matches!(step, HandshakeStep::Transmit(session) if !session.block_status));
}

#[test]
fn contexts_are_listed_when_asked_by_name_by_namespace_or_at_all() {
    let offers = offers();
    let mut talk = HandshakeClient::new(&offers, TlsPolicy::Off, FIXED);
    assert_eq!(talk.verdict(8, b""), ACK);
    let cases: [(&[&str], usize); 4] = [
        (&[], 2),
        (&["base:"], 2),
        (&["base:allocation"], 2),
        (&["qemu:dirty-bitmap:x"], 1),
    ];
    for (queries, count) in cases {
        assert_eq!(talk.ask(9, &contexts("", queries)).1.len(), count, "{queries:?}");
    }
    // Setting a context needs its full name.
    assert_eq!(talk.ask(10, &contexts("", &["base:"])).1.len(), 1);
}

#[test]
fn lengths_that_do_not_add_up_are_invalid_and_change_nothing() {
    let offers = offers();
    let mut talk = HandshakeClient::new(&offers, TlsPolicy::Off, FIXED);
    assert_eq!(talk.verdict(8, b""), ACK);
    let mut huge_name = go("");
    huge_name[..4].fill(0xff);
    let mut many_queries = contexts("", &["base:allocation"]);
    many_queries[4..8].fill(0xff);
    let mut trailing = go("");
    trailing.push(0);
    for (number, data) in [
        (7, &huge_name),
        (6, &huge_name),
        (10, &many_queries),
        (7, &trailing),
        (3, &trailing),
        (8, &trailing),
        (7, &vec![]),
    ] {
        assert_eq!(talk.verdict(number, data), INVALID, "{number} {data:?}");
    }
    let step = talk.send(&option(7, &go("")));
    assert!(matches!(step, HandshakeStep::Transmit(_)));
}

#[test]
fn unknown_and_oversized_options_are_answered_and_a_flood_is_not() {
    let offers = offers();
    let mut talk = HandshakeClient::new(&offers, TlsPolicy::Off, FIXED);
    assert_eq!(talk.verdict(12, b""), OptionReply::Unsupported as u32);
    let long = option(99, &vec![0; OPTION_BYTES_MAX + 1]);
    let (head, tail) = long.split_at(HEADER_BYTES);
    assert_eq!(talk.send(head), HandshakeStep::Again);
    assert_eq!(talk.send(&tail[..1000]), HandshakeStep::Again);
    assert!(talk.out.is_empty());
    assert_eq!(talk.send(&tail[1000..]), HandshakeStep::Again);
    assert_eq!(replies(99, &talk.out)[0].0, OptionReply::TooBig as u32);
    let mut endless = option(99, b"");
    endless[12..16].fill(0xff);
    assert_eq!(talk.send(&endless), HandshakeStep::End(HandshakeEnd::TooMuch));

    let mut talk = HandshakeClient::new(&offers, TlsPolicy::Off, FIXED);
    let patience = (0..=OPTIONS_MAX).find(|_| talk.send(&option(3, b"")) != HandshakeStep::Again);
    assert_eq!(patience, Some(OPTIONS_MAX));
}

#[test]
fn a_server_that_requires_tls_refuses_options_before() {
    let offers = offers();
    let mut talk = HandshakeClient::new(&offers, TlsPolicy::Require, FIXED);
    for number in [3, 6, 7, 8, 9, 10, 11, 77] {
        assert_eq!(talk.verdict(number, &go("")), TLS_REQUIRED, "{number}");
    }
    assert_eq!(talk.send(&option(5, b"")), HandshakeStep::StartTls);
    talk.handshake.encrypted();
    assert_eq!(talk.verdict(5, b""), INVALID, "encrypted already");
    assert!(matches!(
        talk.send(&option(7, &go(""))),
        HandshakeStep::Transmit(_)
    ));

    let mut old = HandshakeClient::new(&offers, TlsPolicy::Require, FIXED);
    assert_eq!(
        old.send(&option(1, b"")),
        HandshakeStep::End(HandshakeEnd::TlsRequired)
    );
}

#[test]
fn without_certificates_tls_is_refused() {
    let offers = offers();
    let mut talk = HandshakeClient::new(&offers, TlsPolicy::Off, FIXED);
    assert_eq!(talk.verdict(5, b""), OptionReply::Policy as u32);
}

/// An attacker between client and server requested structured replies without encryption. The client, which
/// never did, would take their chunks for data (CVE-2021-3716).
#[test]
fn options_negotiated_without_encryption_are_forgotten() {
    let offers = offers();
    let mut talk = HandshakeClient::new(&offers, TlsPolicy::On, FIXED);
    assert_eq!(talk.verdict(8, b""), ACK);
    assert_eq!(talk.verdict(10, &contexts("", &["base:allocation"])), ACK);
    assert_eq!(talk.send(&option(5, b"")), HandshakeStep::StartTls);
    talk.handshake.encrypted();
    let step = talk.send(&option(7, &go("")));
    assert!(matches!(step, HandshakeStep::Transmit(session) if !session.structured && !session.block_status));
}

/// Unencrypted bytes behind STARTTLS would otherwise be taken for the client's first encrypted bytes.
#[test]
fn unencrypted_bytes_behind_starttls_end_the_handshake() {
    let offers = offers();
    let mut talk = HandshakeClient::new(&offers, TlsPolicy::On, FIXED);
    let mut bytes = option(5, b"");
    bytes.extend(option(7, &go("")));
    assert_eq!(talk.send(&bytes), HandshakeStep::End(HandshakeEnd::Injected));
    assert!(talk.out.is_empty());
}

#[test]
fn an_incomplete_option_waits_for_its_rest() {
    let offers = offers();
    let bytes = option(7, &go("first"));
    for cut in 0..bytes.len() {
        let mut talk = HandshakeClient::new(&offers, TlsPolicy::Off, FIXED);
        let (taken, step) = talk.handshake.handle(&bytes[..cut], &mut talk.out);
        assert_eq!((taken, step), (0, HandshakeStep::Starved));
    }
}

proptest! {
    /// Any bytes after the flags are options or end the handshake. Nothing panics or hangs, and replies are
    /// bounded by the input.
    #[test]
    fn any_bytes_are_answered_or_end_the_handshake(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        numbers in proptest::collection::vec((0_u32..12, any::<u16>()), 0..20),
        tls in prop_oneof![Just(TlsPolicy::Off), Just(TlsPolicy::On), Just(TlsPolicy::Require)],
    ) {
        let offers = offers();
        let mut talk = HandshakeClient::new(&offers, tls, FIXED);
        // Whole options with random data first, then random bytes.
        let mut input = Vec::new();
        for (number, length) in numbers {
            let data = &bytes[..bytes.len().min(usize::from(length) % 64)];
            input.extend(option(number, data));
        }
        input.extend(&bytes);
        let mut at = 0;
        loop {
            let (taken, step) = talk.handshake.handle(&input[at..], &mut talk.out);
            at += taken;
            match step {
                HandshakeStep::Again => prop_assert!(taken > 0),
                HandshakeStep::StartTls => talk.handshake.encrypted(),
                HandshakeStep::Starved | HandshakeStep::Transmit(_) | HandshakeStep::End(_) => break,
            }
        }
        prop_assert!(talk.out.len() <= 200 * (input.len() + 16));
    }

    /// A request decodes to what was encoded, and all other bytes are refused.
    #[test]
    fn requests_decode_to_what_was_encoded(
        flags in any::<u16>(),
        command in any::<u16>(),
        cookie in any::<u64>(),
        offset in any::<u64>(),
        length in any::<u32>(),
        flip in 0_usize..32,
    ) {
        use crate::wire::request::NbdRequest;
        let request = NbdRequest { flags, command, cookie, offset, length: length.into() };
        let mut bytes = request.encode();
        prop_assert_eq!(NbdRequest::parse(&bytes), Some(request));
        bytes[flip / 8] ^= 1 << (flip % 8);
        prop_assert_eq!(NbdRequest::parse(&bytes), None);
        let request = NbdRequest { length: !u64::from(length), ..request };
        let mut bytes = request.encode_extended();
        prop_assert_eq!(NbdRequest::parse_extended(&bytes), Some(request));
        bytes[flip / 8] ^= 1 << (flip % 8);
        prop_assert_eq!(NbdRequest::parse_extended(&bytes), None);
    }

    /// For any request, the command stays inside the export.
    #[test]
    fn commands_stay_inside_the_export(
        flags in any::<u16>(),
        command in 0_u16..10,
        offset in prop_oneof![any::<u64>(), 0_u64..1 << 21],
        length in prop_oneof![any::<u64>(), 0_u64..1 << 32, 0_u64..1 << 12],
        extended in any::<bool>(),
        sectors in 1_u64..4096,
    ) {
        use crate::command::{NbdCommand, check_request};
        use crate::wire::request::NbdRequest;
        let session = NbdSession { export: 0, structured: true, extended, block_status: true, read_only: false };
        let bytes = sectors * 512;
        let request = NbdRequest { flags, command, cookie: 0, offset, length };
        let span = match check_request(&request, &session, bytes) {
            Ok(NbdCommand::Read { span, .. } | NbdCommand::Write { span, .. } | NbdCommand::Zero { span, .. }
                | NbdCommand::Trim { span, .. } | NbdCommand::Status { span, .. }) => span,
            _ => return Ok(()),
        };
        prop_assert!(span.offset() + span.length() <= bytes);
        prop_assert!(span.offset() % 512 == 0 && span.length() % 512 == 0 && span.length() > 0);
    }
}
