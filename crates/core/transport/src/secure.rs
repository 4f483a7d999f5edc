//! The Noise handshake (`NNpsk0`, keyed by the cluster key). The sealing of packets after it is
//! `cipher.rs`'s.
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
use snow::{Builder, HandshakeState};
use zeroize::Zeroizing;

use crate::cipher::{Cipher, DecryptError, DuplexCipher, TAG_BYTES};
use crate::key::ClusterKey;
use crate::preamble::PREAMBLE_BYTES;

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// Bytes of Noise message 1 and of message 2: an ephemeral key and the tag of an empty payload.
pub(crate) const MESSAGE_BYTES: usize = 32 + TAG_BYTES;
/// Bytes of the client's confirmation: the tag of an empty packet.
pub(crate) const CONFIRMATION_BYTES: usize = TAG_BYTES;

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
/// [`PendingHandshake`](crate::PendingHandshake) holds, and most strangers never get as far.
pub(crate) struct NoiseHandshake(Box<HandshakeState>);

impl NoiseHandshake {
    /// The client's side.
    pub(crate) fn initiator(key: &ClusterKey, prologue: &Prologue) -> io::Result<NoiseHandshake> {
        let joined = prologue.joined();
        let state = builder(key, &joined)
            .and_then(Builder::build_initiator)
            .map_err(io::Error::other)?;
        Ok(NoiseHandshake(Box::new(state)))
    }

    /// The lender's side.
    pub(crate) fn responder(key: &ClusterKey, prologue: &Prologue) -> io::Result<NoiseHandshake> {
        let joined = prologue.joined();
        let state = builder(key, &joined)
            .and_then(Builder::build_responder)
            .map_err(io::Error::other)?;
        Ok(NoiseHandshake(Box::new(state)))
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

    /// Takes the other side's message. It does not open: another key, or altered preambles, or an altered
    /// message.
    pub(crate) fn read(&mut self, message: &[u8; MESSAGE_BYTES]) -> Result<(), DecryptError> {
        let payload = self
            .0
            .read_message(message, &mut [0; MESSAGE_BYTES])
            .map_err(|_| DecryptError)?;
        if payload == 0 { Ok(()) } else { Err(DecryptError) }
    }

    /// The session's cipher. Both messages have been exchanged.
    pub(crate) fn finish(mut self) -> Cipher {
        assert!(self.0.is_handshake_finished());
        let (to_lender, to_client) = self.0.dangerously_get_raw_split();
        let (to_lender, to_client) = (Zeroizing::new(to_lender), Zeroizing::new(to_client));
        let ways = match self.0.is_initiator() {
            true => DuplexCipher::new(&to_lender, &to_client),
            false => DuplexCipher::new(&to_client, &to_lender),
        };
        Cipher::Noise(Box::new(ways))
    }
}

fn builder<'a>(key: &'a ClusterKey, prologue: &'a [u8]) -> Result<Builder<'a>, snow::Error> {
    let params: NoiseParams = PATTERN.parse()?;
    Builder::new(params).psk(0, key.secret())?.prologue(prologue)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROLOGUE: Prologue = Prologue {
        client: [1; PREAMBLE_BYTES],
        lender: [2; PREAMBLE_BYTES],
    };

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
                let mut client = NoiseHandshake::initiator(&key, &PROLOGUE).unwrap();
                let mut lender = NoiseHandshake::responder(&key, &seen).unwrap();
                assert!(lender.read(&client.write().unwrap()).is_err());
            }
        }
    }

    #[test]
    fn a_lender_without_the_key_cannot_answer() {
        let (ours, theirs) = (ClusterKey::generate(), ClusterKey::generate());
        let mut client = NoiseHandshake::initiator(&ours, &PROLOGUE).unwrap();
        client.write().unwrap();
        // An impostor that skips its own check of message 1 by talking to a client of its own.
        let mut impostor = NoiseHandshake::responder(&theirs, &PROLOGUE).unwrap();
        impostor
            .read(
                &NoiseHandshake::initiator(&theirs, &PROLOGUE)
                    .unwrap()
                    .write()
                    .unwrap(),
            )
            .unwrap();
        assert!(client.read(&impostor.write().unwrap()).is_err());
    }
}
