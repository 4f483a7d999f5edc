//! The Noise handshake (`NNpsk0`, keyed by the cluster key) and the sealing of packets after it.
//!
//! Both preambles are the prologue, so both ends agree on what was said in the clear, or the handshake fails.
//! The key enters before anything else: message 1 already proves that the client holds it, and a lender does
//! no public-key work for a stranger. Message 2 proves the lender.
//!
//! *A recorded message 1, replayed*, is valid again and gets a message 2, of no use to the replayer: the
//! session's keys come from both ephemeral keys, and it owns neither. So that a replay does not even get a
//! link's buffers, the client confirms with an empty sealed packet, the first under the session's keys; the
//! lender makes the [`Link`](crate::Link) only when that opens. This costs no round trip: the client's first
//! packet follows at once.
//!
//! Sessions are forward secret: the cluster key, stolen later, does not open what was recorded. Everybody who
//! holds the key can pose as any client or lender; keys are for clusters, not for persons.

use std::io;

use snow::params::NoiseParams;
use snow::{Builder, HandshakeState, TransportState};

use crate::key::ClusterKey;
use crate::preamble::PREAMBLE_BYTES;

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// Bytes that sealing adds to a packet.
pub(crate) const TAG_BYTES: usize = 16;
/// Bytes of Noise message 1 and of message 2: an ephemeral key and the tag of an empty payload.
pub(crate) const MESSAGE_BYTES: usize = 32 + TAG_BYTES;
/// Bytes of the client's confirmation: the tag of an empty packet.
pub(crate) const CONFIRMATION_BYTES: usize = TAG_BYTES;
/// Packets under one key, in each direction. At 60 KiB a packet this stays below 2^32 AES blocks, far inside
/// what AES-GCM bears (about 2^34.5 blocks in TLS 1.3's reckoning), and bounds what one stolen key opens.
const REKEY_PACKETS: u64 = 1 << 20;

/// How a link is protected.
#[derive(Clone, Debug)]
pub enum Security {
    /// Encrypted, both ends proven to hold the cluster key.
    Key(ClusterKey),
    /// In the clear and unproven; only for local addresses.
    Insecure,
}

/// What both sides said in the clear.
#[derive(Clone, Copy)]
pub(crate) struct Prologue {
    pub(crate) client: [u8; PREAMBLE_BYTES],
    pub(crate) lender: [u8; PREAMBLE_BYTES],
}

impl Prologue {
    fn joined(&self) -> [u8; 2 * PREAMBLE_BYTES] {
        let mut joined = [0; 2 * PREAMBLE_BYTES];
        joined[..PREAMBLE_BYTES].copy_from_slice(&self.client);
        joined[PREAMBLE_BYTES..].copy_from_slice(&self.lender);
        joined
    }
}

/// A Noise handshake between its first message and its last. Boxed: it is larger than all else a
/// [`Pending`](crate::Pending) holds, and most strangers never get as far.
pub(crate) struct Handshake(Box<HandshakeState>);

/// The message does not open: another key, or altered preambles, or an altered message.
#[derive(Debug)]
pub(crate) struct DoesNotOpen;

impl Handshake {
    /// The client's side.
    pub(crate) fn initiator(key: &ClusterKey, prologue: &Prologue) -> io::Result<Handshake> {
        let joined = prologue.joined();
        let state = builder(key, &joined)
            .and_then(Builder::build_initiator)
            .map_err(io::Error::other)?;
        Ok(Handshake(Box::new(state)))
    }

    /// The lender's side.
    pub(crate) fn responder(key: &ClusterKey, prologue: &Prologue) -> io::Result<Handshake> {
        let joined = prologue.joined();
        let state = builder(key, &joined)
            .and_then(Builder::build_responder)
            .map_err(io::Error::other)?;
        Ok(Handshake(Box::new(state)))
    }

    /// The next message of this side. Fails only with the machine's random generator.
    pub(crate) fn write(&mut self) -> io::Result<[u8; MESSAGE_BYTES]> {
        let mut message = [0; MESSAGE_BYTES];
        let written = self
            .0
            .write_message(&[], &mut message)
            .map_err(io::Error::other)?;
        assert_eq!(written, MESSAGE_BYTES);
        Ok(message)
    }

    /// Takes the other side's message.
    pub(crate) fn read(&mut self, message: &[u8; MESSAGE_BYTES]) -> Result<(), DoesNotOpen> {
        let payload = self
            .0
            .read_message(message, &mut [0; MESSAGE_BYTES])
            .map_err(|_| DoesNotOpen)?;
        if payload == 0 { Ok(()) } else { Err(DoesNotOpen) }
    }

    /// The session's cipher. Both messages have been exchanged.
    pub(crate) fn finish(self) -> io::Result<Cipher> {
        let state = self.0.into_transport_mode().map_err(io::Error::other)?;
        Ok(Cipher::Noise(Box::new(state)))
    }
}

