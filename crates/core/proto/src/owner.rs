//! Owners of journals and deposits (rule 15): the id of what is owned is a digest of its owner's public key.
//!
//! A lender therefore needs no memory of owners, and nobody can claim an id before its owner does. A session
//! proves once that its client holds the key, by a signature over the link's own session id; commits cost
//! nothing. A fence is signed, and stored with its signature. A lender that refuses an older writer shows the
//! signature, so no lender can invent a fence.
//!
//! This module has the layouts of ids and signed messages. The signatures themselves (Ed25519) are made and
//! checked by the drivers: `netram_transport::owner`.

use crate::id::{Epoch, JournalId, WriterId};
use crate::planted::{FaultSwitch, PlantedFault};
use crate::wire::{ByteReader, Frame, FrameKind, RefusalReason};

/// Bytes of a signature.
pub const SIGNATURE_BYTES: usize = 64;
/// Bytes of a public key.
pub const PUBLIC_KEY_BYTES: usize = 32;
/// Bytes of a link's session id.
pub const SESSION_ID_BYTES: usize = 32;
/// Bytes of an [`OwnerProof`].
pub const PROOF_BYTES: usize = PUBLIC_KEY_BYTES + SIGNATURE_BYTES;

/// First bits of the id of everything that has an owner. One id in 2^24 that was drawn at random, as all were
/// before there were owners, has them by accident.
const OWNED_TAG: u128 = 0x6f776e << DIGEST_BITS;
/// Bits of the public key's digest in an id.
const DIGEST_BITS: u32 = 104;

/// Whether `id` names its owner. Any other id belongs to every holder of the cluster key.
pub const fn is_owned(id: u128) -> bool {
    id >> DIGEST_BITS == OWNED_TAG >> DIGEST_BITS
}

/// The id that the owner of a public key with this SHA-256 digest has.
pub fn owned_id(digest: &[u8; 32]) -> u128 {
    let first = digest
        .iter()
        .take(16)
        .fold(0u128, |id, byte| id << 8 | u128::from(*byte));
    OWNED_TAG | first >> (128 - DIGEST_BITS)
}

/// The message that a client signs to prove on a link that it owns a journal.
pub fn proof_message(session: &[u8; SESSION_ID_BYTES]) -> [u8; 16 + SESSION_ID_BYTES] {
    let mut message = [0; 16 + SESSION_ID_BYTES];
    message[..16].copy_from_slice(b"netram owner  1\n");
    message[16..].copy_from_slice(session);
    message
}

/// A client's proof on one link: the body of a `Prove` frame.
///
/// ```text
///  0  public key, 32
/// 32  signature of the proof's message, 64
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerProof {
    /// The owner's public key.
    pub public: [u8; PUBLIC_KEY_BYTES],
    /// The owner's signature of [`proof_message`].
    pub signature: [u8; SIGNATURE_BYTES],
}

impl OwnerProof {
    /// Reads the body of a `Prove` frame; `None` if it has another length.
    pub fn parse(body: &[u8]) -> Option<OwnerProof> {
        let (public, rest) = body.split_first_chunk()?;
        let signature = rest.try_into().ok()?;
        Some(OwnerProof {
            public: *public,
            signature,
        })
    }

    /// The body of a `Prove` frame.
    pub fn encode(&self) -> [u8; PROOF_BYTES] {
        let mut body = [0; PROOF_BYTES];
        body[..PUBLIC_KEY_BYTES].copy_from_slice(&self.public);
        body[PUBLIC_KEY_BYTES..].copy_from_slice(&self.signature);
        body
    }
}

/// The owner's signature of a fence. All zeros: the journal has no owner, or no writer has fenced it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FenceSignature(pub [u8; SIGNATURE_BYTES]);

impl FenceSignature {
    /// No signature.
    pub const NONE: FenceSignature = FenceSignature([0; SIGNATURE_BYTES]);

    /// The signature in the body of a `Fence` frame, which may be empty; `None` if it has another length.
    pub fn parse(body: &[u8]) -> Option<FenceSignature> {
        match body.is_empty() {
            true => Some(FenceSignature::NONE),
            false => Some(FenceSignature(body.try_into().ok()?)),
        }
    }

    /// Whether there is a signature.
    pub fn is_some(&self) -> bool {
        *self != FenceSignature::NONE
    }
}

impl Default for FenceSignature {
    fn default() -> FenceSignature {
        FenceSignature::NONE
    }
}

impl core::fmt::Debug for FenceSignature {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.write_str(if self.is_some() { "signed" } else { "unsigned" })
    }
}

/// A fence of a journal, as its owner signs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FenceStatement {
    /// The journal.
    pub journal: JournalId,
    /// The epoch that fences all lower ones.
    pub epoch: Epoch,
    /// The writer of that epoch.
    pub writer: WriterId,
}

