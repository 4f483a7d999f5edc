//! The Noise handshake (`NNpsk0`, keyed by the cluster key). `cipher.rs` encrypts the packets after it.
//!
//! Both preambles form the prologue, so the handshake fails unless both ends saw the same ones. The key
//! enters first: message 1 proves that the client holds it, so a lender does no public-key work for
//! unauthenticated clients. Message 2 proves the lender.
//!
//! A *replayed message 1* is valid and gets a message 2, which is useless to the replayer: the session's keys
//! come from both ephemeral keys, and it knows neither. To deny a replay even a link's buffers, the client
//! confirms with an empty sealed packet under the session's keys. The lender creates the
//! [`Link`](crate::Link) only if that packet decrypts. No round trip is added, since the client's first
//! packet follows at once.
//!
//! Sessions are forward secret: a cluster key stolen later does not decrypt recorded traffic. Every holder of
//! the key can pose as any client or lender; a key identifies a cluster, not a person.

use std::io;

use netram_proto::owner::SESSION_ID_BYTES;
use snow::params::NoiseParams;
use snow::{Builder, HandshakeState};
use zeroize::{Zeroize, Zeroizing};

use crate::cipher::{Cipher, DecryptError, DuplexCipher, TAG_BYTES};
use crate::key::ClusterKey;
use crate::preamble::{NONCE_BYTES, PREAMBLE_BYTES};
use crate::sys::WipedBox;

const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// Bytes of each Noise message: an ephemeral key and the tag of an empty payload.
pub(crate) const MESSAGE_BYTES: usize = 32 + TAG_BYTES;
/// Bytes of the client's confirmation: the tag of an empty packet.
pub(crate) const CONFIRMATION_BYTES: usize = TAG_BYTES;

/// The plaintext that both sides exchange before the handshake.
#[derive(Clone, Copy)]
pub(crate) struct Prologue {
    pub(crate) client: [u8; PREAMBLE_BYTES],
    pub(crate) lender: [u8; PREAMBLE_BYTES],
    /// Random bytes of the lender; `None` before wire version 2.
    pub(crate) nonce: Option<[u8; NONCE_BYTES]>,
}

impl Prologue {
    fn joined(&self) -> Vec<u8> {
        let nonce = self.nonce.iter().flatten();
        self.client
            .iter()
            .chain(&self.lender)
            .chain(nonce)
            .copied()
            .collect()
    }

    /// The session id of a link without Noise.
    pub(crate) fn session(&self) -> [u8; SESSION_ID_BYTES] {
        let digest = ring::digest::digest(&ring::digest::SHA256, &self.joined());
        digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }
}

/// A Noise handshake under way. It is boxed because it is larger than the rest of a
/// [`PendingHandshake`](crate::PendingHandshake), and most unauthenticated connections never need it.
///
/// Its memory is erased behind it: the state has a copy of the cluster key.
pub(crate) struct NoiseHandshake(WipedBox<HandshakeState>);

impl NoiseHandshake {
    /// Begins the client's side.
    pub(crate) fn initiator(key: &ClusterKey, prologue: &Prologue) -> io::Result<NoiseHandshake> {
        let joined = prologue.joined();
        with_wiped_stack(|| {
            let state = builder(key, &joined).and_then(Builder::build_initiator);
            Ok(NoiseHandshake(WipedBox::new(state.map_err(io::Error::other)?)))
        })
    }

    /// Begins the lender's side.
    pub(crate) fn responder(key: &ClusterKey, prologue: &Prologue) -> io::Result<NoiseHandshake> {
        let joined = prologue.joined();
        with_wiped_stack(|| {
            let state = builder(key, &joined).and_then(Builder::build_responder);
            Ok(NoiseHandshake(WipedBox::new(state.map_err(io::Error::other)?)))
        })
    }

    /// The next message of this side. Fails only if the random generator does.
    pub(crate) fn write(&mut self) -> io::Result<[u8; MESSAGE_BYTES]> {
        let mut message = [0; MESSAGE_BYTES];
        let state = &mut *self.0;
        let written = with_wiped_stack(|| state.write_message(&[], &mut message));
        let written = written.map_err(io::Error::other)?;
        assert_eq!(written, MESSAGE_BYTES);
        Ok(message)
    }

    /// Reads the other side's message. Fails if the other side has another key or other preambles, or if the
    /// message was altered.
    pub(crate) fn read(&mut self, message: &[u8; MESSAGE_BYTES]) -> Result<(), DecryptError> {
        let state = &mut *self.0;
        let payload = with_wiped_stack(|| state.read_message(message, &mut [0; MESSAGE_BYTES]));
        let payload = payload.map_err(|_| DecryptError)?;
        if payload == 0 { Ok(()) } else { Err(DecryptError) }
    }

    /// The session's cipher and its id, the handshake hash (Noise, section 11.2). Both messages must have
    /// been exchanged.
    pub(crate) fn finish(mut self) -> (Cipher, [u8; SESSION_ID_BYTES]) {
        assert!(self.0.is_handshake_finished());
        let session = self
            .0
            .get_handshake_hash()
            .try_into()
            .expect("SHA-256 has 32 bytes");
        let (to_lender, to_client) = self.0.dangerously_get_raw_split();
        let (to_lender, to_client) = (Zeroizing::new(to_lender), Zeroizing::new(to_client));
        let ways = match self.0.is_initiator() {
            true => DuplexCipher::new(&to_lender, &to_client),
            false => DuplexCipher::new(&to_client, &to_lender),
        };
        (Cipher::Noise(Box::new(ways)), session)
    }
}

/// Stack that a handshake's construction and messages use, generously.
const STACK_BYTES: usize = 16 * 1024;

/// Runs `work`, and overwrites the stack that it used: values are built there and then moved, with the keys
/// in them.
fn with_wiped_stack<T>(work: impl FnOnce() -> T) -> T {
    #[inline(never)]
    fn called<T>(work: impl FnOnce() -> T) -> T {
        work()
    }
    #[inline(never)]
    fn wipe() {
        let mut stack = [0xff_u8; STACK_BYTES];
        stack.zeroize();
        std::hint::black_box(&stack);
    }
    let done = called(work);
    wipe();
    done
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
        nonce: Some([3; NONCE_BYTES]),
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
        // The impostor gets past its own check of message 1 by talking to a client of its own.
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