fn builder<'a>(key: &'a ClusterKey, prologue: &'a [u8]) -> Result<Builder<'a>, snow::Error> {
    let params: NoiseParams = PATTERN.parse()?;
    Builder::new(params).psk(0, key.secret())?.prologue(prologue)
}

/// What protects the packets of a link. Sealing and opening together cost about 180 ns for 128 bytes.
pub(crate) enum Cipher {
    Plain,
    Noise(Box<TransportState>),
}

impl Cipher {
    /// Bytes added to every packet.
    pub(crate) fn overhead(&self) -> usize {
        match self {
            Cipher::Plain => 0,
            Cipher::Noise(_) => TAG_BYTES,
        }
    }
}

/// Seals `packet` into `target`, which is exactly [`TAG_BYTES`] longer.
pub(crate) fn seal(state: &mut TransportState, packet: &[u8], target: &mut [u8]) {
    assert_eq!(target.len(), packet.len() + TAG_BYTES);
    let sealed = state.write_message(packet, target);
    // The lengths are asserted above, and 2^64 packets are never sent: sealing has no other way to fail.
    assert_eq!(sealed, Ok(target.len()));
    if state.sending_nonce().is_multiple_of(REKEY_PACKETS) {
        state.rekey_outgoing();
    }
}

/// Opens `sealed` into `target`, which must be at least as long as `sealed`: with less room, `snow` would
/// allocate. Returns the packet's length.
pub(crate) fn open(
    state: &mut TransportState,
    sealed: &[u8],
    target: &mut [u8],
) -> Result<usize, DoesNotOpen> {
    assert!(target.len() >= sealed.len());
    let length = state.read_message(sealed, target).map_err(|_| DoesNotOpen)?;
    if state.receiving_nonce().is_multiple_of(REKEY_PACKETS) {
        state.rekey_incoming();
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROLOGUE: Prologue = Prologue {
        client: [1; PREAMBLE_BYTES],
        lender: [2; PREAMBLE_BYTES],
    };

    fn pair(key: &ClusterKey) -> (Box<TransportState>, Box<TransportState>) {
        let mut client = Handshake::initiator(key, &PROLOGUE).unwrap();
        let mut lender = Handshake::responder(key, &PROLOGUE).unwrap();
        lender.read(&client.write().unwrap()).unwrap();
        client.read(&lender.write().unwrap()).unwrap();
        match (client.finish().unwrap(), lender.finish().unwrap()) {
            (Cipher::Noise(client), Cipher::Noise(lender)) => (client, lender),
            _ => unreachable!("a finished handshake always gives a Noise cipher"),
        }
    }

    #[test]
    fn one_changed_byte_in_either_preamble_fails_the_handshake() {
        let key = ClusterKey::generate();
        for at in 0..PREAMBLE_BYTES {
            for side in 0..2 {
                let mut seen = PROLOGUE;
                if side == 0 {
                    seen.client[at] ^= 1
                } else {
                    seen.lender[at] ^= 1
                }
                let mut client = Handshake::initiator(&key, &PROLOGUE).unwrap();
                let mut lender = Handshake::responder(&key, &seen).unwrap();
                assert!(lender.read(&client.write().unwrap()).is_err());
            }
        }
    }

    #[test]
    fn a_lender_without_the_key_cannot_answer() {
        let (ours, theirs) = (ClusterKey::generate(), ClusterKey::generate());
        let mut client = Handshake::initiator(&ours, &PROLOGUE).unwrap();
        client.write().unwrap();
        // An impostor that skips its own check of message 1 by talking to a client of its own.
        let mut impostor = Handshake::responder(&theirs, &PROLOGUE).unwrap();
        impostor
            .read(&Handshake::initiator(&theirs, &PROLOGUE).unwrap().write().unwrap())
            .unwrap();
        assert!(client.read(&impostor.write().unwrap()).is_err());
    }

    #[test]
    fn packets_open_once_in_order_and_across_rekeying() {
        let (mut client, mut lender) = pair(&ClusterKey::generate());
        let (mut sealed, mut opened) = ([0; 8 + TAG_BYTES], [0; 8 + TAG_BYTES]);
        for number in 0..REKEY_PACKETS + 3 {
            seal(&mut client, &number.to_le_bytes(), &mut sealed);
            assert_eq!(open(&mut lender, &sealed, &mut opened).unwrap(), 8);
            assert_eq!(opened[..8], number.to_le_bytes());
        }
        assert!(
            open(&mut lender, &sealed, &mut opened).is_err(),
            "a replayed packet does not open"
        );
        assert!(
            open(&mut client, &sealed, &mut opened).is_err(),
            "a reflected packet does not open"
        );
    }
}