impl FenceStatement {
    /// The bytes to sign.
    pub fn message(&self) -> [u8; 44] {
        let mut message = [0; 44];
        message[..16].copy_from_slice(b"netram fence  1\n");
        message[16..32].copy_from_slice(&self.journal.0.to_le_bytes());
        message[32..36].copy_from_slice(&self.epoch.0.to_le_bytes());
        message[36..].copy_from_slice(&self.writer.0.to_le_bytes());
        message
    }
}

/// A lender's claim that a writer has fenced the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FenceClaim {
    /// The fence that the lender names.
    pub fence: FenceStatement,
    /// The signature that it shows.
    pub signature: FenceSignature,
}

impl FenceClaim {
    /// The claim in a frame of a lender; `None` if the frame claims no fence. A body without writer and
    /// signature makes a claim that nobody has signed.
    pub fn of(frame: &Frame<'_>, journal: JournalId) -> Option<FenceClaim> {
        let header = &frame.header;
        let refusal = || RefusalReason::from_byte(header.flags);
        let at = match header.kind {
            FrameKind::ProbeReply if header.epoch > Epoch(0) => 12,
            FrameKind::Refuse if refusal() == Some(RefusalReason::NotFenced) && header.epoch > Epoch(0) => 8,
            FrameKind::Refuse if refusal() == Some(RefusalReason::Fenced) => 8,
            _ => return None,
        };
        let writer = WriterId(ByteReader::new(frame.body).u64().unwrap_or_default());
        let signature = frame.body.get(at..).and_then(FenceSignature::parse);
        Some(FenceClaim {
            fence: FenceStatement {
                journal,
                epoch: header.epoch,
                writer,
            },
            signature: signature.unwrap_or_default(),
        })
    }
}

/// Whether a lender's claim shows the fence that `writer` itself made in `epoch`. No lender refuses a writer
/// for its own fence: this one plays back the signature that it was sent.
pub fn plays_back(frame: &Frame<'_>, epoch: Epoch, writer: WriterId) -> bool {
    let claim = FenceClaim::of(frame, JournalId(0));
    claim.is_some_and(|claim| (claim.fence.epoch, claim.fence.writer) == (epoch, writer))
}

/// Checks a fence of an owned journal's signature: whether the owner made it.
pub type VerifyFence<'a> = &'a dyn Fn(&FenceStatement, &FenceSignature) -> bool;

/// Whether a lender may obey a `Fence` frame. `last` is the fence that the journal obeys. `owner` checks the
/// signatures of the owner that the session has proven to be; `None` for the lender's operator, who may only
/// repeat the last fence.
pub fn allows_fence(
    journal: JournalId,
    frame: &Frame<'_>,
    last: (Epoch, WriterId),
    owner: Option<VerifyFence<'_>>,
) -> bool {
    if !is_owned(journal.0) {
        return true;
    }
    let fence = FenceStatement {
        journal,
        epoch: frame.header.epoch,
        writer: WriterId(frame.header.sender),
    };
    match (owner, FenceSignature::parse(frame.body)) {
        (Some(is_signed), Some(signature)) => is_signed(&fence, &signature),
        (None, Some(signature)) => !signature.is_some() && last == (fence.epoch, fence.writer),
        (_, None) => false,
    }
}

/// Whether a client may believe what a lender says of the fences of an owned journal.
pub fn is_credible(
    journal: JournalId,
    frame: &Frame<'_>,
    is_signed: VerifyFence<'_>,
    planted: FaultSwitch,
) -> bool {
    let claim = FenceClaim::of(frame, journal);
    claim.is_none_or(|claim| is_signed(&claim.fence, &claim.signature))
        || planted.is(PlantedFault::UnsignedFenceBelieved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_whether_it_has_an_owner() {
        let id = owned_id(&[0xab; 32]);
        assert_eq!(id, 0x6f77_6eab_abab_abab_abab_abab_abab_abab);
        assert!(is_owned(id));
        assert!(!is_owned(7));
        assert!(!is_owned(u128::MAX));
    }

    #[test]
    fn another_key_has_another_id_and_another_fence_another_message() {
        for byte in 0..13 {
            let mut digest = [0; 32];
            digest[byte] = 1;
            assert_ne!(owned_id(&digest), owned_id(&[0; 32]), "byte {byte}");
        }
        let fence = |journal, epoch, writer| FenceStatement {
            journal: JournalId(journal),
            epoch: Epoch(epoch),
            writer: WriterId(writer),
        };
        let base = fence(1, 2, 3).message();
        for other in [fence(2, 2, 3), fence(1, 3, 3), fence(1, 2, 4)] {
            assert_ne!(other.message(), base);
        }
    }

    #[test]
    fn a_proof_of_another_length_is_none() {
        let proof = OwnerProof {
            public: [1; 32],
            signature: [2; 64],
        };
        assert_eq!(OwnerProof::parse(&proof.encode()), Some(proof));
        assert_eq!(OwnerProof::parse(&proof.encode()[1..]), None);
        assert_eq!(OwnerProof::parse(&[0; PROOF_BYTES + 1]), None);
        assert_eq!(FenceSignature::parse(&[]), Some(FenceSignature::NONE));
        assert_eq!(FenceSignature::parse(&[1; 63]), None);
    }
}
