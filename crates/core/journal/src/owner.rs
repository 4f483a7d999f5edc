//! A journal's owner on its links (rule 15): proves itself, signs fences, and believes only signed ones.

use std::sync::Arc;

use netram_proto::id::{JournalId, WriterId};
use netram_proto::owner::{FenceSignature, FenceStatement, is_credible, is_owned};
use netram_proto::planted::FaultSwitch;
use netram_proto::wire::{Frame, FrameHeader, FrameKind};
use netram_transport::owner::OWNERS_SINCE;
use netram_transport::{Link, LinkError, OwnerKey};

use crate::seal::DataKey;

/// The owner of one journal. A journal made before journals had owners has none, and each holder of the
/// cluster key may fence it.
#[derive(Clone, Debug)]
pub struct JournalOwner {
    journal: JournalId,
    key: Option<Arc<OwnerKey>>,
}

/// The key does not belong to the owner that the journal's id names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotItsKey;

/// A lender claims that another writer fenced the journal, and shows no signature of the journal's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForgedFence;

impl JournalOwner {
    /// The owner of `journal`, whose data key is `key`.
    ///
    /// # Errors
    /// The id names another owner.
    pub fn of(journal: JournalId, key: &DataKey) -> Result<JournalOwner, NotItsKey> {
        if !is_owned(journal.0) {
            return Ok(JournalOwner::none(journal));
        }
        JournalOwner::with(journal, OwnerKey::derive(key.as_bytes()))
    }

    /// The owner of `journal` with its own signing key.
    ///
    /// # Errors
    /// The id names another owner.
    pub fn with(journal: JournalId, key: OwnerKey) -> Result<JournalOwner, NotItsKey> {
        if key.owned() != journal.0 {
            return Err(NotItsKey);
        }
        Ok(JournalOwner {
            journal,
            key: Some(Arc::new(key)),
        })
    }

    /// A client that speaks of `journal` and has no proof of owning it.
    pub fn none(journal: JournalId) -> JournalOwner {
        JournalOwner { journal, key: None }
    }

    /// The journal.
    pub fn journal(&self) -> JournalId {
        self.journal
    }

    /// The signing key, if there is one.
    pub fn key(&self) -> Option<&OwnerKey> {
        self.key.as_deref()
    }

    /// The key, on a link whose lender checks owners.
    fn key_on(&self, link: &Link) -> Option<&OwnerKey> {
        self.key().filter(|_| link.version() >= OWNERS_SINCE)
    }

    /// Queues the proof that must precede all other frames of a new link.
    ///
    /// # Errors
    /// As [`Link::queue`].
    pub fn introduce(&self, link: &mut Link) -> Result<(), LinkError> {
        let Some(key) = self.key() else { return Ok(()) };
        if !key.introduce(link)? {
            tracing::warn!(
                lender = link.peer(),
                "this lender runs an earlier release and lets every holder of the cluster key fence this journal; run the \
                 same release on both"
            );
        }
        Ok(())
    }

    /// Sends a frame, with a signature if it is a fence.
    ///
    /// # Errors
    /// As [`Link::queue`].
    pub fn queue(&self, link: &mut Link, header: &FrameHeader, body: &[u8]) -> Result<(), LinkError> {
        if header.kind == FrameKind::Fence
            && let Some(key) = self.key_on(link)
        {
            let FenceSignature(signature) = key.sign_fence(&FenceStatement {
                journal: self.journal,
                epoch: header.epoch,
                writer: WriterId(header.sender),
            });
            return link.queue(&[&header.encode(signature.len()), &signature]);
        }
        link.queue(&[&header.encode(body.len()), body])
    }

    /// Checks what a lender says about the journal's fences. Costs a comparison unless it names one.
    ///
    /// # Errors
    /// The lender names a fence that the owner has not signed.
    pub fn check(&self, version: u16, frame: &Frame<'_>) -> Result<(), ForgedFence> {
        match frame.header.kind {
            FrameKind::Refuse | FrameKind::ProbeReply => self.check_claim(version, frame),
            _ => Ok(()),
        }
    }

    #[cold]
    fn check_claim(&self, version: u16, frame: &Frame<'_>) -> Result<(), ForgedFence> {
        let Some(key) = self.key().filter(|_| version >= OWNERS_SINCE) else {
            return Ok(());
        };
        let is_signed =
            |fence: &FenceStatement, signature: &FenceSignature| key.id().signed(fence, signature);
        match is_credible(self.journal, frame, &is_signed, FaultSwitch::NONE) {
            true => Ok(()),
            false => Err(ForgedFence),
        }
    }
}

impl std::fmt::Display for ForgedFence {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(
            "it claims that another writer fenced the journal, and shows no signature of the journal's owner",
        )
    }
}

impl std::error::Error for ForgedFence {}
