//! Signatures of the owner of a journal or deposit: proofs on a link, and signed fences.
//!
//! A journal's data key gives a signing key (HKDF-SHA256, then Ed25519), and the digest of its public half is
//! the journal's id (`netram_proto::owner`). An [`OwnerKey`] signs; [`check_proof`] and [`OwnerId::signed`]
//! check. A signature costs about 20 µs and its check about 50 µs, once a connection and once a fence.

use netram_proto::owner::{
    FenceSignature, FenceStatement, OwnerProof, PUBLIC_KEY_BYTES, SESSION_ID_BYTES, is_owned, owned_id,
    proof_message,
};
use netram_proto::wire::{FrameHeader, FrameKind};
use ring::digest::{SHA256, digest};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use zeroize::Zeroizing;

use crate::error::LinkError;
use crate::link::Link;

/// The wire version from which lenders check who owns a journal or deposit.
pub const OWNERS_SINCE: u16 = 2;
/// Bytes of the secret that an [`OwnerKey`] is derived from, and of its seed.
pub const SECRET_BYTES: usize = 32;

/// The signing key of a journal's or deposit's owner.
pub struct OwnerKey {
    pair: Ed25519KeyPair,
    seed: Zeroizing<[u8; SECRET_BYTES]>,
    id: OwnerId,
}

/// The public half of an [`OwnerKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerId([u8; PUBLIC_KEY_BYTES]);

impl OwnerKey {
    /// The owner's key that belongs to a journal's secret. The secret cannot be found from it.
    pub fn derive(secret: &[u8; SECRET_BYTES]) -> OwnerKey {
        let mut seed = Zeroizing::new([0; SECRET_BYTES]);
        let key = Salt::new(HKDF_SHA256, &[]).extract(secret);
        let filled = key
            .expand(&[b"netram owner 1"], HKDF_SHA256)
            .and_then(|derived| derived.fill(&mut seed[..]));
        filled.expect("32 bytes are what HKDF-SHA256 gives at once");
        OwnerKey::from_seed(&seed)
    }

    /// The key of a stored or random seed.
    pub fn from_seed(seed: &[u8; SECRET_BYTES]) -> OwnerKey {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).expect("any 32 bytes are a seed");
        let public = pair.public_key().as_ref().try_into();
        OwnerKey {
            id: OwnerId(public.expect("a public key has 32 bytes")),
            seed: Zeroizing::new(*seed),
            pair,
        }
    }

    /// The seed, for a process that ends the journal later, when its secret is gone.
    pub fn seed(&self) -> &[u8; SECRET_BYTES] {
        &self.seed
    }

    /// The public half.
    pub fn id(&self) -> OwnerId {
        self.id
    }

    /// The id of the journal that this key owns.
    pub fn owned(&self) -> u128 {
        self.id.owned()
    }

    /// The proof, on the link with this session id, that its client has the key.
    pub fn prove(&self, session: &[u8; SESSION_ID_BYTES]) -> OwnerProof {
        OwnerProof {
            public: self.id.0,
            signature: self.sign(&proof_message(session)),
        }
    }

    /// Queues the proof that must precede all other frames of a new link. Returns whether the lender checks
    /// owners; one of an earlier release does not, and gets no proof.
    ///
    /// # Errors
    /// As [`Link::queue`].
    pub fn introduce(&self, link: &mut Link) -> Result<bool, LinkError> {
        if link.version() < OWNERS_SINCE {
            return Ok(false);
        }
        let proof = self.prove(link.session()).encode();
        let header = FrameHeader::new(FrameKind::Prove);
        link.queue(&[&header.encode(proof.len()), &proof])?;
        Ok(true)
    }

    /// Signs a fence.
    pub fn sign_fence(&self, fence: &FenceStatement) -> FenceSignature {
        FenceSignature(self.sign(&fence.message()))
    }

    fn sign(&self, message: &[u8]) -> [u8; 64] {
        let signature = self.pair.sign(message);
        signature.as_ref().try_into().expect("a signature has 64 bytes")
    }
}

impl std::fmt::Debug for OwnerKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "OwnerKey({:032x})", self.owned())
    }
}

impl OwnerId {
    /// The id of the journal that this key owns.
    pub fn owned(&self) -> u128 {
        let digest = digest(&SHA256, &self.0);
        owned_id(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// Whether the owner signed this fence.
    pub fn signed(&self, fence: &FenceStatement, signature: &FenceSignature) -> bool {
        verifies(&self.0, &fence.message(), &signature.0)
    }
}

/// Checks a client's proof on the link with this session id. Returns who it is; `None` if the signature is
/// wrong, for instance because it was made on another link.
pub fn check_proof(session: &[u8; SESSION_ID_BYTES], proof: &OwnerProof) -> Option<OwnerId> {
    let right = verifies(&proof.public, &proof_message(session), &proof.signature);
    right.then_some(OwnerId(proof.public))
}

fn verifies(public: &[u8; PUBLIC_KEY_BYTES], message: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, public)
        .verify(message, signature)
        .is_ok()
}

const _: () = assert!(is_owned(u128::from_be_bytes(*b"own\0\0\0\0\0\0\0\0\0\0\0\0\0")));

#[cfg(test)]
mod tests {
    use super::*;
    use netram_proto::id::{Epoch, JournalId, WriterId};

    #[test]
    fn a_proof_holds_on_its_own_link_only() {
        let key = OwnerKey::derive(&[7; 32]);
        let proof = key.prove(&[1; 32]);
        let owner = check_proof(&[1; 32], &proof).unwrap();
        assert_eq!(owner.owned(), key.owned());
        assert!(is_owned(key.owned()));
        assert_eq!(check_proof(&[2; 32], &proof), None);
        let other = OwnerProof {
            public: OwnerKey::derive(&[8; 32]).id().0,
            ..proof
        };
        assert_eq!(check_proof(&[1; 32], &other), None);
    }

    #[test]
    fn the_same_secret_has_the_same_owner_and_no_other_has() {
        let (first, again) = (OwnerKey::derive(&[7; 32]), OwnerKey::derive(&[7; 32]));
        assert_eq!(first.id(), again.id());
        assert_ne!(first.id(), OwnerKey::derive(&[8; 32]).id());
        assert_eq!(OwnerKey::from_seed(first.seed()).id(), first.id());
        assert_eq!(format!("{first:?}"), format!("OwnerKey({:032x})", first.owned()));
    }

    #[test]
    fn a_fence_of_another_journal_epoch_or_writer_is_not_signed() {
        let key = OwnerKey::derive(&[7; 32]);
        let fence = FenceStatement {
            journal: JournalId(key.owned()),
            epoch: Epoch(3),
            writer: WriterId(4),
        };
        let signature = key.sign_fence(&fence);
        assert!(key.id().signed(&fence, &signature));
        let changed = [
            FenceStatement {
                journal: JournalId(5),
                ..fence
            },
            FenceStatement {
                epoch: Epoch(4),
                ..fence
            },
            FenceStatement {
                writer: WriterId(5),
                ..fence
            },
        ];
        for fence in changed {
            assert!(!key.id().signed(&fence, &signature), "{fence:?}");
        }
        assert!(!key.id().signed(&fence, &FenceSignature::NONE));
        assert!(!OwnerKey::derive(&[8; 32]).id().signed(&fence, &signature));
    }
}
